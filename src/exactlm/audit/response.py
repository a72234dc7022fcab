"""Reads answers of OpenAI's API: plain and chat completions, whole and streamed. Knows no network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from exactlm.audit.body import read_json
from exactlm.audit.target import Answer

MAX_LOGPROB = 1e300


def read_whole(body: Any) -> Answer:
    """A response that came in one piece. ValueError if it is none."""
    choice = _choice_of(body)
    if choice is None:
        raise ValueError(f"the response has no choices: {json.dumps(body)[:200]}")
    answer = Answer()
    _take(answer, choice, choice.get("message"))
    _take_rest(answer, body)
    return answer


def read_stream(lines: Iterable[str]) -> Answer:
    """The events of a stream, joined. ValueError for an error event, for what is no event, and for an early end."""
    answer = Answer()
    for line in lines:
        if not line.startswith("data:"):
            continue  # comments, and names of events
        data = line[5:].strip()
        if data == "[DONE]":
            break
        event = read_json(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event is no JSON object: {data[:200]}")
        if "error" in event:
            raise ValueError(f"error in the stream: {json.dumps(event['error'])[:200]}")
        choice = _choice_of(event)
        if choice is not None:
            _take(answer, choice, choice.get("delta"))
        _take_rest(answer, event)
    if answer.finish_reason is None:
        raise ValueError("the stream ended without a finish_reason")
    return answer


def _choice_of(body: Any) -> dict[str, Any] | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


def _take(answer: Answer, choice: dict[str, Any], message: Any) -> None:
    """Adds a choice, or a piece of one, to the answer."""
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    reason = choice.get("finish_reason")
    if not isinstance(text, (str, type(None))) or not isinstance(reason, (str, type(None))):
        raise ValueError(f"text or finish_reason of the answer is no text: {json.dumps(choice)[:200]}")
    answer.text += text or ""
    answer.finish_reason = reason or answer.finish_reason
    tokens, logprobs = _read_logprobs(choice.get("logprobs"))
    if tokens:
        answer.tokens = [*(answer.tokens or []), *tokens]
        answer.logprobs = [*(answer.logprobs or []), *logprobs]


def _read_logprobs(told: Any) -> tuple[list[str], list[float | None]]:
    """Both shapes: {"content": [{"token", "logprob"}]} and {"tokens", "token_logprobs"}."""
    if not isinstance(told, dict):
        return [], []
    if isinstance(told.get("content"), list):
        entries = [entry for entry in told["content"] if isinstance(entry, dict)]
        return [str(e.get("token")) for e in entries], [_number(e.get("logprob")) for e in entries]
    tokens, values = told.get("tokens"), told.get("token_logprobs")
    if isinstance(tokens, list) and isinstance(values, list) and len(tokens) == len(values):
        return [str(token) for token in tokens], [_number(value) for value in values]
    return [], []


def _take_rest(answer: Answer, body: dict[str, Any]) -> None:
    """Counts of cached tokens, and exactlm's own digest."""
    usage = body.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        answer.num_cached = details["cached_tokens"]
    ours = body.get("exactlm")
    digests = ours.get("digests") if isinstance(ours, dict) else None
    if isinstance(digests, list) and digests and isinstance(digests[0], str):
        answer.digest = digests[0]


def _number(value: Any) -> float | None:
    """None for what is no log-probability: NaN, infinity, and what no difference could be told of."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < MAX_LOGPROB else None
