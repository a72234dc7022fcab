"""Seconds of two engines, round by round, and what is said of them. Knows nothing of how they were made."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import Any

PAIRS = {"int8": "Q8_0", "fp16": "F16"}  # our precision, and llama.cpp's of the same size
FACTS = ("engine", "system")  # what is told of an engine
PAUSE_S = 0.05  # lets the threads of the engine that has just run go to sleep


@dataclass(frozen=True)
class Timed:
    """Seconds of every round for `num_tokens` tokens; `peer_s` is empty where the peer did not run."""

    num_tokens: int
    ours_s: list[float]
    peer_s: list[float]

    @property
    def ratios(self) -> list[float]:
        """Their time over ours, round by round: above 1 we are faster."""
        return [peer / ours for ours, peer in zip(self.ours_s, self.peer_s, strict=True)] if self.peer_s else []

    @property
    def best_ratio(self) -> float | None:
        """Their best time over our best: what is left when other programs do not disturb either."""
        return min(self.peer_s) / min(self.ours_s) if self.peer_s else None

    def cells(self) -> list[str]:
        """Our and their tokens per second, the ratio within a round, best over best."""
        rates = [[self.num_tokens / s for s in times] for times in (self.ours_s, self.peer_s)]
        told = [spread(rate, ".0f") if rate else "-" for rate in rates]
        return [
            *told,
            spread(self.ratios, ".2f") if self.peer_s else "-",
            f"{self.best_ratio:.2f}" if self.peer_s else "-",
        ]

    def values(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "ratios": self.ratios, "best_ratio": self.best_ratio}


def spread(values: list[float], form: str) -> str:
    """Median (min-max)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def describe_machine(load_before: float) -> dict[str, Any]:
    """How busy it was."""
    return {"processors": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
