"""The real model under 200 arrivals of real traffic: preempted, cached, drafted, crowded, killed, and left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import data_file, model_directory
from tests.integration.load.departure import depart, make_departures, time_together
from tests.integration.load.load import run_load, run_until_killed
from tests.integration.load.reference import Reference, find_differences
from tests.integration.load.server import capacity
from tests.integration.load.trace import FILE, read_arrivals
from tests.integration.load.workload import SETTINGS, Request, Size, make_requests, read_texts
from tests.integration.server.process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_REQUESTS, NUM_DEPARTURES = 200, 200
# The 200 arrivals of a minute, cut down so that two processors can answer them in two or three.
SIZE = Size(prompt_divisor=10, max_prompt=100, answer_divisor=12, max_answer=36, time_divisor=2)
CROWD = replace(SIZE, prompt_divisor=40, max_prompt=24, time_divisor=60)


@pytest.fixture(scope="module")
def model() -> Path:
    return model_directory("int8")


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


def requests_of(reference: Reference, size: Size, count: int = NUM_REQUESTS) -> list[Request]:
    return make_requests(read_arrivals(data_file(FILE), count), read_texts(data_file), reference.llm.tokenizer, size)


@pytest.fixture(scope="module")
def requests(reference: Reference) -> Sequence[Request]:
    return requests_of(reference, SIZE)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("speculation", ["none", "ngram"])
def test_answers_under_load_are_those_of_each_request_alone(
    model: Path, reference: Reference, requests: Sequence[Request], prefix_cache: bool, speculation: str
) -> None:
    options = capacity(kv_tokens=512, max_batch=16, chunk_tokens=96, prefix_cache=prefix_cache, speculation=speculation)
    with ServerProcess(model, *options) as server:
        load = asyncio.run(run_load(server, requests))
        server.wait_until_idle()
    assert load.count("preemptions") > 0
    assert (load.count("cached") > 0) == prefix_cache
    assert (load.count("accepted") > 0) == (speculation == "ngram")
    assert find_differences(requests, load.answers, reference) == []


def test_a_crowd_of_more_than_64_changes_nothing(model: Path, reference: Reference) -> None:
    crowd = requests_of(reference, CROWD)
    with ServerProcess(model, *capacity(kv_tokens=4096, max_batch=96, chunk_tokens=512)) as server:
        load = asyncio.run(run_load(server, crowd))
    assert load.highest("running") >= 64
    assert find_differences(crowd, load.answers, reference) == []


def test_a_server_killed_under_load_answers_the_same_after_its_restart(
    model: Path, reference: Reference, requests: Sequence[Request]
) -> None:
    options = capacity(kv_tokens=640, max_batch=16)
    with ServerProcess(model, *options) as server:
        before = asyncio.run(run_until_killed(server, requests, num_answers=30))
    whole = [i for i, answer in enumerate(before) if answer.failure is None]
    assert 30 <= len(whole) < NUM_REQUESTS
    with ServerProcess(model, *options) as server:
        after = asyncio.run(run_load(server, requests)).answers
    assert find_differences([requests[i] for i in whole], [before[i] for i in whole], reference) == []
    assert find_differences(requests, after, reference) == []


def test_two_hundred_departures_leave_nothing_behind(
    model: Path, reference: Reference, requests: Sequence[Request]
) -> None:
    long = [r for r in requests if r.body["max_tokens"] >= 16 and r.body.get("temperature")][:24]
    bystander = replace(requests[0], body={**requests[0].body, **SETTINGS[2], "max_tokens": 24})
    with ServerProcess(model, *capacity(kv_tokens=1024, max_batch=12, chunk_tokens=64)) as server:
        longest_s = asyncio.run(time_together(server, long[:20]))
        departures = make_departures(long, NUM_DEPARTURES, longest_s)
        num_left, answers = asyncio.run(depart(server, departures, bystander, num_at_once=20))
        server.wait_until_idle()
        after = asyncio.run(run_load(server, requests[:20])).answers
    assert num_left > NUM_DEPARTURES // 2
    assert len(answers) > 3
    assert find_differences([bystander] * len(answers), answers, reference) == []
    assert find_differences(requests[:20], after, reference) == []
