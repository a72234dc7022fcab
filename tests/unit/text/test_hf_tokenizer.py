"""Tokenizers from Hugging Face directories: the ids transformers would give, BOS neither doubled nor missing."""

import itertools
import json
import struct

import pytest
from vocabulary_file import CHATML, load_vocabulary, read_vocabulary

from exactlm.errors import TokenizerError, UnsupportedError
from exactlm.text.chat import render_chat
from exactlm.text.hf_tokenizer import build_from_directory
from exactlm.text.tokenizer import Tokenizer

BOS_CHATML = "{{ bos_token }}" + CHATML
MESSAGES = [{"role": "user", "content": "the cat"}]


def template_processing(*before: str, after: tuple[str, ...] = ()) -> dict:
    def item(token: str) -> dict:
        return {"SpecialToken": {"id": token, "type_id": 0}}

    single = [*map(item, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(item, after)]
    ids = {"<|bos|>": 1000, "<|im_end|>": 1001}
    tokens = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (*before, *after)}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": tokens}


def with_processor(document: dict, *before: str, after: tuple[str, ...] = ()) -> dict:
    processor = template_processing(*before, after=after)
    ids = {token["content"]: token["id"] for token in document["added_tokens"]}
    for token, entry in processor["special_tokens"].items():
        entry["ids"] = [ids[token]]
    return {**document, "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, processor]}}


@pytest.mark.parametrize(("writes_bos", "adds_bos"), list(itertools.product([False, True], repeat=2)))
def test_bos_once_in_chat_and_in_text(writes_bos, adds_bos, tiny_document, write_checkpoint):
    document = with_processor(tiny_document, "<|bos|>") if adds_bos else tiny_document
    config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": BOS_CHATML if writes_bos else CHATML}
    tokenizer = Tokenizer(*build_from_directory(write_checkpoint(document, tokenizer_config=config)))
    bos = tokenizer.bos_id
    rendered = render_chat(tokenizer.chat_template, MESSAGES, special_tokens=tokenizer.special_tokens)
    # As transformers: a conversation has the BOS that its template writes, a text the one the tokenizer adds.
    assert tokenizer.encode_segments(rendered.segments).count(bos) == int(writes_bos)
    assert tokenizer.encode("the cat").count(bos) == int(adds_bos)
    assert tokenizer.encode("<|bos|>the cat", allow_control=True).count(bos) == 1
    assert tokenizer.encode("the cat", add_special_tokens=False).count(bos) == 0


def test_suffix_of_the_post_processor(tiny_document, write_checkpoint):
    document = with_processor(tiny_document, "<|bos|>", after=("<|im_end|>",))
    tokenizer = Tokenizer(*build_from_directory(write_checkpoint(document)))
    ids = tokenizer.encode("the cat")
    assert (ids[0], ids[-1]) == (tokenizer.find_id("<|bos|>"), tokenizer.find_id("<|im_end|>"))
    assert tokenizer.encode("<|bos|>the cat<|im_end|>", allow_control=True) == ids


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast"}, ["<|bos|>"]),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, []),
        ({"tokenizer_class": "GemmaTokenizerFast", "add_bos_token": True}, ["<|bos|>"]),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, []),
        ({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}, ["<|bos|>"]),
        ({"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False}, []),
    ],
)
def test_flags_of_the_classes_that_read_them(config, expected, write_checkpoint):
    named = {"bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>"}}
    tokenizer = Tokenizer(*build_from_directory(write_checkpoint(tokenizer_config={**named, **config})))
    assert tokenizer.settings.prefix_ids == [tokenizer.find_id(token) for token in expected]


def test_every_declared_end_counts(write_checkpoint, tiny_document):
    ids = {token["content"]: token["id"] for token in tiny_document["added_tokens"]}
    folder = write_checkpoint(
        generation_config={"eos_token_id": [ids["<|bos|>"], 99_999]}, config={"eos_token_id": ids["<|im_start|>"]}
    )
    tokenizer = Tokenizer(*build_from_directory(folder))
    # 99999 is a row of the model's padded vocabulary, not a token.
    assert tokenizer.eos_ids == {ids["<|bos|>"], ids["<|im_start|>"], ids["<|im_end|>"]}
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"


def test_named_tokens_from_the_older_file(write_checkpoint):
    files = {
        "tokenizer_config": {},
        "special_tokens_map": {"bos_token": {"content": "<|bos|>"}, "eos_token": "<|im_end|>"},
    }
    tokenizer = Tokenizer(*build_from_directory(write_checkpoint(**files)))
    assert tokenizer.special_tokens["bos_token"] == "<|bos|>"
    assert tokenizer.eos_ids == {tokenizer.find_id("<|im_end|>")}


