"""Streaming: the pieces are whole characters and join to exactly the decoded text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlm.errors import TokenizerError
from exactlm.text.stream import StreamDecoder

SAMPLES = ["Plain text.", "🦙🦙 two llamas", "日本語 e\u0301 👩‍👩‍👧‍👦", " leading", "a\u2581b", "\x00\x7f"]


def stream(tokenizer, ids, **options):
    decoder = StreamDecoder(tokenizer, **options)
    return [*(decoder.push(token_id) for token_id in ids), decoder.finish()]


@pytest.mark.model
@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_join_to_the_text(text, smollm):
    ids = smollm.encode(text)
    pieces = stream(smollm, ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("text", SAMPLES[:4])
def test_sentencepiece_pieces_join_to_the_text(text, llama_spm):
    ids = llama_spm.encode(text)
    assert "".join(stream(llama_spm, ids)) == text
    assert "".join(stream(llama_spm, ids, continuation=True)) == " " + text
    assert llama_spm.decode(ids, continuation=True) == " " + text


@pytest.mark.model
def test_emoji_comes_out_whole_with_its_last_token(smollm):
    ids = smollm.encode("🦙")
    assert len(ids) > 1
    assert stream(smollm, ids) == [""] * (len(ids) - 1) + ["🦙", ""]


@pytest.mark.model
def test_cut_inside_a_character_gives_one_replacement(smollm):
    ids = smollm.encode("a🦙")[:-1]
    assert stream(smollm, ids)[-1] == "\ufffd"
    assert "".join(stream(smollm, ids)) == smollm.decode(ids) == "a\ufffd"


@pytest.mark.model
def test_tokens_that_are_no_text_alone(smollm):
    lone = [
        token_id
        for token_id in range(smollm.num_tokens)
        if smollm.token_bytes(token_id).decode("utf-8", errors="ignore").encode() != smollm.token_bytes(token_id)
    ]
    assert len(lone) == 313
    for token_id in lone:
        assert "".join(stream(smollm, [token_id])) == smollm.decode([token_id])
    assert "".join(stream(smollm, lone)) == smollm.decode(lone)


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 49_151) | st.integers(17, 400), max_size=40), st.booleans())
def test_any_ids_join_to_the_decoded_text(smollm, ids, skips):
    assert "".join(stream(smollm, ids, skip_special_tokens=skips)) == smollm.decode(ids, skip_special_tokens=skips)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 31_999) | st.integers(0, 300), max_size=40), st.booleans())
def test_any_sentencepiece_ids_join_to_the_decoded_text(llama_spm, ids, skips):
    assert "".join(stream(llama_spm, ids, skip_special_tokens=skips)) == llama_spm.decode(
        ids, skip_special_tokens=skips
    )


def test_id_outside_the_vocabulary_is_named(llama_spm):
    with pytest.raises(TokenizerError, match=r"token id 32000 is outside the vocabulary \(0 to 31999\)"):
        StreamDecoder(llama_spm).push(32_000)
