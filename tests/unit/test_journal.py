"""The file behind both journals: nothing whole is lost, and nobody else's file is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm.errors import ConfigError
from exactlm.journal import JournalFile

HEADER = {"plan": "a", "number": 1}


def open_file(path: Path, header: dict[str, object] = HEADER, is_fresh: bool = False) -> JournalFile:
    return JournalFile(path, header, "use another one", is_fresh)


def test_lines_come_back_and_a_fresh_start_drops_them(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    with open_file(path) as file:
        assert file.lines == []
        file.append([{"a": 1.5}, {"a": "\u2028\udcff"}])
        file.append([{"a": None}])
    with open_file(path) as file:
        assert file.lines == [{"a": 1.5}, {"a": "\u2028\udcff"}, {"a": None}]
    with open_file(path, {"plan": "b"}, is_fresh=True) as file:
        assert file.lines == []
        file.append([{"a": 2}])
    with open_file(path, {"plan": "b"}) as file:
        assert file.lines == [{"a": 2}]


def test_a_line_that_was_cut_is_dropped_where_it_stands(tmp_path: Path) -> None:
    """Never by writing the file anew: that could be cut, too."""
    path = tmp_path / "a.jsonl"
    with open_file(path) as file:
        file.append([{"a": 1}])
    whole, node = path.read_bytes(), path.stat().st_ino
    path.write_bytes(whole + b'{"a": "\xc3')
    with open_file(path) as file:
        assert file.lines == [{"a": 1}]
        assert path.read_bytes() == whole
    assert path.stat().st_ino == node


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with open_file(path) as file:
        with pytest.raises(ConfigError, match=r"a\.jsonl: another run is writing it: use another one"):
            open_file(path, is_fresh=True)
        file.append([{"a": 1}])
    with open_file(path) as file:
        assert file.lines == [{"a": 1}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"plan": "b", "number": 1}\n', "plan differ"),
        (b'{"plan": "a", "number": 1, "x": 2}\n', "x differ"),
        (b"prose\n", "no record of a run"),
        (b"[1]\n", "no record of a run"),
        (b'{"prompt": "my only copy"}', "no record of a run"),
        (b'{"plan": "b', "no record of a run"),
        (b'{"plan": "a", "number": 1}\n5\n', "no record of a run"),
        (b"\xff\n", "no record of a run"),
        (b"[" * 100_000 + b"\n", "no record of a run"),
    ],
)
def test_files_of_others_are_refused_and_kept(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"a\.jsonl: .*{reason}.*: use another one"):
        open_file(path)
    assert path.read_bytes() == content
