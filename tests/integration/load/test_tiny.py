"""Answers of a loaded server are those of each request alone: preempted, cached, drafted, killed in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.load.client import Answer, connect
from tests.integration.load.load import run_load, run_until_killed
from tests.integration.load.reference import Reference, find_differences
from tests.integration.load.replay import replay
from tests.integration.load.server import capacity
from tests.integration.load.workload import COMPLETION, Request
from tests.integration.server.process import ServerProcess

POOL = capacity(kv_tokens=352, max_batch=16, chunk_tokens=64)  # two of the longest requests


@pytest.fixture(scope="module")
def loaded(tiny_model: Path, tiny_requests: Sequence[Request]) -> list[Answer]:
    """The answers of a server that runs short of pages; the metrics prove that it did."""
    with ServerProcess(tiny_model, *POOL) as server:
        load = asyncio.run(run_load(server, tiny_requests))
    assert load.count("preemptions") > 0
    assert load.count("cached") > 0
    return load.answers


def test_answers_under_load_are_those_of_each_request_alone(
    loaded: list[Answer], tiny_requests: Sequence[Request], tiny_reference: Reference
) -> None:
    assert find_differences(tiny_requests, loaded, tiny_reference) == []
    reasons = {choice.finish_reason for answer in loaded for choice in answer.choices}
    assert reasons == {"stop", "length"}
    assert len({choice.digest for answer in loaded for choice in answer.choices}) > len(tiny_requests)


def test_a_changed_answer_is_reported(
    loaded: list[Answer], tiny_requests: Sequence[Request], tiny_reference: Reference
) -> None:
    """The comparison itself can fail: in a digest, a text, a log-probability, a count and a seed."""
    index = next(i for i, r in enumerate(tiny_requests) if r.body.get("seed") and "logprobs" in r.body)
    request, answer = tiny_requests[index], loaded[index]
    choice = answer.choices[-1]
    assert choice.digest is not None
    assert choice.logprobs
    for changed in (
        replace(choice, digest=choice.digest[:-1] + ("0" if choice.digest[-1] != "0" else "1")),
        replace(choice, text=choice.text + " "),
        replace(choice, finish_reason="cancelled"),
        replace(choice, logprobs=[*choice.logprobs[:-1], choice.logprobs[-1] - 1e-12]),
    ):
        altered = replace(answer, choices=[*answer.choices[:-1], changed])
        assert len(find_differences([request], [altered], tiny_reference)) == 1
    other_seed = replace(request, body={**request.body, "seed": request.body["seed"] - 1})
    assert len(find_differences([other_seed], [answer], tiny_reference)) == 1
    told = replace(answer, seed=request.body["seed"] - 1)
    assert len(find_differences([other_seed], [told], tiny_reference)) == 1
    assert find_differences([request], [answer], tiny_reference) == []


def test_the_prefix_cache_off_and_drafts_on_change_nothing(
    tiny_model: Path, tiny_requests: Sequence[Request], tiny_reference: Reference
) -> None:
    options = capacity(kv_tokens=352, max_batch=16, chunk_tokens=48, prefix_cache=False, speculation="ngram")
    with ServerProcess(tiny_model, *options) as server:
        load = asyncio.run(run_load(server, tiny_requests))
    assert load.count("preemptions") > 0
    assert load.count("cached") == 0
    assert load.count("accepted") > 0
    assert find_differences(tiny_requests, load.answers, tiny_reference) == []


def test_a_server_killed_under_load_answers_the_same_after_its_restart(
    tiny_model: Path, tiny_requests: Sequence[Request], tiny_reference: Reference
) -> None:
    slow = (*POOL, "--isa", "reference")  # not all is answered before it is killed
    with ServerProcess(tiny_model, *slow) as server:
        before = asyncio.run(run_until_killed(server, tiny_requests, num_answers=8))
        whole = [i for i, answer in enumerate(before) if answer.failure is None]
        assert 8 <= len(whole) < len(tiny_requests)
    with ServerProcess(tiny_model, *POOL) as server:
        after = asyncio.run(run_load(server, tiny_requests)).answers
    requests = [tiny_requests[i] for i in whole]
    assert find_differences(requests, [before[i] for i in whole], tiny_reference) == []
    assert find_differences(tiny_requests, after, tiny_reference) == []


def test_a_refusal_is_a_failure_of_its_answer(tiny_model: Path) -> None:
    """Never an exception that ends a replay, and never an answer that compares equal."""
    wrong = Request(0, 0, COMPLETION, {"prompt": "a", "max_tokens": -1})

    async def ask_wrongly(server: ServerProcess) -> list[Answer]:
        async with connect(server.url) as client:
            return await replay(client, [wrong, replace(wrong, path="/v1/none")])

    with ServerProcess(tiny_model, *POOL) as server:
        answers = asyncio.run(ask_wrongly(server))
    assert [answer.status for answer in answers] == [400, 404]
    assert all(answer.failure for answer in answers)
