"""HumanEval: complete a Python function from its docstring; it is run against its tests in a sandbox."""

from __future__ import annotations

from exactlm.bench.data import DataSource
from exactlm.bench.question import Answer, Completion
from exactlm.bench.sandbox import Sandbox
from exactlm.bench.task.base import Item, Task, Verdict

MAX_TOKENS = 256
STOP = ("\ndef ", "\nclass ", "\nif ", "\nprint(", "\nassert ", "\n#", "\n@", "\n```", "\n\n\n")


class HumanEval(Task):
    """label: "fails", "compiles" or "passes". value: 1 if it passes."""

    name = "humaneval"
    template = "{prompt}"

    def __init__(self, data: DataSource, sandbox: Sandbox) -> None:
        self._data, self._sandbox = data, sandbox

    def load(self) -> list[Item]:
        rows = self._data.read("HumanEval.jsonl.gz")
        return [
            Item(r["task_id"], Completion(self.template.format(prompt=r["prompt"]), MAX_TOKENS, STOP), r) for r in rows
        ]

    def judge(self, item: Item, answer: Answer) -> Verdict:
        assert answer.text is not None
        row = item.reference
        tests = f"{row['test']}\ncheck({row['entry_point']})\n"
        return judge_code(self._sandbox, row["prompt"] + answer.text + "\n", tests)


def judge_code(sandbox: Sandbox, program: str, tests: str) -> Verdict:
    """Whether a generated program compiles, and whether it passes its tests."""
    outcome = sandbox.run(program, tests)
    label = "passes" if outcome.passes else "compiles" if outcome.compiles else "fails"
    return Verdict(label, float(outcome.passes), {"passes": outcome.passes, "compiles": outcome.compiles})
