"""What is asked: requests of mixed lengths, settings and forms for the arrivals of a trace, the same ones every time.

Texts come from real data; knows the request format and the tokenizer's cuts, nothing of servers or answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.integration.load.trace import Arrival

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"holds": {"type": "boolean"}}, "required": ["holds"]}
# temperature 0 by name and by default; seeds at both ends of their range; None: the server draws a seed and tells it.
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"temperature": 0.7, "top_p": 0.9, "seed": 0},
    {"temperature": 1.0, "top_k": 40, "seed": None},
    {"temperature": 1.0, "seed": 2**64 - 1},
    {"temperature": 1.3, "min_p": 0.05, "seed": 11},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 0.8, "repetition_penalty": 1.1, "seed": 3},
    {"temperature": 0, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"temperature": 0.9, "n": 3, "seed": 2**32},
    {"temperature": 1.0, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "frequency_penalty": 0.3, "seed": 5},
    {"temperature": 0, "n": 2},
    {"temperature": 0.6, "logit_bias": {"40": 2.5, "50": -100}, "seed": 8},
    {"temperature": 1.0, "regex": "[a-z]{2,9}( [a-z]{2,9})*", "seed": 6},
    {"temperature": 0.7, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "seed": 4},
]
STOPS: list[list[str]] = [["."], [" the", "\n"], ["e", "ing "], ["?!", "a "]]


class Tokenizer(Protocol):
    """What is needed of exactlm's."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Request:
    """One request: its place in the workload, seconds from the start to its arrival, and what is sent where."""

    index: int
    second: float
    path: str
    body: dict[str, Any]

    @property
    def is_streaming(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Size:
    """How a trace is cut down: tokens are divided, then kept within limits; seconds are divided."""

    prompt_divisor: int
    max_prompt: int
    answer_divisor: int
    max_answer: int
    time_divisor: float
    settings: list[dict[str, Any]] = field(default_factory=lambda: SETTINGS)

    def prompt(self, arrival: Arrival) -> int:
        return min(max(arrival.num_prompt // self.prompt_divisor, 6), self.max_prompt)

    def answer(self, arrival: Arrival) -> int:
        return min(max(arrival.num_answer // self.answer_divisor, 1), self.max_answer)


def read_texts(find: Callable[[str], Path]) -> list[str]:
    """Passages, contracts and questions; `find` gives the path of a data file."""
    passages = [json.loads(line) for line in find("boolq_val.jsonl").read_text("utf-8").splitlines()[:120]]
    questions = [json.loads(line) for line in find("mt_bench_question.jsonl").read_text("utf-8").splitlines()]
    contracts = [find(f"contracts/contract_{i:02d}.txt").read_text("utf-8") for i in range(1, 21)]
    texts = [f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:" for row in passages]
    return texts + [row["turns"][0] for row in questions] + contracts


def make_requests(arrivals: Sequence[Arrival], texts: Sequence[str], tokenizer: Tokenizer, size: Size) -> list[Request]:
    """One request for each arrival. Half of every prompt is one of three prefaces, so that prefixes are shared."""
    chance = random.Random(20231116)
    prefaces = [tokenizer.encode(text[:4000]) for text in texts[-3:]]
    requests = []
    for index, arrival in enumerate(arrivals):
        length = size.prompt(arrival)
        preface = chance.choice(prefaces)[: length // 2]
        ids = preface + tokenizer.encode(chance.choice(texts)[:4000])[: length - len(preface)]
        settings = size.settings[index % len(size.settings)]
        body = {"max_tokens": size.answer(arrival)} | {k: v for k, v in settings.items() if v is not None}
        if chance.random() < 0.4:
            body["stop"] = chance.choice(STOPS)
        if chance.random() < 0.3:
            body["ignore_eos"] = True
        if chance.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        path = _ask(chance, body, ids, tokenizer)
        requests.append(Request(index, arrival.second / size.time_divisor, path, body))
    return requests


def _ask(chance: random.Random, body: dict[str, Any], ids: list[int], tokenizer: Tokenizer) -> str:
    """Puts the prompt into the body, as a text, ids, two prompts or a conversation; returns where it goes."""
    form = chance.choice(["text", "ids", "pair", "chat", "chat"])
    wants_logprobs = chance.random() < 0.4
    text = tokenizer.decode(ids)
    if form == "chat":
        body["messages"] = [{"role": "user", "content": text}]
        if wants_logprobs:
            body |= {"logprobs": True, "top_logprobs": chance.choice([0, 3])}
        return CHAT
    body["prompt"] = {"text": text, "ids": ids, "pair": [text, tokenizer.decode(ids[: len(ids) // 2 + 1])]}[form]
    if wants_logprobs:
        body["logprobs"] = chance.choice([0, 3])
    return COMPLETION
