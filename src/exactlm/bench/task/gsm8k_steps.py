"""Judging reasoning steps: is the next step of a GSM8K solution right? Answered by " yes" or " no".

Of every problem the last step that ends in a computed number is asked. Half of them are made wrong by a fixed rule: the
SHA-256 of the question decides whether, and what is added to the number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from exactlm.bench.data import DataSource
from exactlm.bench.question import Answer, Choice
from exactlm.bench.task.base import Item, Task, Verdict, judge_yes_no

OPTIONS = (" no", " yes")
NOTE = re.compile(r"<<[^<>]*>>")  # the calculator's notes in the data, as <<3*4=12>>, each followed by its result
RESULT = re.compile(r"<<[^<>]*>>(\d[\d,]*)(?![\d.,]*\d)")  # a whole number right after a note


@dataclass(frozen=True)
class Step:
    """The steps before, the one in question as shown, and whether it is right."""

    before: tuple[str, ...]
    text: str
    is_right: bool


class Gsm8kSteps(Task):
    """label: "no" or "yes". value: the probability of yes, of the two. 50 % is chance."""

    name = "gsm8k-steps"
    template = (
        "Problem: A box holds 6 pens. How many pens are in 4 boxes, if 5 pens are lost?\n"
        "Next step: The boxes hold 6*4=24 pens.\nIs the next step right? yes\n\n"
        "Problem: Tom reads 12 pages a day. How many pages are left of a book of 100 pages after 3 days?\n"
        "Step: Tom reads 12*3=36 pages.\nNext step: 100-36=71 pages are left.\nIs the next step right? no\n\n"
        "Problem: {question}\n{before}Next step: {step}\nIs the next step right?"
    )

    def __init__(self, data: DataSource) -> None:
        self._data = data

    def load(self) -> list[Item]:
        return list(self._make())

    def _make(self) -> Iterator[Item]:
        for index, row in enumerate(self._data.read("gsm8k_test.jsonl")):
            step = choose_step(row["question"], row["answer"])
            if step is not None:
                before = "".join(f"Step: {line}\n" for line in step.before)
                prompt = self.template.format(question=row["question"], before=before, step=step.text)
                yield Item(str(index), Choice(prompt, OPTIONS), "yes" if step.is_right else "no")

    def judge(self, item: Item, answer: Answer) -> Verdict:
        return judge_yes_no(item, answer, OPTIONS)


def choose_step(question: str, solution: str) -> Step | None:
    """The last step with a whole number right after a note, right or made wrong; None where there is none."""
    lines = [line for line in solution.split("\n") if line and not line.startswith("####")]
    for at in range(len(lines) - 1, -1, -1):
        found = list(RESULT.finditer(lines[at]))
        if found:
            digest = hashlib.sha256(question.encode()).digest()
            before = tuple(NOTE.sub("", line) for line in lines[:at])
            line = lines[at] if digest[0] % 2 else corrupt(lines[at], found[-1], 1 + digest[1] % 9)
            return Step(before, NOTE.sub("", line), bool(digest[0] % 2))
    return None


def corrupt(line: str, result: re.Match[str], added: int) -> str:
    """The line with `added`, 1 to 9, added to the number that a match of RESULT found, commas as before."""
    number = result[1].rstrip(",")
    changed = int(number.replace(",", "")) + added
    shown = f"{changed:,}" if "," in number else str(changed)
    begin = result.start(1)
    return line[:begin] + shown + line[begin + len(number) :]
