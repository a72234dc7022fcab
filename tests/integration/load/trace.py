"""Arrivals of real traffic: when requests come, and how long they are. Knows nothing of what they say."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

FILE = "AzureLLMInferenceTrace_conv.csv.gz"


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: seconds after the first, tokens of its prompt and of its answer."""

    second: float
    num_prompt: int
    num_answer: int


def read_arrivals(path: Path, count: int) -> list[Arrival]:
    """The first `count` usable arrivals (a prompt and an answer of at least one token) of an Azure trace."""
    arrivals: list[Arrival] = []
    begin: datetime | None = None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            num_prompt, num_answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            if num_prompt < 1 or num_answer < 1:
                continue
            moment = datetime.fromisoformat(row["TIMESTAMP"][:26])  # seven digits of a second are one too many
            begin = begin or moment
            arrivals.append(Arrival((moment - begin).total_seconds(), num_prompt, num_answer))
            if len(arrivals) == count:
                return arrivals
    raise ValueError(f"{path} has {len(arrivals)} usable arrivals, not {count}")
