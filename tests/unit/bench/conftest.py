"""A tiny converted model, a task over it, and an engine in this process that can be made noisy on purpose."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from exactlm import convert_to_deterministic
from exactlm.bench.condition import Condition
from exactlm.bench.question import Answer, Choice, Question
from exactlm.bench.task.base import Item, Task, Verdict, most_likely
from exactlm.bench.worker.on_exactlm import ExactLm
from tests import tiny

OPTIONS = (" a", " b", " c", " d")


class Letters(Task):
    """Which letter follows? No answer is right or wrong; the value is the first option's log-probability."""

    name = "letters"
    template = "the {word}"

    def load(self) -> list[Item]:
        words = ("thing", "band", "ring", "and so", "hand", "land", "sand", "king", "wing", "song", "long ago", "tie")
        return [Item(str(i), Choice(self.template.format(word=w), OPTIONS), None) for i, w in enumerate(words)]

    def judge(self, item: Item, answer: Answer) -> Verdict:
        assert answer.scores is not None
        best = most_likely(answer)
        return Verdict(OPTIONS[best], answer.scores[0], {"says a": best == 0})


class LocalSession:
    """The worker's engine without the process. noise: added to scores, drawn anew for every batch."""

    def __init__(self, model: Path, condition: Condition, threads: int, noise: float) -> None:
        number = condition.threads or threads
        self._engine = ExactLm(str(model), number, condition.num_streams, condition.has_prefix_cache)
        self._noise, self._draw = noise, random.Random(condition.name)
        self.facts: dict[str, Any] = self._engine.facts

    def ask(self, questions: Sequence[Question]) -> tuple[list[Answer], float]:
        answers = []
        for reply in self._engine.choose([q.to_wire() for q in questions]):
            scores = [s + self._noise * self._draw.gauss(0, 1) for s in reply["scores"]]
            answers.append(Answer(tuple(scores), None, reply["prompt_sha256"]))
        return answers, 1.0

    def memory(self) -> dict[str, int]:
        return {"resident": 1, "peak": 1, "private": 1}

    def __enter__(self) -> LocalSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass
class LocalEngine:
    """An engine in this process; counts what it is asked, and raises KeyboardInterrupt after `patience` batches."""

    model: Path
    noise: float = 0.0
    name: str = "local"
    identity: str = "tiny"
    is_exact: bool = True
    patience: int | None = None
    asked: list[int] = field(default_factory=list)

    def refuse(self, condition: Condition) -> str | None:
        return None

    def open(self, condition: Condition, threads: int) -> LocalSession:
        session = LocalSession(self.model, condition, threads, self.noise)
        ask = session.ask

        def counted(questions: Sequence[Question]) -> tuple[list[Answer], float]:
            if self.patience is not None and len(self.asked) >= self.patience:
                raise KeyboardInterrupt
            self.asked.append(len(questions))
            return ask(questions)

        session.ask = counted  # type: ignore[method-assign]
        return session


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    source = tiny.write_checkpoint(folder / "source")
    return convert_to_deterministic(source).save_pretrained(folder / "model", progress=False)


@pytest.fixture
def letters() -> Letters:
    return Letters()
