"""Tokenizers rebuilt from GGUF metadata give the ids that llama.cpp records for them."""

import json
from typing import Any

import pytest
import tokenizers
from vocabulary_file import DATA, REAL_MODEL, load_vocabulary, need, read_metadata, read_vocabulary

from exactlm.errors import TokenizerError, UnsupportedError
from exactlm.text.alphabet import BYTE_TO_CHAR
from exactlm.text.gguf_tokenizer import build_from_gguf
from exactlm.text.pretokenizer import find_pretokenizer
from exactlm.text.tokenizer import Tokenizer


def make_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary without merges; a change of None removes the key."""
    tokens = [*BYTE_TO_CHAR, "ab", "<|im_end|>", "<tool>", "[PAD259]"]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * 257 + [3, 4, 4],
        "merges": ["a b"],
        "eos_token_id": 257,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "llama-bpe", "qwen2"])
def test_recorded_strings_give_recorded_ids(name):
    tokenizer = load_vocabulary(name)
    base = DATA / "tokenizers" / f"ggml-vocab-{name}.gguf"
    texts = need(base.with_suffix(".gguf.inp")).read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = need(base.with_suffix(".gguf.out")).read_text(encoding="utf-8").split("\n")
    assert len(texts) == len(lines) == 47
    for text, line in zip(texts, lines, strict=True):
        ids = [int(word) for word in line.split()]
        assert tokenizer.encode(text, add_special_tokens=False) == ids, repr(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.model
def test_real_vocabulary(smollm):
    text = need(DATA / "wiki.test.raw").read_bytes().decode("utf-8")
    ids = smollm.encode(text)
    assert len(ids) == 303_415
    assert smollm.decode(ids) == text
    assert smollm.settings.prefix_ids == []
    assert (smollm.bos_id, smollm.eos_ids, smollm.num_tokens) == (1, {0, 2}, 49_152)
    # These 21 bytes have no token and would vanish.
    missing = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}
    known = {smollm.token_bytes(token_id) for token_id in range(smollm.num_tokens)}
    assert {value for value in range(256) if bytes([value]) not in known} == missing


@pytest.mark.model
def test_building_twice_gives_the_same_bytes():
    metadata = read_metadata(need(REAL_MODEL))
    shuffled = dict(reversed(list(metadata.items())))
    assert build_from_gguf(metadata) == build_from_gguf(shuffled)


@pytest.mark.parametrize(("name", "bos", "ends"), [("llama-bpe", 128_000, {128_001, 128_009}), ("llama-spm", 1, {2})])
def test_family_adds_bos_where_the_file_is_silent(name, bos, ends):
    metadata = {key: value for key, value in read_vocabulary(name).items() if not key.endswith("add_bos_token")}
    tokenizer = Tokenizer(*build_from_gguf(metadata))
    assert tokenizer.encode("Hello")[0] == bos
    assert tokenizer.eos_ids == ends
    tokenizer = Tokenizer(*build_from_gguf({**metadata, "tokenizer.ggml.add_bos_token": False}))
    assert tokenizer.encode("Hello")[0] != bos


def test_padding_is_never_sampled_nor_typed():
    tokenizer = load_vocabulary("qwen2")
    assert tokenizer.unsampled_ids == frozenset(range(151_646, 151_936))
    assert not tokenizer.unsampled_ids & set(tokenizer.encode("[PAD151646]", allow_control=True))


def test_token_types():
    tokenizer = Tokenizer(*build_from_gguf(make_metadata()))
    assert tokenizer.encode("ab<tool>b<|im_end|>")[:3] == [256, 258, BYTE_TO_CHAR.index("b")]
    assert 257 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.encode("<|im_end|>", allow_control=True) == [257]
    assert tokenizer.unsampled_ids == {259}


def test_end_token_is_control_whatever_its_type_says():
    tokenizer = Tokenizer(*build_from_gguf(make_metadata(token_type=None)))
    assert tokenizer.is_special(257)
    assert tokenizer.encode("<|im_end|>", allow_control=True) == [257]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "x 1234", ["x", " 1234"]),
        ("smollm", "x 1234", ["x", " ", "1", "2", "3", "4"]),
        ("llama-bpe", "x 1234", ["x", " ", "123", "4"]),
        ("qwen2", "x 1234", ["x", " ", "1", "2", "3", "4"]),
        ("default", "x 1234", ["x", " ", "123", "4"]),
        ("gpt-2", "IT'S", ["IT", "'", "S"]),
        ("llama-bpe", "IT'S", ["IT", "'S"]),
        ("tekken", "fooBar", ["foo", "Bar"]),
        ("gpt-4o", "fooBar's", ["foo", "Bar's"]),
        ("deepseek-v3", "a漢字1234", ["a", "漢字", "123", "4"]),
    ],
)
def test_pretokenizer_splits(pre, text, words):
    document = {"version": "1.0", "added_tokens": [], "pre_tokenizer": find_pretokenizer(pre).to_json()}
    document["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    split = tokenizers.Tokenizer.from_str(json.dumps(document)).pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in split] == words


def test_unknown_pretokenizer_is_named():
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre = 'tomorrow'.*qwen2"):
        build_from_gguf(make_metadata(pre="tomorrow"))
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre is missing"):
        build_from_gguf(make_metadata(pre=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"model": None}, r"model is missing"),
        ({"model": 7}, r"model = 7 is a int"),
        ({"tokens": None}, r"tokens is missing"),
        ({"tokens": []}, r"is empty"),
        ({"tokens": ["a", "a"], "token_type": None, "merges": [], "eos_token_id": 0}, r"'a' twice"),
        ({"tokens": ["a", 5]}, r"tokens\[1\] = 5"),
        ({"token_type": [1]}, r"token_type has 1 entries for 260"),
        ({"merges": None}, r"merges is missing"),
        ({"merges": ["ab"]}, r"merges\[0\] = 'ab'"),
        ({"merges": ["a b", "a c"]}, r"merges\[1\] = 'a c'"),
        ({"eos_token_id": 260}, r"eos_token_id = 260 is outside the vocabulary of 260"),
        ({"eos_token_id": -1}, r"eos_token_id = -1"),
        ({"add_bos_token": True}, r"bos_token_id is missing"),
        ({"add_bos_token": 1}, r"add_bos_token = 1 is a int"),
    ],
)
def test_damaged_metadata_is_named(changes, message):
    with pytest.raises((TokenizerError, UnsupportedError), match=message):
        build_from_gguf(make_metadata(**changes))


def test_sentencepiece_scores_must_be_numbers():
    metadata = dict(read_vocabulary("llama-spm"))
    scores = list(metadata["tokenizer.ggml.scores"])
    scores[300] = float("nan")
    with pytest.raises(TokenizerError, match=r"score of piece 300"):
        build_from_gguf({**metadata, "tokenizer.ggml.scores": scores})
    with pytest.raises(TokenizerError, match=r"31999 scores"):
        build_from_gguf({**metadata, "tokenizer.ggml.scores": scores[1:]})


def test_extra_spaces_are_squeezed_where_the_file_says_so():
    metadata = {**read_vocabulary("llama-spm"), "tokenizer.ggml.remove_extra_whitespaces": True}
    squeezing = Tokenizer(*build_from_gguf(metadata))
    keeping = load_vocabulary("llama-spm")
    assert squeezing.encode("  a   b ") == keeping.encode("a b") != keeping.encode("  a   b ")
