"""Essay grading: a rubric judge gives each essay 1 to 5, as the expected value of its own next-token distribution.

Essays come from a JSON-lines file with prompt, essay and an optional human score; who wrote them is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from exactlm.bench.data import read_rows
from exactlm.bench.question import Answer, Choice
from exactlm.bench.task.base import Item, Task, Verdict, most_likely
from exactlm.errors import ConfigError

GRADES = ("1", "2", "3", "4", "5")


class Essays(Task):
    """label: the most likely grade. value: the expected grade, 1 to 5. Human scores, where given, are only kept."""

    name = "essays"
    template = (
        "Grade the essay from 1 (poor) to 5 (excellent). Rubric: does it do what the task asks; is it clear and well "
        "organised; is the language correct.\n\nTask: {prompt}\n\nEssay: {essay}\n\nGrade (1-5): "
    )

    def __init__(self, path: Path, digest: str | None = None) -> None:
        """digest: of what the essays are made of, where the file may still hold only the first of them."""
        self._path, self._digest = path, digest

    def load(self) -> list[Item]:
        items = []
        for index, row in enumerate(read_rows(self._path)):
            for key in ("prompt", "essay"):
                if not isinstance(row.get(key), str):
                    raise ConfigError(f"{self._path}: essay {index} has no text {key!r}")
            prompt = self.template.format(prompt=row["prompt"], essay=row["essay"])
            items.append(Item(str(index), Choice(prompt, GRADES), row.get("score")))
        return items

    def digest(self, items: Sequence[Item]) -> str:
        return self._digest or super().digest(items)

    def judge(self, item: Item, answer: Answer) -> Verdict:
        assert answer.scores is not None
        best = max(answer.scores)
        weights = [math.exp(score - best) for score in answer.scores]
        value = math.fsum(w * g for g, w in enumerate(weights, 1)) / math.fsum(weights)
        return Verdict(GRADES[most_likely(answer)], value)
