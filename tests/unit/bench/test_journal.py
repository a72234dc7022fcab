"""The journal keeps what was written, drops a line cut short, and refuses another run's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm.bench.journal import Journal
from exactlm.errors import ConfigError

HEADER = {"bench": "x", "model": "m"}
RECORDS = [{"condition": "alone", "item": str(i), "value": 1 / (i + 3)} for i in range(3)]


def write(path: Path) -> bytes:
    with Journal(path, HEADER) as journal:
        journal.add(RECORDS)
    return path.read_bytes()


def test_records_come_back_with_every_bit(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "j.jsonl")
    with Journal(tmp_path / "deep" / "j.jsonl", HEADER) as journal:
        assert list(journal.records.values()) == RECORDS


def test_cut_at_any_byte_loses_only_the_last_line(tmp_path: Path) -> None:
    data = write(tmp_path / "j.jsonl")
    for size in range(len(data)):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(data[:size])
        with Journal(path, HEADER) as journal:
            kept = list(journal.records.values())
            assert kept == RECORDS[: max(0, data[:size].count(b"\n") - 1)]
            journal.add(RECORDS[len(kept) :])
        assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"bench": "y", "model": "m"}\n', ["bench"]),
        (b'{"bench": "x"}\n', ["model"]),
        (b"not json\n", ["move it away"]),
        (b'{"bench": "x", "model": "m"}\n[]\n', ["move it away"]),
        (b'{"bench": "x", "model": "m"}\n{"item": "0"}\n', ["condition"]),
        (b"\xff\n", ["move it away"]),
        (b"[1]\n", ["move it away"]),
    ],
)
def test_file_of_another_run_is_refused_and_kept(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Journal(path, HEADER)
    assert all(word in str(caught.value) for word in [str(path), *words])
    assert path.read_bytes() == content


def test_any_text_can_be_kept(tmp_path: Path) -> None:
    odd = {"condition": "alone", "item": "\udcff\u2028\r\n\0\U0001f600", "value": 1e-323}
    with Journal(tmp_path / "j.jsonl", HEADER) as journal:
        journal.add([odd])
    with Journal(tmp_path / "j.jsonl", HEADER) as journal:
        assert list(journal.records.values()) == [odd]


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out"):
        Journal(tmp_path / "file" / "j.jsonl", HEADER)
