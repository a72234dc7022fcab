"""MBPP: write a Python function from one sentence and its tests; it is run against the tests in a sandbox."""

from __future__ import annotations

from exactlm.bench.data import DataSource, Row
from exactlm.bench.question import Answer, Completion
from exactlm.bench.sandbox import Sandbox
from exactlm.bench.task.base import Item, Task, Verdict
from exactlm.bench.task.humaneval import judge_code

MAX_TOKENS = 256
STOP = ("[DONE]", "[BEGIN]", "\nYou are an expert")
TEST_IDS = range(11, 511)  # the split that its authors call test


class Mbpp(Task):
    """label: "fails", "compiles" or "passes". value: 1 if it passes."""

    name = "mbpp"
    template = (
        "You are an expert Python programmer, and here is your task: Write a function to count the even numbers in a "
        "list. Your code should pass these tests:\n\nassert count_even([1, 2, 4]) == 2\nassert count_even([]) == 0\n"
        "assert count_even([7]) == 0\n[BEGIN]\ndef count_even(numbers):\n    count = 0\n    for number in numbers:\n"
        "        if number % 2 == 0:\n            count += 1\n    return count\n[DONE]\n\n"
        "You are an expert Python programmer, and here is your task: {text} Your code should pass these tests:\n\n"
        "{tests}\n[BEGIN]\n"
    )

    def __init__(self, data: DataSource, sandbox: Sandbox) -> None:
        self._data, self._sandbox = data, sandbox

    def load(self) -> list[Item]:
        return [self._make(r) for r in self._data.read("mbpp.jsonl") if r["task_id"] in TEST_IDS]

    def _make(self, row: Row) -> Item:
        prompt = self.template.format(text=row["text"], tests="\n".join(row["test_list"]))
        return Item(str(row["task_id"]), Completion(prompt, MAX_TOKENS, STOP), row)

    def judge(self, item: Item, answer: Answer) -> Verdict:
        assert answer.text is not None
        row = item.reference
        tests = "\n".join([row.get("test_setup_code") or "", *row["test_list"], ""])
        return judge_code(self._sandbox, "", answer.text, tests)
