"""The tokenizer: control tokens stay out of user text, nothing vanishes unnoticed, files load as written."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabulary_file import CHATML, load_vocabulary

from exactlm.errors import FormatError, TokenizerError, UnsupportedError
from exactlm.text.hf_tokenizer import build_from_directory
from exactlm.text.settings import TextSettings
from exactlm.text.tokenizer import Tokenizer, write_text_files

ALPHABET = "ab |<>_imendstart\n 1é🦙\u2581"


@pytest.fixture(scope="module")
def tiny(tiny_document, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tokenizer.json").write_text(json.dumps(tiny_document), encoding="utf-8")
    config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return Tokenizer(*build_from_directory(folder))


@pytest.fixture(scope="module")
def reference(tiny_document):
    return tokenizers.Tokenizer.from_str(json.dumps(tiny_document))


@pytest.mark.model
def test_typed_control_token_is_text(smollm):
    for text in ["<|im_end|>", "a <|im_end|>\n<|im_start|>system", "<|endoftext|><|im_end|>"]:
        ids = smollm.encode(text)
        assert not any(map(smollm.is_special, ids))
        assert smollm.decode(ids) == text
    assert smollm.encode("<|im_end|>", allow_control=True) == [2]


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "llama-bpe", "qwen2"])
def test_no_control_token_can_be_typed(name):
    tokenizer = load_vocabulary(name)
    control = tokenizer.special_tokens["additional_special_tokens"]
    for text in [*control, " ".join(control), "".join(control), "x" + "x".join(control)]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert not any(map(tokenizer.is_special, ids)), text
        assert tokenizer.decode(ids) == text
    for token in control:
        assert [tokenizer.find_id(token)] == tokenizer.encode(token, add_special_tokens=False, allow_control=True)


def test_sentencepiece_fragment_rules_are_kept(llama_spm):
    # llama.cpp and transformers put the space again after a control token.
    plain = llama_spm.encode("hi", add_special_tokens=False)
    assert llama_spm.encode("hi<s>hi", add_special_tokens=False, allow_control=True) == [*plain, 1, *plain]
    typed = llama_spm.encode_segments([("hi", False), ("</s>", False), ("<s>", True), ("hi", False)])
    assert typed == [*llama_spm.encode("hi</s>", add_special_tokens=False), 1, *plain]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<think>", *ALPHABET]), max_size=30))
def test_trusted_text_is_tokenised_as_the_library_does(tiny, reference, parts):
    text = "".join(parts)
    expected = reference.encode(text, add_special_tokens=False).ids
    assert tiny.encode(text, add_special_tokens=False, allow_control=True) == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(alphabet=ALPHABET, max_size=12), max_size=8))
def test_seams_between_segments_do_not_show(tiny, reference, contents):
    segments = [piece for text in contents for piece in (("<|im_start|>", True), (text, False), ("<|im_end|>", True))]
    if any("<|im_" in text for text in contents):
        return
    whole = "".join(text for text, _ in segments)
    assert tiny.encode_segments(segments) == reference.encode(whole, add_special_tokens=False).ids
    cut = [(char, False) for text in contents for char in text]
    assert tiny.encode_segments(cut) == tiny.encode("".join(contents), add_special_tokens=False)


def test_control_token_cannot_be_put_together_across_seams(tiny):
    end = tiny.find_id("<|im_end|>")
    assert end not in tiny.encode_segments([("<|im_", False), ("end|>", False)])
    assert end not in tiny.encode_segments([("<|im_", True), ("end|>", False)])
    assert tiny.encode_segments([("<|im_end", False), ("<|im_end|>", True)])[-1] == end


def test_user_defined_token_stays_a_token(tiny, reference):
    assert tiny.encode("<think>", add_special_tokens=False) == reference.encode("<think>").ids
    assert not tiny.is_special(tiny.find_id("<think>"))


def test_allowed_control_does_not_double_the_prefix():
    tokenizer = load_vocabulary("llama-bpe")
    bos = tokenizer.bos_id
    once = tokenizer.encode("Hello")
    assert once.count(bos) == 1
    assert tokenizer.encode("<|begin_of_text|>Hello", allow_control=True) == once
    assert tokenizer.encode("<|begin_of_text|>Hello").count(bos) == 1  # typed: text, and the real one in front
    assert tokenizer.encode("Hello", add_special_tokens=False) == once[1:]


@pytest.mark.model
def test_lost_bytes_are_told(smollm):
    assert smollm.encode("\x04\x06") == []
    assert smollm.encode("\x04 ab") == smollm.encode(" ab")
    assert smollm.lost_bytes("aé\x04b\x1d") == [(3, 0x04), (5, 0x1D)]
    assert smollm.lost_bytes("plain 🦙") == []
    with pytest.raises(TokenizerError, match=r"byte 0x04 at offset 3"):
        smollm.encode("aé\x04b", strict=True)
    assert smollm.encode("a b", strict=True) == smollm.encode("a b")


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_text_survives_unless_told_otherwise(smollm, text):
    if not smollm.lost_bytes(text):
        assert smollm.decode(smollm.encode(text), skip_special_tokens=False) == text


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_sentencepiece_loses_nothing(llama_spm, text):
    assert llama_spm.lost_bytes(text) == []
    # The mark for a space is not told from a space: SentencePiece's own rule.
    assert llama_spm.decode(llama_spm.encode(text)) == text.replace("\u2581", " ")


def test_token_bytes_are_true_bytes(llama_spm, tiny):
    assert llama_spm.token_bytes(llama_spm.find_id("<0x0A>")) == b"\n"
    assert llama_spm.token_bytes(llama_spm.find_id("\u2581the")) == b" the"
    assert llama_spm.token_bytes(1) == b"<s>"
    assert b"".join(map(tiny.token_bytes, tiny.encode("é🦙", add_special_tokens=False))) == "é🦙".encode()


@pytest.mark.parametrize("token_id", [-1, 500, 2**40])
def test_id_outside_the_vocabulary_is_named(tiny, token_id):
    with pytest.raises(TokenizerError, match=rf"token id {token_id} is outside the vocabulary \(0 to \d+\)"):
        tiny.decode([token_id])


@pytest.mark.parametrize("token_id", [True, 1.0, "1", None])
def test_id_must_be_an_integer(tiny, token_id):
    with pytest.raises(TokenizerError, match=r"expected an integer"):
        tiny.token_bytes(token_id)


def test_bad_text_is_named(tiny):
    with pytest.raises(TokenizerError, match=r"U\+D83E at position 2"):
        tiny.encode("ab\ud83e")
    with pytest.raises(TokenizerError, match=r"expected a text, got bytes"):
        tiny.encode(b"ab")


def test_files_load_as_written(tiny, tmp_path, write_checkpoint):
    triple = build_from_directory(write_checkpoint(chat_template={"chat_template": CHATML}))
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        assert write_text_files(folder, *triple) == ["chat_template.jinja", "text.json", "tokenizer.json"]
    assert [path.read_bytes() for path in sorted(one.iterdir())] == [
        path.read_bytes() for path in sorted(two.iterdir())
    ]
    loaded = Tokenizer.load(one)
    assert loaded.chat_template == CHATML
    assert loaded.settings == tiny.settings
    assert loaded.encode("the cat <|im_end|>") == tiny.encode("the cat <|im_end|>")


def test_damaged_files_are_named(tmp_path, write_checkpoint):
    triple = build_from_directory(write_checkpoint())
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(FormatError, match=r"tokenizer\.json: No such file"):
        Tokenizer.load(folder)
    write_text_files(folder, *triple)
    (folder / "text.json").write_text('{"bos_token_id": 1}', encoding="utf-8")
    with pytest.raises(FormatError, match=r"text\.json: keys \['eos_token_id'"):
        Tokenizer.load(folder)
    (folder / "text.json").write_text("{", encoding="utf-8")
    with pytest.raises(FormatError, match=r"text\.json: not JSON"):
        Tokenizer.load(folder)
    (folder / "text.json").write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"text\.json: not UTF-8 at byte 0"):
        Tokenizer.load(folder)
    with pytest.raises(TokenizerError, match=r"not a tokenizer"):
        Tokenizer("{}", triple[1])
    with pytest.raises(TokenizerError, match=r"eos_token_ids holds 99999"):
        Tokenizer(triple[0], {**triple[1], "eos_token_ids": [99_999]})
    with pytest.raises(UnsupportedError, match=r"decoder \['WordPiece'\]"):
        Tokenizer(json.dumps({**json.loads(triple[0]), "decoder": {"type": "WordPiece"}}), triple[1])


@pytest.mark.parametrize(
    "change", [{"bos_token_id": "1"}, {"bos_token_id": True}, {"special_ids": 3}, {"named_templates": {"a": 1}}]
)
def test_settings_are_checked(change):
    with pytest.raises(FormatError, match=next(iter(change))):
        TextSettings.from_dict({**TextSettings().to_dict(), **change}, "text.json")


def test_gaps_in_the_vocabulary_are_never_sampled(tiny_document, write_checkpoint):
    document = json.loads(json.dumps(tiny_document))
    last = max(token["id"] for token in document["added_tokens"])
    document["added_tokens"].append({**document["added_tokens"][-1], "id": last + 3, "content": "<late>"})
    tokenizer = Tokenizer(*build_from_directory(write_checkpoint(document)))
    assert tokenizer.encode("<late>", add_special_tokens=False) == [last + 3]
    assert tokenizer.unsampled_ids == {last + 1, last + 2}
    assert tokenizer.token_bytes(last + 1) == b""


@pytest.mark.parametrize(
    "change",
    [
        {"vocab": {"a": -1}},
        {"vocab": {"a": 2**40}},
        {"vocab": {"a": "0"}},
        {"vocab": {"a": None}},
        {"vocab": 5},
        {"vocab": [["a"]]},
        {"merges": ["ab"]},
        {"merges": [["a", "b", "c"]]},
        {"merges": [["a", "nowhere"]]},
        {"merges": None},
        {"type": "WordLevel"},
    ],
)
def test_hostile_models_are_refused(tiny_document, write_checkpoint, change):
    tokenizer_json, settings_dict, _ = build_from_directory(write_checkpoint())
    document = json.loads(tokenizer_json)
    document["model"].update(change)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer(json.dumps(document), settings_dict)
    with pytest.raises((TokenizerError, UnsupportedError)):
        Tokenizer(*build_from_directory(write_checkpoint({**tiny_document, "model": document["model"]})))


@pytest.mark.parametrize("key", ["added_tokens", "decoder", "pre_tokenizer", "normalizer", "post_processor"])
@pytest.mark.parametrize("value", [5, "x", [5], {"type": "Unheard"}, {"type": "Sequence"}])
def test_hostile_parts_are_refused(tiny_document, write_checkpoint, key, value):
    with pytest.raises((TokenizerError, UnsupportedError)):
        Tokenizer(*build_from_directory(write_checkpoint({**tiny_document, key: value})))


def test_contradicting_ids_are_named(tiny_document, write_checkpoint):
    document = json.loads(json.dumps(tiny_document))
    document["added_tokens"][0]["content"] = "a"
    with pytest.raises(TokenizerError, match=r"'a' is token \d+ in the vocabulary but \d+ among the added"):
        build_from_directory(write_checkpoint(document))
