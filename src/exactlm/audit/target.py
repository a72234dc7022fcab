"""What an audited engine is to the rest of the audit: something that answers waves of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from exactlm.audit.condition import Condition, Wave, Workload


@dataclass
class Answer:
    """What came back of a shot. tokens, logprobs, digest: see Observation. logits: float32 [T, V], one row for each
    token, where the engine lets one see them. num_cached: prompt tokens that the engine took from a cache."""

    text: str = ""
    tokens: list[object] | None = None
    logprobs: list[float | None] | None = None
    digest: str | None = None
    finish_reason: str | None = None
    num_cached: int | None = None
    seconds: float = 0.0
    error: str | None = None
    logits: NDArray[np.float32] | None = None


class Unvaried(NamedTuple):
    """What could not be varied at this engine, and why."""

    factor: str
    reason: str


class Target(Protocol):
    """An engine under audit."""

    keeps_logits: bool  # whether answers have logits, so that the base answers must be at hand

    def describe(self) -> dict[str, str]:
        """What it is: names and values for the report. The same for the same engine, or a record cannot go on."""

    def conditions(self, load: Workload) -> list[Condition]:
        """What can be varied here, the base first."""

    def unvaried(self) -> list[Unvaried]:
        """What cannot."""

    def prepare(self, condition: Condition) -> None:
        """Makes the engine as the condition wants it. Raises ExactlmError."""

    def fire(self, wave: Wave) -> list[Answer]:
        """The answers of requests made at once, in their order; a request that failed has an error."""

    def is_alive(self) -> bool:
        """Whether it still answers at all; asked when a whole condition went unanswered."""

    def note(self) -> dict[str, int]:
        """Counts that the engine made since prepare(): preemptions, say."""

    def close(self) -> None:
        """Frees what it holds."""


def gather_unvaried(*groups: Sequence[tuple[str, str]]) -> list[Unvaried]:
    """Pairs as Unvaried, in order."""
    return [Unvaried(*pair) for group in groups for pair in group]
