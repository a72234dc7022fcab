"""The prompts of an audit: a small set of our own, a file, BoolQ or MT-Bench. Knows no engine."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactlm.errors import ConfigError

DATA_FILES = {"boolq": "boolq_val.jsonl", "mt_bench": "mt_bench_question.jsonl"}
# Lengths from one word to a page: padding, chunks and batches act on lengths.
BUILT_IN = (
    ("word", "Hello"),
    ("fact", "The capital of France is"),
    ("list", "List five things that a ship's crew needs for a long voyage, and say why each of them matters:\n1."),
    ("code", "def median(values):\n    \"\"\"Return the median of a list of numbers.\"\"\"\n"),
    ("grade", "Essay: Homework should be shorter, because children need to play and to sleep. My brother is always "
     "tired.\nGrade the essay from 0 to 10 and give a reason.\nScore:"),
    ("story", "Once upon a time, in a village between two rivers, there lived a miller who could not sleep. Every "
     "night he heard the wheel turn, although he had stopped it himself before supper. One evening he took "
     "a lantern and"),
    ("clause", "The Supplier shall deliver the goods within thirty (30) days of the order. If delivery is late by more "
     "than ten (10) days, the Customer may cancel the order in writing and shall be refunded in full within fourteen "
     "(14) days; any other claim for late delivery is excluded. Question: after how many days of delay may the "
     "customer cancel, and what must the customer do? Answer:"),
    ("sums", "Tom has 14 apples. He gives 3 to each of his 2 sisters, buys a bag of 9 more, and loses 2 on the way "
     "home. Let us work out step by step how many apples Tom has in the end.\nStep 1:"),
)  # fmt: skip


@dataclass(frozen=True)
class AuditPrompt:
    """A prompt and what to call it."""

    name: str
    text: str


def load_prompts(source: str = "built-in", data: str | None = None, limit: int | None = None) -> list[AuditPrompt]:
    """Prompts of "built-in", "boolq", "mt_bench" or a file: JSONL with a `prompt` in each row, or text with one prompt
    a line.

    data: the folder of the data sets' files; None for EXACTLM_DATA. limit: take only so many, from the first. Raises
    ConfigError.
    """
    if source == "built-in":
        found = [AuditPrompt(name, text) for name, text in BUILT_IN]
    elif source in DATA_FILES:
        found = _read_rows(_data_file(DATA_FILES[source], data))
    else:
        path = Path(source)
        found = _read_rows(path) if path.suffix in (".jsonl", ".json") else _read_lines(path)
    found = found[:limit]
    if not found:
        raise ConfigError(f"--prompts {source}: holds no prompt")
    return found


def _data_file(name: str, data: str | None) -> Path:
    folder = data or os.environ.get("EXACTLM_DATA")
    if not folder:
        raise ConfigError(f"{name}: say where it is with --data or EXACTLM_DATA")
    return Path(folder) / name


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _read_lines(path: Path) -> list[AuditPrompt]:
    lines = [line for line in _read_text(path).splitlines() if line.strip()]
    return [AuditPrompt(f"line {i}", line) for i, line in enumerate(lines, 1)]


def _read_rows(path: Path) -> list[AuditPrompt]:
    prompts = []
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = _prompt_of(json.loads(line))
            (text or "").encode()
        except (ValueError, RecursionError) as error:  # an unpaired surrogate is no text, though JSON can spell it
            raise ConfigError(f"{path}, line {number}: is not JSON: {error}") from None
        if text is None:
            raise ConfigError(f"{path}, line {number}: has no text `prompt` (nor BoolQ's or MT-Bench's members)")
        prompts.append(AuditPrompt(f"row {number}", text))
    return prompts


def _prompt_of(row: Any) -> str | None:
    if not isinstance(row, dict):
        return None
    if isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    if isinstance(row.get("passage"), str) and isinstance(row.get("question"), str):
        return f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    turns = row.get("turns")
    return str(turns[0]) if isinstance(turns, list) and turns and isinstance(turns[0], str) else None
