"""Log-probabilities in OpenAI's formats: true bytes, nothing lost where two tokens look the same, offsets that fit."""

from __future__ import annotations

import json

import pytest

from exactlm import LLM, SamplingParams
from exactlm.server.logprob import CompletionLogprobs, make_chat_logprobs, name_token

HALF, OTHER_HALF = 0xE2, 0x80  # byte tokens of the tiny vocabulary, each a part of a character


def byte_token(llm: LLM, value: int) -> int:
    return next(i for i in range(256) if llm.tokenizer.token_bytes(i) == bytes([value]))


def test_parts_of_characters_are_named_by_their_bytes(llm: LLM) -> None:
    half = byte_token(llm, HALF)
    assert name_token(llm.tokenizer, half) == "bytes:\\xe2"
    entry = make_chat_logprobs(llm.tokenizer, [half], [{half: -0.5}], 1)["content"][0]
    assert entry["bytes"] == [HALF]
    assert bytes(entry["bytes"]) == llm.tokenizer.token_bytes(half)


def test_tokens_that_look_the_same_both_appear(llm: LLM) -> None:
    # Both decode to U+FFFD alone: a dictionary by text would lose one.
    first, second = byte_token(llm, HALF), byte_token(llm, OTHER_HALF)
    assert llm.tokenizer.decode([first]) == llm.tokenizer.decode([second])
    known = {first: -0.25, second: -1.5}
    top = make_chat_logprobs(llm.tokenizer, [first], [known], 2)["content"][0]["top_logprobs"]
    assert [(entry["bytes"], entry["logprob"]) for entry in top] == [([HALF], -0.25), ([OTHER_HALF], -1.5)]
    (named,) = CompletionLogprobs(llm.tokenizer).add([first], [known])["top_logprobs"]
    assert sorted(named.values()) == [-1.5, -0.25]


def test_the_number_of_alternatives_is_the_one_asked_for(llm: LLM) -> None:
    known = {5: -0.5, 6: -1.0, 9: -7.0}  # 9 was chosen beside the two likeliest
    for count in (0, 1, 2):
        entry = make_chat_logprobs(llm.tokenizer, [9], [known], count)["content"][0]
        assert (entry["logprob"], len(entry["top_logprobs"])) == (-7.0, count)


def test_minus_infinity_stays_out_of_the_json(llm: LLM) -> None:
    made = make_chat_logprobs(llm.tokenizer, [5], [{5: float("-inf")}], 1)
    assert json.loads(json.dumps(made, allow_nan=False))["content"][0]["logprob"] == -9999.0


@pytest.mark.parametrize("num_pieces", [1, 2, 5])
def test_offsets_point_into_the_text_however_it_is_cut(llm: LLM, num_pieces: int) -> None:
    text = "the caf\u00e9 \u2014 and so"
    ids = llm.tokenizer.encode(text)
    values = [{i: -1.0} for i in ids]
    writer, offsets = CompletionLogprobs(llm.tokenizer), list[int]()
    size = -(-len(ids) // num_pieces)
    for begin in range(0, len(ids), size):
        offsets += writer.add(ids[begin : begin + size], values[begin : begin + size])["text_offset"]
    assert offsets == sorted(offsets)
    for token_id, offset in zip(ids, offsets, strict=True):
        data = llm.tokenizer.token_bytes(token_id)
        assert (
            data in text[offset:].encode()[: len(data)]
            or offset == text.index("\u00e9")
            or offset == text.index("\u2014")
        )


def test_answers_begin_after_the_prompt(llm: LLM) -> None:
    result = llm.generate(["the thing"], SamplingParams(max_tokens=4, logprobs=1, prompt_logprobs=1))[0]
    answer = result.outputs[0]
    assert result.prompt_logprobs is not None
    assert answer.logprobs is not None
    writer = CompletionLogprobs(llm.tokenizer)
    prompt = writer.add_prompt(result.prompt_token_ids, result.prompt_logprobs, "the thing")
    made = writer.add(answer.token_ids, answer.logprobs)
    assert prompt["token_logprobs"][0] is None
    assert prompt["top_logprobs"][0] is None
    assert prompt["token_logprobs"] == llm.score(result.prompt_token_ids)
    assert "".join(prompt["tokens"]) == "the thing"
    assert made["text_offset"][0] == len("the thing")
