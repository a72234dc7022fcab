"""BoolQ: a yes/no question about a passage, answered by whichever of " Yes" and " No" is more likely.

Zero-shot: on the 32 training rows a 135M model shown examples said no to everything."""

from __future__ import annotations

from exactlm.bench.data import DataSource, Row
from exactlm.bench.question import Answer, Choice
from exactlm.bench.task.base import Item, Task, Verdict, judge_yes_no

OPTIONS = (" No", " Yes")


class BoolQ(Task):
    """label: "no" or "yes". value: the probability of yes, of the two."""

    name = "boolq"
    template = "{passage}\n\nQuestion: {question}? Yes or no?\nAnswer:"

    def __init__(self, data: DataSource) -> None:
        self._data = data

    def load(self) -> list[Item]:
        return [self._make(i, row) for i, row in enumerate(self._data.read("boolq_val.jsonl"))]

    def _make(self, index: int, row: Row) -> Item:
        question = row["question"].rstrip("?")
        prompt = self.template.format(passage=row["passage"], question=question)
        return Item(str(row.get("idx", index)), Choice(prompt, OPTIONS), "yes" if row["label"] else "no")

    def judge(self, item: Item, answer: Answer) -> Verdict:
        return judge_yes_no(item, answer, OPTIONS)
