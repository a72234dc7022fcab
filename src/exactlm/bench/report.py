"""What a run of the benchmarks says: a table for people, plain values for programs. Computes nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from exactlm.bench.spread import Spread

MIB = 1 << 20


@dataclass(frozen=True)
class EngineReport:
    """One engine. conditions: what `summarise` says of each, in the order asked. not_varied: why, by condition. ids: of
    each item asked under the first condition, the digest of the token ids that the engine made of it."""

    engine: str
    conditions: dict[str, dict[str, Any]]
    spread: Spread | None
    not_varied: dict[str, str]
    ids: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        spread = None
        if self.spread is not None:
            names = ("lowest", "highest", "sd")
            metrics = {name: dict(zip(names, values, strict=True)) for name, values in self.spread.metrics.items()}
            spread = {**vars(self.spread), "conditions": list(self.spread.conditions), "metrics": metrics}
        return {
            "engine": self.engine,
            "conditions": self.conditions,
            "spread": spread,
            "not_varied": self.not_varied,
        }


def count_other_ids(report: EngineReport, first: EngineReport) -> int:
    """Items of which the engine made other token ids than the first one: its answers are to another question."""
    return sum(first.ids.get(item, digest) != digest for item, digest in report.ids.items())


def make_score_table(title: str, reports: list[EngineReport]) -> Table:
    """One row for each engine, all of it under the first condition that it was asked under."""
    table = Table(title=title)
    first = [next(iter(r.conditions.values())) for r in reports]
    marks = list(first[0]["metrics"])
    for heading in ("engine", "items", *marks, "mean value", "s an item", "items a s", "MiB", "private"):
        table.add_column(heading, justify="left" if heading == "engine" else "right", overflow="fold")
    for report, found in zip(reports, first, strict=True):
        memory = found["memory"]
        sizes = [f"{memory[name] / MIB:.0f}" for name in ("peak", "private")] if memory else ["-", "-"]
        table.add_row(
            shorten(report.engine),
            str(found["num_items"]),
            *(f"{found['metrics'][name]:.1%}" for name in marks),
            f"{found['mean_value']:.4f}",
            f"{found['seconds_median']:.3f}",
            f"{found['items_per_second']:.2f}",
            *sizes,
        )
    return table


def make_spread_table(reports: list[EngineReport]) -> Table:
    """One row for each engine: how far its answers moved between the conditions."""
    table = Table(title="the same items under every condition")
    marks = list(next(iter(reports[0].conditions.values()))["metrics"])
    main = marks[0] if marks else None
    headings = ("engine", "items", "conditions", "changed", "flipped", "SD mean", "SD max", f"{main or 'value'} range")
    for heading in headings[: None if main else -1]:
        table.add_column(heading, justify="left" if heading == "engine" else "right", overflow="fold")
    for report in reports:
        s = report.spread
        if s is None:
            continue
        cells = [str(s.num_items), str(len(s.conditions)), str(s.num_changed), str(s.num_flipped)]
        cells += [tell_deviation(s.sd_mean), tell_deviation(s.sd_max)]
        if main:
            low, high, _ = s.metrics[main]
            cells.append(f"{low:.1%}-{high:.1%}")
        table.add_row(shorten(report.engine), *cells)
    return table


def shorten(engine: str) -> str:
    """The spec with the last part of its path only."""
    kind, _, model = engine.partition(":")
    return f"{kind} {model.rstrip('/').rpartition('/')[2]}"


def tell_deviation(value: float) -> str:
    """0 only where it is exactly 0."""
    return "0" if value == 0 else f"{value:.2g}"
