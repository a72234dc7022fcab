"""What a server does with its prefix cache is believed only where its own counts show it."""

from __future__ import annotations

import pytest

from exactlm.audit.cache_control import UNSEEN, UNTOLD
from exactlm.audit.condition import Condition, Workload
from exactlm.audit.endpoint import EndpointTarget
from exactlm.audit.prompt import load_prompts
from tests.unit.audit.toy import Behaviour, expect, serve

LOAD = Workload(load_prompts(limit=3), 2, repeats=1)
WHOLE = sum(len(prompt.text) for prompt in LOAD.prompts)
HALF = sum(len(prompt.text) // 2 for prompt in LOAD.prompts)
FIELDS = ("cache_salt", "cache_prompt")


def cached(target: EndpointTarget, condition: Condition) -> int:
    """What came from the cache under a condition, as it is noted."""
    target.prepare(condition)
    for wave in condition.waves:
        expect(len(wave))
        target.fire(wave)
    return target.note()["cached prompt tokens"]


@pytest.mark.parametrize(
    ("cache", "field", "reason"),
    [
        ("untold", None, UNTOLD),
        ("none", None, UNSEEN),
        ("kept", None, "no field of a request"),
        ("strict", None, "no field of a request"),
        ("cache_salt", "cache_salt", None),
        ("cache_prompt", "cache_prompt", "cannot empty it"),
    ],
)
def test_a_field_counts_where_it_is_heeded(cache: str, field: str | None, reason: str | None) -> None:
    with serve(Behaviour(cache=cache)) as url:
        target = EndpointTarget(url)
        conditions = {c.name: c for c in target.conditions(LOAD)}
        told = dict(target.unvaried())
        target.close()
    assert ("cold" in conditions) == (field is not None)
    assert (reason or "") in told.get("cache", "")
    assert ("cache" in told) == (reason is not None)
    if field is not None:
        assert field in conditions["cold"].text
    is_empty = "nothing cached before that" in conditions["after its first half"].text
    assert is_empty == (cache == "cache_salt")


@pytest.mark.parametrize("cache", ["kept", *FIELDS])
def test_only_the_prompts_are_counted(cache: str) -> None:
    with serve(Behaviour(cache=cache)) as url:
        target = EndpointTarget(url)
        conditions = {c.name: c for c in target.conditions(LOAD)}
        counts = {name: cached(target, c) for name, c in conditions.items() if c.factor in ("repeat", "cache")}
        beside = cached(target, conditions["neighbours"])
        target.close()
    assert counts["base"] == 0  # seen for the first time
    assert counts["repeated"] == WHOLE
    assert counts["after other requests"] == WHOLE  # nothing pushes them out here, and it is not hidden
    assert beside == WHOLE
    assert counts["after its first half"] == (HALF if cache == "cache_salt" else WHOLE)
    if cache in FIELDS:
        assert counts["cold"] == 0


def test_a_long_request_that_fails_is_told() -> None:
    with serve(Behaviour(fails_every=5)) as url:  # the probes before it are four
        target = EndpointTarget(url)
        target.close()
        assert dict(target.unvaried())["cache"] == UNTOLD
    with serve(Behaviour(fails_every=6)) as url:
        target = EndpointTarget(url)
        target.close()
        assert "status 500" in dict(target.unvaried())["cache"]
