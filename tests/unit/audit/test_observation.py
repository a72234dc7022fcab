"""The record of an audit: complete after an interruption, and never of another audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm.audit.observation import Journal, Observation
from exactlm.errors import ConfigError

HEADER = {"target": {"engine": "toy"}, "plan": "abc"}


def fill(path: Path) -> None:
    with Journal(path, HEADER) as journal:
        journal.add(Observation("base", 0, "é\u2028x", ["é"], [-0.1], "d", 0.0, 1.0, "stop", 0.5))
        journal.finish("base")
        journal.add(Observation("load", 1, error="status 500"))
        journal.note("load", {"preemptions": 3})


def test_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fill(path)
    with Journal(path, HEADER) as again:
        assert again.done == ["base"]
        assert again.notes == {"load": {"preemptions": 3}}
        assert again.observations == [
            Observation("base", 0, "é\u2028x", ["é"], [-0.1], "d", 0.0, 1.0, "stop", 0.5),
            Observation("load", 1, error="status 500"),
        ]
        again.finish("load")
    with Journal(path, HEADER) as third:
        assert third.done == ["base", "load"]


def test_every_cut_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fill(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with Journal(path, HEADER) as journal:
            journal.add(Observation("more", 2))
        with Journal(path, HEADER) as again:
            assert again.observations[-1] == Observation("more", 2)


def test_another_audit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fill(path)
    with pytest.raises(ConfigError, match=r"plan differ.*--restart"):
        Journal(path, {**HEADER, "plan": "other"})
    with Journal(path, {**HEADER, "plan": "other"}, is_fresh=True) as journal:
        assert journal.observations == []


@pytest.mark.parametrize("text", ["hello\n", "[1]\n", '{"a": 1}\n', '{"journal": 1, "target": 1}\nnot json\n'])
def test_other_files_are_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"a\.jsonl"):
        Journal(path, HEADER)
    assert path.read_text() == text


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Journal(tmp_path / "no" / "a.jsonl", HEADER)
