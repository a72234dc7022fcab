"""Each task: prompts that hold what they should, and answers judged right and wrong."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from exactlm.bench.catalogue import TASKS
from exactlm.bench.condition import CONDITIONS
from exactlm.bench.data import DataSource
from exactlm.bench.question import Answer, Choice, Completion
from exactlm.bench.sandbox import Sandbox
from exactlm.bench.task.base import Item, Task
from exactlm.bench.task.boolq import BoolQ
from exactlm.bench.task.contracts import Contracts
from exactlm.bench.task.essays import Essays
from exactlm.bench.task.gsm8k_steps import RESULT, Gsm8kSteps, choose_step
from exactlm.bench.task.humaneval import HumanEval
from exactlm.bench.task.mbpp import Mbpp
from exactlm.cli import bench
from exactlm.errors import ConfigError


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def scored(*scores: float) -> Answer:
    return Answer(scores, None, "")


def said(text: str) -> Answer:
    return Answer(None, text, "")


def prompt_of(item: Item) -> str:
    assert isinstance(item.question, (Choice, Completion))
    return item.question.prompt


def test_boolq(tmp_path: Path) -> None:
    rows = [{"question": "is it so", "passage": "It is so.", "idx": 7, "label": True}]
    write_rows(tmp_path / "boolq_val.jsonl", rows)
    task = BoolQ(DataSource(tmp_path))
    (item,) = task.load()
    assert item.id == "7"
    assert prompt_of(item) == "It is so.\n\nQuestion: is it so? Yes or no?\nAnswer:"
    yes, no = task.judge(item, scored(-2.0, -1.0)), task.judge(item, scored(-1.0, -2.0))
    assert (yes.label, yes.marks) == ("yes", {"accuracy": True, "says yes": True})
    assert (no.label, no.marks) == ("no", {"accuracy": False, "says yes": False})
    assert yes.value == 1 / (1 + math.exp(-1))
    assert task.judge(item, scored(-1.0, -5000.0)).value < 1e-300
    assert task.judge(item, scored(-1.0, -1.0)).label == "no"  # a tie goes to the first option


SOLUTION = "He buys 2*3=<<2*3=6>>6 eggs.\nHe pays 6*1,000=$<<6*1000=6000>>6,000.\nSo it is much.\n#### 6000"


def test_gsm8k_steps_are_wrong_by_rule() -> None:
    steps = [choose_step(f"question {i}", SOLUTION) for i in range(200)]
    found = [step for step in steps if step is not None]
    assert len(found) == 200
    assert 70 < sum(step.is_right for step in found) < 130
    assert {step.before for step in found} == {("He buys 2*3=6 eggs.",)}
    assert {step.text for step in found if step.is_right} == {"He pays 6*1,000=$6,000."}
    wrong = {step.text for step in found if not step.is_right}
    assert wrong == {f"He pays 6*1,000=$6,00{i}." for i in range(1, 10)}
    assert choose_step("q", "no number\n#### 3") is None
    assert choose_step("q", "half is <<1/2=0.5>>0.5\n#### 0.5") is None
    found_numbers = RESULT.finditer("<<1+1=2>>2, then <<2.5*2=5>>5. <<1/4=.25>>.25 <<3/2=1.5>>1.5")
    assert [m[1].rstrip(",") for m in found_numbers] == ["2", "5"]


def test_gsm8k_items(tmp_path: Path) -> None:
    rows = [{"question": f"question {i}", "answer": SOLUTION} for i in range(20)]
    write_rows(tmp_path / "gsm8k_test.jsonl", rows)
    task = Gsm8kSteps(DataSource(tmp_path))
    items = task.load()
    assert items == task.load()
    for item in items:
        assert (item.reference == "yes") == ("Next step: He pays 6*1,000=$6,000.\n" in prompt_of(item))
        assert "<<" not in prompt_of(item)
        right = (-2.0, -1.0) if item.reference == "yes" else (-1.0, -2.0)
        assert task.judge(item, scored(*right)).marks["accuracy"]
        assert not task.judge(item, scored(*right[::-1])).marks["accuracy"]


def test_essays(tmp_path: Path) -> None:
    path = tmp_path / "essays.jsonl"
    write_rows(path, [{"prompt": "Write.", "essay": "I {wrote}.", "score": 3}])
    task = Essays(path)
    (item,) = task.load()
    assert "Essay: I {wrote}.\n\nGrade (1-5): " in prompt_of(item)
    assert item.reference == 3
    even = task.judge(item, scored(*[math.log(0.2)] * 5))
    assert even.label == "1"
    assert abs(even.value - 3) < 1e-15
    sure = task.judge(item, scored(-900.0, -900.0, -900.0, -900.0, 0.0))
    assert (sure.label, sure.value) == ("5", 5.0)
    write_rows(path, [{"prompt": "Write."}])
    with pytest.raises(ConfigError, match=r"essay 0 has no text 'essay'"):
        task.load()


LEASE = (
    "LEASE made March 3, 2011 between  Acme Holdings, Inc. and Bob.\nThis Lease is governed by the laws of the State "
    "of Ohio and nothing else."
)


@pytest.mark.parametrize(
    ("text", "term", "answer", "is_right", "is_verbatim"),
    [
        (LEASE, "party", " Acme Holdings, Inc.", True, True),
        (LEASE, "party", " acme holdings, inc", True, True),
        (LEASE, "party", " Beta Holdings, Inc.", False, False),
        (LEASE, "party", " Bob", False, True),
        (LEASE, "date", " March 3, 2011", True, True),
        (LEASE, "date", " It was made March 3, 2011.", True, False),
        (LEASE, "date", " March 4, 2011", False, False),
        (LEASE, "date", " March", False, True),
        (LEASE, "date", "", False, False),
        (LEASE, "law", " The State of Ohio", True, True),
        (LEASE, "law", " Texas", False, False),
        (LEASE, "law", " none", False, False),
        ("A note.", "law", " None.", True, False),
        ("A note.", "law", " Ohio", False, False),
        ("A note.", "date", " none", True, False),
        ("A note.", "party", " none", True, False),
        ("Dated 1/2/99 and the 5th day of May, 2001.", "date", " the 5th day of May, 2001", True, True),
        ("Dated 1/2/99.", "date", " 1/2/99", True, True),
    ],
)
def test_contracts(tmp_path: Path, text: str, term: str, answer: str, is_right: bool, is_verbatim: bool) -> None:
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "c.txt").write_text(text)
    task = Contracts(DataSource(tmp_path))
    items = {item.id: item for item in task.load()}
    assert items.keys() == {"c/party", "c/date", "c/law"}
    verdict = task.judge(items[f"c/{term}"], said(answer))
    assert verdict.marks == {"right": is_right, "verbatim": is_verbatim}
    assert verdict.value == float(is_right)


HUMAN = {
    "task_id": "HumanEval/0",
    "prompt": '\ndef add(a, b):\n    """Adds."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
