"""Statistics of a journal: what an engine scored under each condition, and how far its answers moved between them.

Everything is counted from what was recorded; nothing is assumed of any engine.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exactlm.bench.journal import Record
from exactlm.bench.run import WHOLE

Records = Mapping[tuple[str, str], Record]


@dataclass(frozen=True)
class Spread:
    """Of the items that were asked under every condition compared. num_changed: items whose scores or text are not the
    same, bit for bit, under all. num_flipped: whose label is not. sd_mean, sd_max: of the items' standard deviations
    of the value. metrics: lowest, highest and standard deviation of each over conditions. The conditions are all there
    are, no sample: their deviations divide by n, not n - 1."""

    num_items: int
    conditions: tuple[str, ...]
    num_changed: int
    num_flipped: int
    sd_mean: float
    sd_max: float
    metrics: Mapping[str, tuple[float, float, float]]


def measure_spread(records: Records, conditions: Sequence[str]) -> Spread | None:
    """None where fewer than two conditions have an item in common."""
    by_condition = _group(records)
    chosen = tuple(c for c in conditions if by_condition.get(c))
    common = set.intersection(*(set(by_condition[c]) for c in chosen)) if chosen else set()
    if len(chosen) < 2 or not common:
        return None
    num_changed = num_flipped = 0
    deviations = []
    for item in sorted(common):
        seen = [by_condition[c][item] for c in chosen]
        num_changed += any(_said(r) != _said(seen[0]) for r in seen)
        num_flipped += any(r["label"] != seen[0]["label"] for r in seen)
        deviations.append(statistics.pstdev(float(r["value"]) for r in seen))
    each = [average_marks([by_condition[c][item] for item in sorted(common)]) for c in chosen]
    metrics = {}
    for name in each[0]:
        values = [marks[name] for marks in each]
        metrics[name] = (min(values), max(values), statistics.pstdev(values))
    return Spread(len(common), chosen, num_changed, num_flipped, statistics.fmean(deviations), max(deviations), metrics)


def summarise(records: Records, condition: str) -> dict[str, Any]:
    """Items, average of every mark and of the value, median seconds of an item and items a second of one condition."""
    found = list(_group(records).get(condition, {}).values())
    if not found:
        return {"num_items": 0}
    seconds = [float(r["seconds"]) for r in found]
    whole = records.get((condition, WHOLE), {})
    return {
        "num_items": len(found),
        "metrics": average_marks(found),
        "mean_value": statistics.fmean(float(r["value"]) for r in found),
        "labels": dict(sorted(Counter(r["label"] for r in found).items())),
        "seconds_median": statistics.median(seconds),
        "items_per_second": len(seconds) / sum(seconds),
        "memory": whole.get("memory"),
        "facts": whole.get("facts"),
    }


def average_marks(records: Sequence[Record]) -> dict[str, float]:
    """Mean of every mark."""
    return {name: statistics.fmean(float(r["marks"][name]) for r in records) for name in records[0]["marks"]}


def _group(records: Records) -> dict[str, dict[str, Record]]:
    grouped: dict[str, dict[str, Record]] = {}
    for (condition, item), record in records.items():
        if item != WHOLE:
            grouped.setdefault(condition, {})[item] = record
    return grouped


def _said(record: Record) -> Any:
    return record.get("scores"), record.get("text")
