"""The plan: every prompt under every condition, the same each time."""

from __future__ import annotations

import itertools

import pytest

from exactlm.audit.condition import FACTORS, Condition, Workload, common_conditions, request_conditions, seed_conditions
from exactlm.audit.prompt import load_prompts
from exactlm.audit.runner import digest_plan


def plan(load: Workload) -> list[Condition]:
    return [*common_conditions(load), *request_conditions(load), *seed_conditions(load)]


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_every_condition_asks_every_prompt(limit: int) -> None:
    load = Workload(load_prompts(limit=limit), repeats=2)
    conditions = plan(load)
    assert len({c.name for c in conditions}) == len(conditions)
    for condition in conditions:
        asked = [shot for wave in condition.waves for shot in wave if shot.prompt is not None]
        assert {shot.prompt for shot in asked} == set(range(limit)), condition.name
        assert all(shot.text == load.prompts[shot.prompt or 0].text for shot in asked)
        assert {shot.max_tokens for shot in asked} == {load.max_tokens}
        assert condition.factor in FACTORS


def test_waves_are_as_wide_as_named() -> None:
    conditions = {c.name: c for c in plan(Workload(load_prompts(), concurrency=(2, 5, 64)))}
    for count in (2, 5, 64):
        assert {len(wave) for wave in conditions[f"{count} at once"].waves} == {count}
    assert {len(wave) for wave in conditions["neighbours"].waves} == {8}
    assert all(len(wave) == 1 for wave in conditions["repeated"].waves)


def test_groups_have_one_base_and_one_temperature() -> None:
    for group, is_drawn in (("greedy", False), ("sampled", True)):
        mine = [c for c in plan(Workload(load_prompts())) if c.group == group]
        assert [c.role for c in mine].count("base") == 1
        assert mine[0].role == "base"
        shots = [shot for c in mine for wave in c.waves for shot in wave if shot.prompt is not None]
        assert {shot.temperature > 0 for shot in shots} == {is_drawn}
        assert {shot.seed is None for shot in shots} == {not is_drawn}


def test_warming_requests_share_a_prefix() -> None:
    conditions = {c.name: c for c in plan(Workload(load_prompts()))}
    for name in ("after its first half", "after nearly all of it"):
        waves = conditions[name].waves
        for (warm,), (shot,) in zip(waves[::2], waves[1::2], strict=True):
            assert warm.prompt is None
            assert shot.text.startswith(warm.text)
            assert len(warm.text) < len(shot.text)


def test_plan_is_the_same_each_time_and_told_apart() -> None:
    load = Workload(load_prompts())
    assert digest_plan(plan(load)) == digest_plan(plan(Workload(load_prompts())))
    others = [
        Workload(load_prompts(), max_tokens=33),
        Workload(load_prompts(), seed=8),
        Workload(load_prompts(limit=7)),
    ]
    assert len({digest_plan(plan(other)) for other in [load, *others]}) == 4


def test_fillers_share_nothing() -> None:
    """What is cached makes room only for what is not there yet."""
    (condition,) = [c for c in plan(Workload(load_prompts())) if c.name == "after other requests"]
    texts = [shot.text for wave in condition.waves for shot in wave if shot.prompt is None]
    assert len(texts) == 3 * len(load_prompts())
    words = [text.split()[0] for text in texts]
    assert len(set(words)) == len(words)
    assert all(shot.is_new == (shot.prompt is None) for wave in condition.waves for shot in wave)


@pytest.mark.parametrize(("repeats", "told"), [(1, "in turn"), (2, "2 times in a row")])
def test_repeated_says_whether_a_prompt_follows_itself(repeats: int, told: str) -> None:
    """An engine that keeps the last prompt computes the second of two in a row otherwise."""
    conditions = {c.name: c for c in plan(Workload(load_prompts(), repeats=repeats))}
    asked = [shot.prompt for wave in conditions["repeated"].waves for shot in wave]
    assert told in conditions["repeated"].text
    assert any(a == b for a, b in itertools.pairwise(asked)) == (repeats > 1)
