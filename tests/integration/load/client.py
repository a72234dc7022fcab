"""Asks a server and takes its answers apart, streamed or whole; may leave before the end.

Plain HTTP by httpx: knows OpenAI's formats and the `exactlm` extension, not the package.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.integration.load.workload import CHAT, Request

TIMEOUT_S = 600.0


@dataclass
class Choice:
    """One answer. `logprobs`: of its tokens, if asked for."""

    text: str = ""
    finish_reason: str | None = None
    digest: str | None = None
    logprobs: list[float] | None = None


@dataclass
class Answer:
    """What a request got. `failure`: why there is no answer; then nothing else counts."""

    choices: list[Choice] = field(default_factory=list)
    seed: int | None = None
    num_tokens: int | None = None
    status: int = 0
    failure: str | None = None


def connect(url: str, key: str | None = None) -> httpx.AsyncClient:
    """A client without a limit of its own on connections."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, headers=headers, trust_env=False)


async def ask(client: httpx.AsyncClient, request: Request) -> Answer:
    """The answer of one request; a failure is told, not raised."""
    try:
        if request.is_streaming:
            return await _ask_streaming(client, request)
        response = await client.post(request.path, json=request.body)
        if response.status_code != 200:
            return Answer(status=response.status_code, failure=response.text[:500])
        return _read_whole(response.json(), request)
    except (httpx.HTTPError, json.JSONDecodeError, KeyError, IndexError) as error:
        return Answer(failure=f"{type(error).__name__}: {error}")


async def leave(client: httpx.AsyncClient, request: Request, after_s: float, after_events: int | None = None) -> bool:
    """Asks, and hangs up after so many seconds or events of the stream, whichever is first; True if it did.
    A refusal or a broken connection is raised: httpx.HTTPError."""

    async def listen() -> None:
        if not request.is_streaming:
            (await client.post(request.path, json=request.body)).raise_for_status()
            return
        seen = 0
        async with client.stream("POST", request.path, json=request.body) as response:
            response.raise_for_status()
            async for _ in read_events(response):
                seen += 1
                if seen == after_events:
                    raise TimeoutError

    try:
        await asyncio.wait_for(listen(), after_s)
    except (TimeoutError, asyncio.TimeoutError):
        return True
    return False


async def read_events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a stream up to [DONE]; httpx.RemoteProtocolError if that never comes."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    raise httpx.RemoteProtocolError("the stream ended without [DONE]")


async def _ask_streaming(client: httpx.AsyncClient, request: Request) -> Answer:
    answer, choices = Answer(status=200), dict[int, Choice]()
    digests: list[str] = []
    async with client.stream("POST", request.path, json=request.body) as response:
        if response.status_code != 200:
            await response.aread()
            return Answer(status=response.status_code, failure=response.text[:500])
        async for event in read_events(response):
            if "error" in event:
                return Answer(status=200, failure=json.dumps(event["error"]))
            for piece in event["choices"]:
                _add(choices.setdefault(piece["index"], Choice()), piece, request)
            if event.get("usage"):
                answer.num_tokens = event["usage"]["completion_tokens"]
            if "exactlm" in event:
                digests, answer.seed = event["exactlm"]["digests"], event["exactlm"]["seed"]
    answer.choices = [choices[index] for index in sorted(choices)]
    return _with_digests(answer, digests)


def _read_whole(body: dict[str, Any], request: Request) -> Answer:
    answer = Answer(status=200, seed=body["exactlm"]["seed"], num_tokens=body["usage"]["completion_tokens"])
    for piece in body["choices"]:
        answer.choices.append(Choice())
        _add(answer.choices[-1], piece, request)
    return _with_digests(answer, body["exactlm"]["digests"])


def _with_digests(answer: Answer, digests: list[str]) -> Answer:
    if len(digests) != len(answer.choices):
        return Answer(failure=f"{len(digests)} digests for {len(answer.choices)} choices")
    for choice, digest in zip(answer.choices, digests, strict=True):
        choice.digest = digest
    return answer


def _add(choice: Choice, piece: dict[str, Any], request: Request) -> None:
    """Takes a choice of a whole answer, or the next piece of one, into `choice`."""
    if request.path == CHAT:
        choice.text += (piece.get("message") or piece["delta"]).get("content") or ""
        told = [entry["logprob"] for entry in (piece.get("logprobs") or {}).get("content") or []]
    else:
        choice.text += piece["text"]
        told = (piece.get("logprobs") or {}).get("token_logprobs") or []
    if piece.get("logprobs") is not None:
        choice.logprobs = (choice.logprobs or []) + told
    choice.finish_reason = piece["finish_reason"] or choice.finish_reason
