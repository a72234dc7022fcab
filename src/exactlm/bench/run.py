"""Asks one engine all questions of a task under each condition, and writes every answer down as it comes.

Knows tasks and engines by their interfaces only; computes no statistic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from exactlm.bench.busy import busy_processors
from exactlm.bench.condition import Condition
from exactlm.bench.engine import Engine, Session
from exactlm.bench.journal import Journal, Record
from exactlm.bench.question import Answer
from exactlm.bench.task.base import Item, Task

WHOLE = ""  # in place of an item's id: the record of a whole condition
_OF_ANSWER = {"item_sha256", "label", "value", "marks", "prompt_sha256", "seconds"}
_OF_WHOLE = {"facts", "memory"}
Tell = Callable[[int], None]


@dataclass(frozen=True)
class Plan:
    """Which items are asked under which conditions. spread_items: how many of them under all but the first condition;
    None for all. threads: of every condition that names no other number."""

    items: Sequence[Item]
    conditions: Sequence[Condition]
    threads: int
    spread_items: int | None = None

    def select(self, condition: Condition) -> Sequence[Item]:
        """The items asked under a condition."""
        return self.items if condition == self.conditions[0] else self.items[: self.spread_items]


def run_engine(engine: Engine, task: Task, plan: Plan, journal: Journal, tell: Tell) -> None:
    """Completes the journal. tell: is called with the number of items that are done. ConfigError where the journal
    holds answers to other questions."""
    check_items(plan.items, journal)
    for condition in plan.conditions:
        if engine.refuse(condition) is None:
            _run_condition(engine, task, plan, condition, journal, tell)


def check_items(items: Sequence[Item], journal: Journal) -> None:
    """ConfigError where an answer was given to another question than the one that now has its id, or is none."""
    asked = {item.id: item.sha256 for item in items}
    for (_, name), record in journal.records.items():
        if lacking := sorted((_OF_WHOLE if name == WHOLE else _OF_ANSWER) - record.keys()):
            raise journal.refuse(f"the record of item {name!r:.60} has no {lacking[0]}")
        if name != WHOLE and name in asked and record["item_sha256"] != asked[name]:
            raise journal.refuse(
                f"item {name} was another one (item_sha256 {record['item_sha256']}, not {asked[name]})"
            )


def _run_condition(engine: Engine, task: Task, plan: Plan, condition: Condition, journal: Journal, tell: Tell) -> None:
    items = plan.select(condition)
    pending = []
    for batch in make_batches(items, condition):
        own = [item for item, is_own in batch if is_own]
        if all((condition.name, item.id) in journal.records for item in own):
            tell(len(own))
        else:
            pending.append(batch)
    if not pending and (condition.name, WHOLE) in journal.records:
        return
    with engine.open(condition, plan.threads) as session, busy_processors(condition.is_busy):
        for batch in pending:
            records = _ask(session, task, condition, batch)
            journal.add(records)
            tell(len(records))
        memory = session.memory() if pending else None  # else the answers came from a process that is no more
        journal.add([{"condition": condition.name, "item": WHOLE, "facts": session.facts, "memory": memory}])


def make_batches(items: Sequence[Item], condition: Condition) -> Iterator[list[tuple[Item, bool]]]:
    """Items that are asked together, each with whether its answer counts; the same ones at every call."""
    order = list(items)
    if condition.is_shuffled:
        random.Random(0).shuffle(order)
    for at in range(0, len(order), condition.batch):
        batch = [(item, True) for item in order[at : at + condition.batch]]
        draw = random.Random(at)
        others = [item for item in order if all(item is not own for own, _ in batch)]
        for item in draw.sample(others, min(condition.num_neighbours, len(others))):
            batch.insert(draw.randrange(len(batch) + 1), (item, False))
        yield batch


def _ask(session: Session, task: Task, condition: Condition, batch: Sequence[tuple[Item, bool]]) -> list[Record]:
    answers, seconds = session.ask([item.question for item, _ in batch])
    each = seconds / len(batch)
    pairs = zip(batch, answers, strict=True)
    return [_record(task, condition, item, answer, each) for (item, is_own), answer in pairs if is_own]


def _record(task: Task, condition: Condition, item: Item, answer: Answer, seconds: float) -> Record:
    verdict = task.judge(item, answer)
    said = {"text": answer.text} if answer.scores is None else {"scores": list(answer.scores)}
    return {
        "condition": condition.name,
        "item": item.id,
        "item_sha256": item.sha256,
        "label": verdict.label,
        "value": verdict.value,
        "marks": {name: float(mark) for name, mark in verdict.marks.items()},
        **said,
        "prompt_sha256": answer.prompt_sha256,
        "seconds": seconds,
    }
