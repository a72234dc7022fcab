"""Circumstances that must not change an answer, and under which every engine is asked the same questions."""

from __future__ import annotations

from dataclasses import dataclass

from exactlm.errors import ConfigError


@dataclass(frozen=True)
class Condition:
    """batch: questions asked at once. is_shuffled: in another order. threads: None for those of the run.
    num_neighbours: unrelated questions beside each one, whose answers are dropped. is_busy: other processes want every
    processor. has_prefix_cache: what prompts share is computed once."""

    name: str
    batch: int = 1
    is_shuffled: bool = False
    threads: int | None = None
    num_neighbours: int = 0
    is_busy: bool = False
    has_prefix_cache: bool = False

    @property
    def num_streams(self) -> int:
        """Questions that are under way together."""
        return self.batch + self.num_neighbours


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition("alone"),
        Condition("batch-4", batch=4),
        Condition("batch-32", batch=32),
        Condition("shuffled", batch=4, is_shuffled=True),
        Condition("threads-1", threads=1),
        Condition("threads-2", threads=2),
        Condition("neighbours", num_neighbours=7),
        Condition("load", is_busy=True),
        Condition("cached", batch=4, has_prefix_cache=True),
    )
}


def read_conditions(names: str | None) -> list[Condition]:
    """Conditions of a list of names with commas; None for all. The first is the one that others are compared with."""
    if names is None:
        return list(CONDITIONS.values())
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in CONDITIONS:
            raise ConfigError(f"--conditions {name}: no such condition; use some of {', '.join(CONDITIONS)}")
        if chosen.count(name) > 1:
            raise ConfigError(f"--conditions: {name} is there twice; name each once")
    return [CONDITIONS[name] for name in chosen]
