"""What every task is made of. Knows neither engines nor conditions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from exactlm.bench.question import Answer, Question
from exactlm.format.digest import sha256_json


@dataclass(frozen=True)
class Item:
    """One question of a task. `reference`: what the right answer is made of."""

    id: str
    question: Question
    reference: Any = None

    @property
    def parts(self) -> list[Any]:
        """What is digested: id, prompt and what counts as right."""
        return [self.id, self.question.to_wire(), repr(self.reference)]

    @property
    def sha256(self) -> str:
        """Of the parts, 16 hex digits."""
        return sha256_json(self.parts)[:16]


@dataclass(frozen=True)
class Verdict:
    """What an answer is worth. `label`: what it says, in short; two answers with other labels are a flip. `value`: as
    a number, whose standard deviation over conditions is reported. `marks`: what is averaged over items."""

    label: str
    value: float
    marks: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """A benchmark. `template`: the prompt as text, with `{...}` where the data go; few-shot examples are part of it."""

    name: ClassVar[str]
    template: ClassVar[str]

    @abstractmethod
    def load(self) -> list[Item]:
        """All items, in the data's order. Raises ConfigError where there are none."""

    def digest(self, items: Sequence[Item]) -> str:
        """SHA-256 of all items, asked or not."""
        return sha256_json([item.parts for item in items])

    @abstractmethod
    def judge(self, item: Item, answer: Answer) -> Verdict:
        """What the answer is worth."""


def most_likely(answer: Answer) -> int:
    """Index of the best-scored option, the first of equals."""
    assert answer.scores is not None
    return answer.scores.index(max(answer.scores))


def judge_yes_no(item: Item, answer: Answer, options: tuple[str, str]) -> Verdict:
    """options: " no" and " yes", in this order and any case. The label is the likelier one; the value is how probable
    yes is, of the two."""
    assert answer.scores is not None
    label = options[most_likely(answer)].strip().lower()
    no, yes = answer.scores
    value = 1 / (1 + math.exp(min(no - yes, 700.0)))  # exp of more would overflow
    return Verdict(label, value, {"accuracy": label == item.reference, "says yes": label == "yes"})
