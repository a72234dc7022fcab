"""What every request must be answered: the same request alone in the plain loop, and what differs from that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exactlm import LLM, SamplingParams
from tests.integration.load.client import Answer, Choice
from tests.integration.load.workload import CHAT, Request

SAMPLING = (
    *("n", "max_tokens", "temperature", "top_k", "top_p", "min_p", "stop", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "regex"),
)


class Reference:
    """Answers of a model, one request at a time, each made once."""

    def __init__(self, model: Path) -> None:
        self.llm = LLM(model, threads=1)
        self._known: dict[str, Answer] = {}

    def answer(self, request: Request, seed: int | None) -> Answer:
        """The answer with the seed that the server told."""
        body = {k: v for k, v in request.body.items() if k not in ("stream", "stream_options")}
        key = json.dumps([request.path, body, seed], sort_keys=True)
        if key not in self._known:
            self._known[key] = self._make(request, seed)
        return self._known[key]

    def _make(self, request: Request, seed: int | None) -> Answer:
        params = make_params(request, seed)
        answer = Answer(seed=seed, num_tokens=0, status=200)
        for prompt in self._prompts(request):
            for made in self.llm.generate_plain(prompt, params).outputs:
                logprobs = None
                if made.logprobs is not None:
                    logprobs = [entry[token] for entry, token in zip(made.logprobs, made.token_ids, strict=True)]
                answer.choices.append(Choice(made.text, made.finish_reason, made.digest, logprobs))
                answer.num_tokens = (answer.num_tokens or 0) + len(made.token_ids)
        return answer

    def _prompts(self, request: Request) -> Sequence[str | list[int]]:
        if request.path == CHAT:
            return [self.llm.chat_ids(request.body["messages"])]
        prompt = request.body["prompt"]
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


def make_params(request: Request, seed: int | None) -> SamplingParams:
    """The sampling parameters that the body stands for. Written apart from the server's reading of it on purpose."""
    body = request.body
    given: dict[str, Any] = {name: body[name] for name in SAMPLING if name in body}
    if "stop" in given:
        given["stop"] = tuple(given["stop"])
    if "logit_bias" in body:
        given["logit_bias"] = {int(token): value for token, value in body["logit_bias"].items()}
    if "response_format" in body:
        given["json_schema"] = body["response_format"]["json_schema"]["schema"]
    logprobs = body.get("logprobs")
    if request.path == CHAT and logprobs is not None:
        logprobs = body["top_logprobs"]
    return SamplingParams(**given, seed=seed, logprobs=logprobs)


def find_differences(requests: Sequence[Request], answers: Sequence[Answer], reference: Reference) -> list[str]:
    """One line for each answer that is not, in every part, what the request alone gets."""
    lines = []
    for request, answer in zip(requests, answers, strict=True):
        told = f"request {request.index} ({request.path}, {json.dumps(request.body)[:300]})"
        if answer.failure is not None:
            lines.append(f"{told}: status {answer.status}, {answer.failure}")
            continue
        asked = request.body.get("seed")
        if asked is not None and answer.seed != asked:
            lines.append(f"{told}: seed {asked} was asked for, {answer.seed} was used")
            continue
        expected = reference.answer(request, answer.seed)
        if request.is_streaming and "stream_options" not in request.body:
            answer.num_tokens = expected.num_tokens
        if (answer.choices, answer.num_tokens) != (expected.choices, expected.num_tokens):
            lines.append(f"{told}: got {answer}, alone it is {expected}")
    return lines
