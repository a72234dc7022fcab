"""Going on after an interruption, and giving up when the engine is gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exactlm.audit.condition import Condition, Shot, Wave, Workload, alone, common_conditions
from exactlm.audit.observation import Journal
from exactlm.audit.prompt import load_prompts
from exactlm.audit.runner import Runner, digest_plan
from exactlm.audit.target import Answer, Unvaried
from exactlm.errors import CapacityError, ConfigError, ExactlmError

LOAD = Workload(load_prompts(limit=2), 4)
CONDITIONS = [
    Condition("base", "repeat", "", alone(LOAD.each(1)), role="base"),
    Condition("a", "order", "", alone(LOAD.each(2))),
    Condition("b", "order", "", alone(LOAD.each(2))),
]


class LocalTarget:
    """Answers with logits that move by `drift` each time; dies after so many waves."""

    keeps_logits = True

    def __init__(self, drift: float = 0.0, lives: int = 1000, refuses: ExactlmError | None = None) -> None:
        self.drift, self.lives, self.refuses, self.count = drift, lives, refuses, 0
        self.sent, self.dies_in = list[Shot](), ""

    def describe(self) -> dict[str, str]:
        return {"engine": "local"}

    def conditions(self, load: Workload) -> list[Condition]:
        return CONDITIONS

    def unvaried(self) -> list[Unvaried]:
        return []

    def prepare(self, condition: Condition) -> None:
        if condition.name == self.dies_in:
            self.lives = self.count
        if self.refuses is not None and condition.name == "a":
            raise self.refuses

    def fire(self, wave: Wave) -> list[Answer]:
        self.count += 1
        self.sent += wave
        if self.count > self.lives:
            return [Answer(error="gone") for _ in wave]
        logits = np.full((2, 3), 1 + self.count * self.drift, np.float32)
        return [Answer("x", [1, 2], [-1.0, -1.0], str(self.count * self.drift), logits=logits) for _ in wave]

    def is_alive(self) -> bool:
        return self.count <= self.lives

    def note(self) -> dict[str, int]:
        return {"waves": self.count}

    def close(self) -> None:
        pass


def test_every_shot_is_recorded(tmp_path: Path) -> None:
    counts: list[tuple[str, int]] = []
    with Journal(tmp_path / "a.jsonl", {}) as journal:
        Runner(LocalTarget(), journal, lambda condition, count: counts.append((condition.name, count))).run(CONDITIONS)
    assert [o.condition for o in journal.observations] == ["base"] * 2 + ["a"] * 4 + ["b"] * 4
    assert journal.done == ["base", "a", "b"]
    assert sum(count for _, count in counts) == 10
    assert {(o.max_difference, o.cosine) for o in journal.observations} == {(0.0, 1.0)}
    assert journal.notes["b"] == {"waves": 10}


def test_drift_of_logits_is_measured(tmp_path: Path) -> None:
    with Journal(tmp_path / "a.jsonl", {}) as journal:
        Runner(LocalTarget(drift=0.25), journal).run(CONDITIONS)
    assert [o.max_difference for o in journal.observations][:4] == [0.0, 0.0, 0.5, 0.5]


def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal(path, {}) as journal, pytest.raises(ConfigError, match=r"stopped answering.*'b'"):
        Runner(LocalTarget(lives=6), journal).run(CONDITIONS)
    assert journal.done == ["base", "a"]
    with Journal(path, {}) as journal:
        target = LocalTarget()
        Runner(target, journal).run(CONDITIONS)
    assert target.count == 2 + 4  # the base again, for its logits, and what was left
    assert journal.done == ["base", "a", "b"]
    assert sum(o.error == "gone" for o in journal.observations) == 4  # told, not hidden
    assert sum(o.condition == "a" for o in journal.observations) == 4
    with Journal(path, {}) as journal:
        target = LocalTarget()
        Runner(target, journal).run(CONDITIONS)
    assert target.count == 0


def test_fillers_are_new_in_every_run(tmp_path: Path) -> None:
    """Also in one that goes on: what the interrupted one had sent is in the engine's cache."""
    conditions, path = common_conditions(LOAD), tmp_path / "a.jsonl"
    (others,) = [c for c in conditions if c.name == "after other requests"]
    sent: list[list[Shot]] = []
    header = {"plan": digest_plan(conditions)}
    target = LocalTarget()
    target.dies_in = others.name
    with Journal(path, header) as journal, pytest.raises(ConfigError, match="after other requests"):
        Runner(target, journal).run(conditions)
    sent.append(target.sent)
    for is_fresh in (False, True):
        target = LocalTarget()
        with Journal(path, {"plan": digest_plan(common_conditions(LOAD))}, is_fresh) as journal:
            Runner(target, journal).run(conditions)
        sent.append(target.sent)
    fillers = [{s.text for s in shots if s.is_new} for shots in sent]
    assert [len(texts) for texts in fillers] == [6, 6, 6]
    assert len({text[:16] for texts in fillers for text in texts}) == 18  # nor do two of a run begin alike
    plain = [{s.text for s in shots if s.prompt is not None} for shots in sent]
    assert set.union(*plain) == {prompt.text for prompt in LOAD.prompts}


def test_a_condition_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with Journal(tmp_path / "a.jsonl", {}) as journal:
        Runner(LocalTarget(refuses=CapacityError("too small")), journal).run(CONDITIONS)
    assert [o.error for o in journal.observations if o.condition == "a"] == ["CapacityError: too small"]
    assert [o.error for o in journal.observations if o.condition == "b"] == [None] * 4