BASIC = {"text": "Write add.", "task_id": 11, "test_setup_code": "one = 1", "test_list": ["assert add(one, 2) == 3"]}


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("\n    return a + b\n", "passes"),
        ("\n    return a - b\n", "compiles"),
        ("\n    return a +\n", "fails"),
        ("", "fails"),
        ("\n\n", "fails"),
        ("\n    import os; os._exit(0)", "compiles"),
    ],
)
def test_code(tmp_path: Path, answer: str, label: str) -> None:
    write_rows(tmp_path / "HumanEval.jsonl.gz", [HUMAN])
    write_rows(tmp_path / "mbpp.jsonl", [{**BASIC, "task_id": 2}, BASIC])
    sandbox, data = Sandbox(is_isolated=False), DataSource(tmp_path)
    tasks: list[tuple[Task, str]] = [(HumanEval(data, sandbox), answer)]
    tasks.append((Mbpp(data, sandbox), f"def add(a, b):{answer}" if answer.strip() else answer))
    for task, text in tasks:
        (item,) = task.load()
        verdict = task.judge(item, said(text))
        assert verdict.label == label
        assert verdict.marks == {"passes": label == "passes", "compiles": label != "fails"}


def test_the_command_names_every_task_and_condition() -> None:
    """It has the names in places of its own, so that --help needs none of the modules."""
    assert tuple(TASKS) == bench.NAMES
    assert ", ".join(CONDITIONS) in " ".join(bench.EPILOG.split())


def test_templates_leave_no_field_open(tmp_path: Path) -> None:
    """Braces in the data stay, those of the template are filled."""
    rows = [{"question": "is {x} {}", "passage": "{y} {{z}}", "label": False}]
    write_rows(tmp_path / "boolq_val.jsonl", rows)
    (item,) = BoolQ(DataSource(tmp_path)).load()
    assert "{y} {{z}}" in prompt_of(item)
    assert "is {x} {}?" in prompt_of(item)
    for task in (BoolQ, Gsm8kSteps, HumanEval, Mbpp, Contracts, Essays):
        assert re.findall(r"\{\w+\}", task.template), task.name
