"""200 clients leave in the queue, in prefill and in decode: nothing stays behind, and who stays sees no difference."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

from tests.integration.load.departure import depart, make_departures, time_together
from tests.integration.load.load import run_load
from tests.integration.load.reference import Reference, find_differences
from tests.integration.load.server import capacity
from tests.integration.load.workload import COMPLETION, Request
from tests.integration.server.process import ServerProcess

NUM_DEPARTURES = 200
GONE = 499  # the status of who left, in the log


def find_phases(log: Path) -> Counter[str]:
    """Where the requests of a server's log were that ended without an answer."""
    phases: Counter[str] = Counter()
    for line in log.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["status"] == GONE:
            timings = entry["exactlm"]["timings"]
            reached = [name for name in ("prefill", "first_token") if timings[name] is not None]
            phases[{0: "queue", 1: "prefill", 2: "decode"}[len(reached)]] += 1
    return phases


def test_two_hundred_departures_leave_nothing_behind(
    tiny_model: Path, tiny_reference: Reference, tmp_path: Path
) -> None:
    llm, log = tiny_reference.llm, tmp_path / "log.jsonl"
    ids = llm.tokenizer.encode("the thing and then another one, " * 40)
    settings = {"max_tokens": 100, "ignore_eos": True}
    leaving = [  # other beginnings, so that each is computed: between 40 and 340 tokens
        Request(
            i,
            0,
            COMPLETION,
            {**settings, "prompt": ids[i : i + 40 + 50 * (i % 7)], "temperature": i % 3 / 2, "n": 1 + i % 2, "seed": i},
        )
        for i in range(NUM_DEPARTURES)
    ]
    bystander = Request(
        0, 0, COMPLETION, {"prompt": "and so", "max_tokens": 40, "temperature": 1.0, "seed": 9, "logprobs": 0}
    )
    options = capacity(kv_tokens=1024, max_batch=6, chunk_tokens=4)  # prefill takes as long as decode
    with ServerProcess(tiny_model, *options, "--request-log", str(log)) as server:
        longest_s = asyncio.run(time_together(server, leaving[:16]))
        departures = make_departures(leaving, NUM_DEPARTURES, longest_s)
        num_left, answers = asyncio.run(depart(server, departures, bystander, num_at_once=16))
        server.wait_until_idle()
        assert server.get("/ready").status == 200
        after = asyncio.run(run_load(server, leaving[:14])).answers
        server.wait_until_idle()
    assert num_left > NUM_DEPARTURES // 4  # how many leave before their end depends on the machine's other work
    assert len(answers) > 3
    assert find_differences([bystander] * len(answers), answers, tiny_reference) == []
    assert find_differences(leaving[:14], after, tiny_reference) == []
    phases = find_phases(log)
    # Measured: 1 in prefill even where the machine is ten times slower, or faster, than when it was timed.
    assert all(phases[name] for name in ("queue", "prefill", "decode")), phases
