"""exactlm ledger as a user meets it: outputs, exit statuses, errors."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from exactlm.cli.program import execute
from exactlm.proof.ledger import Ledger
from tests.ledger import make


@pytest.fixture
def path(tmp_path: Path) -> str:
    with Ledger.open(tmp_path / "a.db") as ledger:
        ledger.append_many([make(i) for i in range(1, 31)])
    return str(tmp_path / "a.db")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = execute(["ledger", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_list(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options, numbers in (
        ([], range(11, 31)),
        (["--last", "3"], range(28, 31)),
        (["--first", "25"], range(25, 31)),
        (["--first", "25", "--last", "2"], range(29, 31)),
        (["--last", "99"], range(1, 31)),
        (["--first", "99"], []),
    ):
        status, out, _ = run(capsys, "list", path, *options)
        assert status == 0
        assert [int(line.split()[0]) for line in out.splitlines()] == list(numbers)
        _, out, _ = run(capsys, "list", path, *options, "--json")
        listed = json.loads(out)
        assert [entry["seq"] for entry in listed] == list(numbers)
        assert "secret" not in out
    assert run(capsys, "list", path, "--last", "0")[0] == 2


def test_show(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("7", make(7)["digest"]):
        status, out, _ = run(capsys, "show", path, name)
        assert status == 0
        assert "secret prompt 7" in out
        assert "secret answer 7" in out
        shown = json.loads(run(capsys, "show", path, name, "--json")[1])
        assert (shown["seq"], shown["receipt"]) == (7, make(7))
        assert len(shown["salt"]) == 64
    for wrong, reason in (("31", "it has 30"), ("ab" * 32, "no entry holds"), ("x", "no entry holds")):
        status, _, err = run(capsys, "show", path, wrong)
        assert status == 2
        assert reason in err
    assert run(capsys, "show", path)[0] == 2


@pytest.mark.parametrize("text", ["{}", "[]", "[1]", "5", "null", '{"request":{"chat":{"messages":"["}},"output":{}}'])
def test_an_altered_receipt_is_named(path: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER exactlm_ledger_update")
        connection.execute("UPDATE exactlm_ledger SET receipt = ? WHERE seq = 7", (text,))
    connection.close()
    status, out, err = run(capsys, "show", path, "7")
    assert (status, out) == (2, "")
    assert "entry 7: its receipt was altered" in err


@pytest.mark.parametrize("content", ["[", '{"kind":"redaction","entries":[3]}', '{"kind":"receipt","kept":5}'])
def test_an_altered_entry_is_listed(path: str, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER exactlm_ledger_update")
        connection.execute("UPDATE exactlm_ledger SET content = ? WHERE seq = 30", (content,))
    connection.close()
    for options in (["list", path], ["list", path, "--json"], ["show", path, "30"]):
        assert run(capsys, *options)[0] == 0


def test_verify_and_redact(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, "verify", path, "--json")[1])
    assert (report["sound"], report["num_entries"], report["broken_seq"]) == (True, 30, None)
    head = f"{report['head_seq']}:{report['head_hash']}"
    assert run(capsys, "verify", path, "--head", head)[0] == 0
    status, out, _ = run(capsys, "redact", path, "--seq", "7", "--seq", "8", "--reason", "as\x1b[2Jked")
    assert (status, out) == (0, "2 redacted, noted in entry 31\n")
    assert r'redaction of 7-8: "as\u001b[2Jked"' in run(capsys, "list", path)[1]
    assert "redacted" in run(capsys, "show", path, "7")[1]
    assert run(capsys, "show", path, make(7)["digest"])[0] == 2
    told = json.loads(run(capsys, "redact", path, "--older-than", "0", "--reason", "b", "--json")[1])
    assert (told["redacted"], told["noted_in"], told["cleared"]) == (28, 32, True)
    assert run(capsys, "redact", path, "--before", "2999-01-01", "--reason", "c")[1] == "0 redacted\n"
    status, out, _ = run(capsys, "verify", path, "--head", head)
    assert (status, out.splitlines()[0], out.splitlines()[2]) == (0, "32 entries, 30 receipts, 30 redacted", "sound")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER exactlm_ledger_delete")
        connection.execute("DELETE FROM exactlm_ledger WHERE seq >= 30")
    connection.close()
    status, out, _ = run(capsys, "verify", path, "--head", head)
    assert status == 1
    assert "BROKEN at entry 1: its receipt is gone" in out


def test_export(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.jsonl")
    assert run(capsys, "export", path, "-o", out) == (0, f"30 entries in {out}\n", "")
    assert run(capsys, "verify", out)[0] == 0
    Path(out).write_text(Path(out).read_text().replace("secret prompt 9", "secret prompt 8"))
    status, text, _ = run(capsys, "verify", out)
    assert status == 1
    assert "BROKEN at entry 9: its receipt was altered" in text
    assert json.loads(run(capsys, "export", path, "-o", out, "--receipts", "--json")[1]) == {
        "output": out,
        "receipts": 30,
    }
    assert [json.loads(line) for line in Path(out).read_text().splitlines()] == [make(i) for i in range(1, 31)]
    assert run(capsys, "export", path)[0] == 2
    command = [sys.executable, "-m", "exactlm", "ledger", "export", path, "-o"]
    for name in ("-", "/dev/stdout"):
        ran = subprocess.run([*command, name], capture_output=True, text=True, check=True)
        assert len([json.loads(line) for line in ran.stdout.splitlines()]) == 30
        assert ran.stderr == "30 entries\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["redact", "LEDGER", "--reason", "a"],
        ["redact", "LEDGER", "--seq", "1"],
        ["redact", "LEDGER", "--seq", "1", "--reason", " "],
        ["redact", "LEDGER", "--seq", "1", "--older-than", "3", "--reason", "a"],
        ["redact", "LEDGER", "--before", "yesterday", "--reason", "a"],
        ["redact", "LEDGER", "--older-than", "-1", "--reason", "a"],
        ["redact", "LEDGER", "--older-than", "nan", "--reason", "a"],
        ["redact", "LEDGER", "--older-than", "1e12", "--reason", "a"],
        ["redact", "LEDGER", "--seq", "31", "--reason", "a"],
        ["verify", "LEDGER", "--head", "3:abc"],
        ["verify", "LEDGER", "--seq", "3"],
        ["verify", "LEDGER", "3"],
        ["list", "LEDGER", "--receipts"],
        ["show", "LEDGER", "3", "--reason", "x"],
        ["verify", "none.jsonl"],
        ["list", "none.db"],
    ],
)
def test_wrong_usage_does_nothing(path: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *(path if word == "LEDGER" else word for word in arguments))
    assert (status, out) == (2, "")
    assert err.startswith("exactlm ledger: ")
    with Ledger.open(path) as ledger:
        assert ledger.verify().num_entries == 30
