"""Answers in all the shapes that servers of OpenAI's API have."""

from __future__ import annotations

import json

import pytest

from exactlm.audit.response import read_stream, read_whole


def test_plain_completion() -> None:
    told = {"tokens": ["a", " b"], "token_logprobs": [-1, -0.5]}
    body = {"choices": [{"text": "a b", "logprobs": told, "finish_reason": "length"}], "exactlm": {"digests": ["d"]}}
    answer = read_whole({**body, "usage": {"prompt_tokens_details": {"cached_tokens": 3}}})
    assert (answer.text, answer.tokens, answer.logprobs) == ("a b", ["a", " b"], [-1.0, -0.5])
    assert (answer.digest, answer.num_cached, answer.finish_reason) == ("d", 3, "length")


def test_chat_completion() -> None:
    told = {"content": [{"token": "a", "logprob": -1.5}, {"token": "b", "logprob": None}]}
    answer = read_whole({"choices": [{"message": {"content": "ab"}, "logprobs": told, "finish_reason": "stop"}]})
    assert (answer.text, answer.tokens, answer.logprobs) == ("ab", ["a", "b"], [-1.5, None])
    assert read_whole({"choices": [{"message": {"content": None}}]}).text == ""


def test_nothing_told() -> None:
    for logprobs in (None, {}, {"tokens": ["a"], "token_logprobs": []}, [], {"content": None}):
        answer = read_whole({"choices": [{"text": "x", "logprobs": logprobs}]})
        assert (answer.tokens, answer.logprobs, answer.digest, answer.num_cached) == (None, None, None, None)


@pytest.mark.parametrize("body", [None, [], {}, {"choices": []}, {"choices": [1]}, {"error": "x"}])
def test_no_answer(body: object) -> None:
    with pytest.raises(ValueError, match="no choices"):
        read_whole(body)


@pytest.mark.parametrize("choice", [{"text": 5}, {"message": {"content": [{"text": "x"}]}}, {"finish_reason": {}}])
def test_what_is_no_text_is_told(choice: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is no text"):
        read_whole({"choices": [choice]})


def events(*bodies: object) -> list[str]:
    return [f"data: {json.dumps(body)}" for body in bodies]


def test_stream() -> None:
    first = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    second = {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -1}]}}]}
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 2}}}
    answer = read_stream([": ping", "", *events(first, second, last, usage), "data: [DONE]", "data: no more"])
    assert (answer.text, answer.tokens, answer.finish_reason, answer.num_cached) == ("a", ["a"], "stop", 2)


def test_streams_that_fail() -> None:
    begin = {"choices": [{"text": "a"}]}
    with pytest.raises(ValueError, match="without a finish_reason"):
        read_stream(events(begin))
    with pytest.raises(ValueError, match="boom"):
        read_stream(events(begin, {"error": {"message": "boom"}}))
    with pytest.raises(ValueError, match="Expecting"):
        read_stream(["data: {"])
    for data in ("[]", "5", "null", '"x"'):
        with pytest.raises(ValueError, match="no JSON object"):
            read_stream([f"data: {data}"])
