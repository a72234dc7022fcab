"""Finds a benchmark's data: a file in the data folder, or the data set of that name on the Hugging Face hub.

Knows file names, hub names and how the hub's fields are called; nothing of prompts.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactlm.errors import ConfigError

Row = dict[str, Any]


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub, and what makes a row of ours of a row of it."""

    path: str
    config: str | None
    split: str
    convert: Callable[[Row], Row]


def _same(row: Row) -> Row:
    return row


HUB_SETS = {
    "boolq_val.jsonl": HubSet(
        "google/boolq",
        None,
        "validation",
        lambda r: {"question": r["question"], "passage": r["passage"], "label": r["answer"]},
    ),
    "gsm8k_test.jsonl": HubSet("openai/gsm8k", "main", "test", _same),
    "HumanEval.jsonl.gz": HubSet("openai/openai_humaneval", None, "test", _same),
    "mbpp.jsonl": HubSet("google-research-datasets/mbpp", "full", "train+test+validation+prompt", _same),
    "mt_bench_question.jsonl": HubSet(
        "HuggingFaceH4/mt_bench_prompts",
        None,
        "train",
        lambda r: {"question_id": r["prompt_id"], "category": r["category"], "turns": list(r["prompt"])},
    ),
}


class DataSource:
    """Where data come from: `folder`, or where it is None the environment variable EXACTLM_DATA, or the hub."""

    def __init__(self, folder: str | Path | None = None) -> None:
        named = folder or os.environ.get("EXACTLM_DATA")
        self.folder = Path(named) if named else None

    def read(self, name: str) -> list[Row]:
        """Rows of a JSON-lines file, or of the data set that stands for it. ConfigError names what is missing."""
        return self._load_hub(name) if self.folder is None else read_rows(self.folder / name)

    def read_texts(self, name: str) -> list[tuple[str, str]]:
        """(name, text) of every .txt file in a folder of the data folder, by name."""
        wanted = f"put each text as a .txt file into DIR/{name}/, and give --data DIR or set EXACTLM_DATA=DIR"
        if self.folder is None:
            raise ConfigError(f"{name}: no folder of data is named, and the hub has no such texts: {wanted}")
        files = sorted((self.folder / name).glob("*.txt"))
        if not files:
            raise ConfigError(f"{self.folder / name}: no .txt files there: {wanted}")
        return [(path.stem, path.read_text(encoding="utf-8", errors="replace")) for path in files]

    def _load_hub(self, name: str) -> list[Row]:
        try:
            import datasets
        except ImportError as error:
            raise ConfigError(
                f"{name}: give --data DIR, the folder that holds it, or pip install 'exactlm[bench]' to load it from "
                f"the hub ({error})"
            ) from None
        hub = HUB_SETS[name]
        try:
            rows: Iterable[Row] = datasets.load_dataset(hub.path, hub.config, split=hub.split)
        except Exception as error:  # whatever the hub's client raises: no network, no such revision, disk full
            raise ConfigError(f"{hub.path}: cannot be loaded from the hub ({error!r:.200}); give --data DIR") from None
        return [hub.convert(dict(row)) for row in rows]


def read_rows(path: Path) -> list[Row]:
    """Rows of a JSON-lines file, which may be compressed with gzip. ConfigError names the file and the line."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); --data names the folder of the data") from None
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False, allow_nan=False).encode()  # NaN and unpaired surrogates are none
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}: line {number} is not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}: line {number} is no JSON object")
            rows.append(row)
    if not rows:
        raise ConfigError(f"{path}: holds no rows")
    return rows
