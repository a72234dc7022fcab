"""HumanEval: complete a Python function from its docstring; it is run against its tests in a sandbox.

The prompt loses the white space at its ends, as in other harnesses: tokens seldom end in a line break.
"""

from __future__ import annotations

from exactlm.bench.data import DataSource, Row
from exactlm.bench.question import Answer, Completion
from exactlm.bench.sandbox import Outcome, Sandbox
from exactlm.bench.task.base import Item, Task, Verdict

MAX_TOKENS = 256
STOP = ("\ndef ", "\nclass ", "\nif ", "\nprint(", "\nassert ", "\n#", "\n@", "\n```")


class HumanEval(Task):
    """label: "fails", "compiles" or "passes". value: 1 if it passes."""

    name = "humaneval"
    template = "{prompt}"

    def __init__(self, data: DataSource, sandbox: Sandbox) -> None:
        self._data, self._sandbox = data, sandbox

    def load(self) -> list[Item]:
        return [self._make(row) for row in self._data.read("HumanEval.jsonl.gz")]

    def _make(self, row: Row) -> Item:
        prompt = self.template.format(prompt=row["prompt"].strip())
        return Item(row["task_id"], Completion(prompt, MAX_TOKENS, STOP), row)

    def judge(self, item: Item, answer: Answer) -> Verdict:
        assert answer.text is not None
        row = item.reference
        tests = f"{row['test']}\ncheck({row['entry_point']})\n"
        return judge_code(self._sandbox, row["prompt"].strip(), answer.text, tests)


def judge_code(sandbox: Sandbox, given: str, written: str, tests: str) -> Verdict:
    """Whether a program, of which `given` was in the prompt, compiles, and whether it passes its tests. Where nothing
    was written it does neither."""
    outcome = sandbox.run(f"{given}{written}\n", tests) if written.strip() else Outcome(False, False, "")
    label = "passes" if outcome.passes else "compiles" if outcome.compiles else "fails"
    return Verdict(label, float(outcome.passes), {"passes": outcome.passes, "compiles": outcome.compiles})
