"""The tasks by name. Knows what each needs; nothing of engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exactlm.bench.data import DataSource
from exactlm.bench.sandbox import Sandbox
from exactlm.bench.task.base import Task
from exactlm.bench.task.boolq import BoolQ
from exactlm.bench.task.contracts import Contracts
from exactlm.bench.task.essays import Essays
from exactlm.bench.task.gsm8k_steps import Gsm8kSteps
from exactlm.bench.task.humaneval import HumanEval
from exactlm.bench.task.mbpp import Mbpp


@dataclass(frozen=True)
class Needs:
    """What tasks may be made of. sandbox: is called by tasks that run generated code, and only by them. essays: where
    there are essays to grade."""

    data: DataSource
    sandbox: Callable[[], Sandbox]
    essays: Callable[[], Essays]


TASKS: dict[str, Callable[[Needs], Task]] = {
    BoolQ.name: lambda needs: BoolQ(needs.data),
    Essays.name: lambda needs: needs.essays(),
    Gsm8kSteps.name: lambda needs: Gsm8kSteps(needs.data),
    HumanEval.name: lambda needs: HumanEval(needs.data, needs.sandbox()),
    Mbpp.name: lambda needs: Mbpp(needs.data, needs.sandbox()),
    Contracts.name: lambda needs: Contracts(needs.data),
}
