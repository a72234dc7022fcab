"""Runs the conditions of an audit one after another, records what it sees, and goes on where an earlier run stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from exactlm.audit.cache_control import new_salt
from exactlm.audit.comparison import common_length, compare_logits
from exactlm.audit.condition import Condition, Shot
from exactlm.audit.observation import Journal, Observation
from exactlm.audit.target import Answer, Target
from exactlm.errors import ConfigError, ExactlmError

Progress = Callable[[Condition, int], None]


def digest_plan(conditions: Sequence[Condition]) -> str:
    """What is asked, as a digest: a record goes on only under the same plan. Without the words
    that are drawn when it is sent: they stand in no prompt whose answer is compared."""
    plain = [asdict(c) | {"setup": dict(c.setup)} for c in conditions]
    return sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _renew(shot: Shot) -> Shot:
    """Drawn also in a run that goes on: what the interrupted one had sent is in the engine's cache."""
    return replace(shot, text=f"{new_salt()} {shot.text}") if shot.is_new else shot


class Runner:
    """progress: told after each wave how many observations came."""

    def __init__(self, target: Target, journal: Journal, progress: Progress = lambda condition, count: None) -> None:
        self._target, self._journal, self._progress = target, journal, progress
        self._logits: dict[tuple[str, int], tuple[list[object], NDArray[np.float32]]] = {}

    def run(self, conditions: Sequence[Condition]) -> None:
        """Observes every condition that is not done yet. A condition that the engine cannot be made for is recorded as
        failed; an answer that fails does not end the audit. ConfigError when the engine is gone."""
        for condition in conditions:
            is_done = condition.name in self._journal.done
            if is_done and not (condition.role == "base" and self._needs_base(conditions)):
                self._progress(condition, condition.num_observed)
                continue
            try:
                self._target.prepare(condition)
            except ExactlmError as error:
                self._journal.add(Observation(condition.name, 0, error=f"{type(error).__name__}: {error}"))
            else:
                if self._observe(condition) == 0 and not self._target.is_alive():
                    raise ConfigError(
                        f"the engine has stopped answering (condition {condition.name!r}); what was seen is in "
                        f"{self._journal.path}: the same command goes on from there"
                    )
            if not is_done:
                self._journal.finish(condition.name)

    def _needs_base(self, conditions: Sequence[Condition]) -> bool:
        """The base answers' logits are not on disk: what is left to compare with them needs them made again."""
        left = any(c.name not in self._journal.done for c in conditions)
        return left and self._target.keeps_logits

    def _observe(self, condition: Condition) -> int:
        """The number of answers."""
        num_answered = 0
        for wave in condition.waves:
            answers = self._target.fire(tuple(_renew(shot) for shot in wave))
            count = 0
            for shot, answer in zip(wave, answers, strict=True):
                if shot.prompt is not None:
                    self._journal.add(self._record(condition, shot.prompt, answer))
                    count += 1
                    num_answered += answer.error is None
                elif answer.error is not None:  # a neighbour that failed was no neighbour
                    self._journal.add(Observation(condition.name, -1, error=f"neighbour: {answer.error}"))
            self._progress(condition, count)
        note = self._target.note()
        if note:
            self._journal.note(condition.name, note)
        return num_answered

    def _record(self, condition: Condition, prompt: int, answer: Answer) -> Observation:
        difference = cosine = None
        if answer.logits is not None:
            key = (condition.group, prompt)
            if condition.role == "base":
                self._logits.setdefault(key, (answer.tokens or [], answer.logits))
            if key in self._logits:
                tokens, logits = self._logits[key]
                common = common_length(tokens, answer.tokens or [])
                difference, cosine = compare_logits(logits, answer.logits, common)
        return Observation(
            condition.name,
            prompt,
            answer.text,
            answer.tokens,
            # NaN is no number to compare, nor one that JSON has; torch may compute it.
            answer.logprobs and [v if v is not None and math.isfinite(v) else None for v in answer.logprobs],
            answer.digest,
            difference,
            cosine,
            answer.finish_reason,
            answer.seconds,
            answer.error,
        )