def test_added_tokens_of_the_config_are_taken_over(write_checkpoint, tiny_document):
    last = max(token["id"] for token in tiny_document["added_tokens"])
    listed = {
        str(last + 1): {"content": "<|new|>", "special": True},
        str(last): {"content": "<think>", "special": True},
    }
    folder = write_checkpoint(tokenizer_config={"eos_token": "<|new|>", "added_tokens_decoder": listed})
    tokenizer = Tokenizer(*build_from_directory(folder))
    assert tokenizer.encode("<|new|>", allow_control=True) == [last + 1]
    assert tokenizer.is_special(last)
    listed = {str(last): {"content": "<other>", "special": False}}
    folder = write_checkpoint(tokenizer_config={"added_tokens_decoder": listed})
    with pytest.raises(TokenizerError, match=r"'<think>' in tokenizer\.json but '<other>'"):
        build_from_directory(folder)


@pytest.mark.parametrize("place", ["config", "list", "json", "jinja"])
def test_chat_template_is_found(place, write_checkpoint):
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "tools"}]
    value = {"config": CHATML, "list": named}.get(place, "overruled")
    folder = write_checkpoint(tokenizer_config={"chat_template": value})
    if place == "json":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHATML}), encoding="utf-8")
    if place == "jinja":
        (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    _, settings, template = build_from_directory(folder)
    assert template == CHATML
    assert settings["named_templates"] == ({"tool_use": "tools"} if place == "list" else {})


def test_order_of_keys_does_not_change_the_bytes(tiny_document, write_checkpoint):
    first = build_from_directory(write_checkpoint())
    turned = dict(reversed(tiny_document.items()))
    turned["model"] = dict(reversed(tiny_document["model"].items()))
    assert build_from_directory(write_checkpoint(turned)) == first


def test_damaged_directories_are_named(tmp_path, write_checkpoint, tiny_document):
    with pytest.raises(UnsupportedError, match=r"neither tokenizer\.json nor tokenizer\.model \(found: nothing\)"):
        build_from_directory(tmp_path)
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UnsupportedError, match=r"found: vocab\.json"):
        build_from_directory(tmp_path)
    with pytest.raises(TokenizerError, match=r"eos_token = '<nowhere>' is not in the vocabulary"):
        build_from_directory(write_checkpoint(tokenizer_config={"eos_token": "<nowhere>"}))
    with pytest.raises(TokenizerError, match=r"generation_config\.json: eos_token_id = 'x'"):
        build_from_directory(write_checkpoint(generation_config={"eos_token_id": "x"}))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(UnsupportedError, match=r"'BertProcessing'"):
        build_from_directory(write_checkpoint({**tiny_document, "post_processor": {"type": "BertProcessing"}}))
    with pytest.raises(UnsupportedError, match=r"model type 'WordPiece'"):
        build_from_directory(write_checkpoint({**tiny_document, "model": {"type": "WordPiece", "vocab": {}}}))
    with pytest.raises(TokenizerError, match=r"no model\.vocab"):
        build_from_directory(write_checkpoint({"version": "1.0"}))
    (tmp_path / "tokenizer.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not JSON"):
        build_from_directory(tmp_path)


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def pack(field: int, value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return varint(field << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(field << 3 | 5) + struct.pack("<f", value)
    return varint(field << 3) + varint(value)


def make_sentencepiece(pieces, scores, types, model_type: int = 2) -> bytes:
    entries = zip(pieces, scores, types, strict=True)
    body = b"".join(
        pack(1, pack(1, piece.encode()) + pack(2, float(score)) + pack(3, kind)) for piece, score, kind in entries
    )
    return body + pack(2, pack(3, model_type)) + pack(3, pack(3, 1) + pack(4, 0))


def test_sentencepiece_file_equals_the_gguf_vocabulary(tmp_path):
    metadata = read_vocabulary("llama-spm")
    columns = [metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type")]
    (tmp_path / "tokenizer.model").write_bytes(make_sentencepiece(*columns))
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer, expected = Tokenizer(*build_from_directory(tmp_path)), load_vocabulary("llama-spm")
    for text in ["Hello world", "  é\n🦙", "<s>", ""]:
        assert tokenizer.encode(text) == expected.encode(text)


def test_damaged_sentencepiece_files_are_named(tmp_path):
    whole = make_sentencepiece(["<unk>", "a", "b", "ab"], [0, -1, -2, -3], [2, 1, 1, 1])
    path = tmp_path / "tokenizer.model"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        try:
            build_from_directory(tmp_path)
        except (TokenizerError, UnsupportedError):
            continue
        pytest.fail(f"cut to {size} of {len(whole)} bytes it still loads")
    path.write_bytes(make_sentencepiece(["a"], [0], [1], model_type=1))
    with pytest.raises(UnsupportedError, match=r"model type 1; only BPE"):
        build_from_directory(tmp_path)
    path.write_bytes(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
    with pytest.raises(TokenizerError, match=r"damaged SentencePiece model"):
        build_from_directory(tmp_path)
