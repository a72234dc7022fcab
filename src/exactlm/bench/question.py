"""What a benchmark asks an engine, and what it gets back. Knows neither tasks nor engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """Which of these continuations, each one token long, is the most likely? Answered by their log-probabilities."""

    prompt: str
    options: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        """Plain values for a worker."""
        return {"prompt": self.prompt, "options": list(self.options)}


@dataclass(frozen=True)
class Completion:
    """Go on greedily for `max_tokens` at most, up to the first of the stop strings, which is not part of the text."""

    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Plain values for a worker."""
        return {"prompt": self.prompt, "max_tokens": self.max_tokens, "stop": list(self.stop)}


Question = Choice | Completion


@dataclass(frozen=True)
class Answer:
    """`scores`: natural log-probability of each option, for a Choice. `text`: of a Completion. `prompt_sha256`: of the
    prompt's token ids as the engine read them, 16 hex digits: engines can be compared where it is equal."""

    scores: tuple[float, ...] | None
    text: str | None
    prompt_sha256: str

    @classmethod
    def from_wire(cls, given: dict[str, Any]) -> Answer:
        """What a worker sent."""
        scores = given.get("scores")
        return cls(None if scores is None else tuple(scores), given.get("text"), given["prompt_sha256"])
