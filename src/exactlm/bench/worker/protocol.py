"""What every engine of a worker does, and what they share. Standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

Question = dict[str, Any]
Reply = dict[str, Any]


class Engine(Protocol):
    """An engine with a model loaded. `facts`: name and version, for the report."""

    facts: dict[str, Any]

    def choose(self, questions: list[Question]) -> list[Reply]:
        """`scores`: natural log-probability of every option as the next token; all questions together in one batch."""

    def complete(self, questions: list[Question]) -> list[Reply]:
        """`text`: greedy, without the stop string; all questions together in one batch."""


def digest_ids(ids: list[int]) -> str:
    """Of a prompt's token ids: 16 hex digits of SHA-256 of their decimal spellings with spaces between."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


def option_ids(encode: Callable[[str], list[int]], question: Question) -> tuple[list[int], list[int]]:
    """The prompt's token ids, and the one id that each option adds to them. ValueError where an option adds another
    number of tokens or changes those of the prompt."""
    prompt = encode(question["prompt"])
    added = []
    for option in question["options"]:
        ids = encode(question["prompt"] + option)
        if ids[:-1] != prompt:
            raise ValueError(f"the option {option!r} is not one token after the prompt in this model's vocabulary")
        added.append(ids[-1])
    return prompt, added


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)
