"""The ledger: what is appended stays and is chained; what is altered, removed or erased silently is named."""

from __future__ import annotations

import hashlib
import json
import resource
import sqlite3
import stat
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from exactlm.errors import ConfigError, ExactlmError, LedgerError, ReceiptError
from exactlm.proof.ledger import Ledger, read_export
from exactlm.proof.ledger_check import LedgerReport, check_chain
from exactlm.proof.ledger_entry import (
    MAX_ENTRIES,
    ORIGIN,
    Entry,
    Sealed,
    link,
    read_entry,
    seal_of,
    summarise,
    tell_time,
)
from exactlm.proof.ledger_schema import name_of, read_url
from exactlm.receipt import Receipt, canonical, digest_of
from tests.ledger import fresh_postgres, make

COUNT = 12
DIGEST = "ab" * 32


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "ledger.db")
    else:
        with fresh_postgres() as url:
            yield url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of COUNT receipts, of which 3, 4 and 8 were redacted: entry 13 says so."""
    path = tmp_path / "filled.db"
    with Ledger.open(path) as ledger:
        ledger.append_many([make(i) for i in range(1, COUNT + 1)])
        ledger.redact([3, 4, 8], reason="test")
    return path


def check(path: Path) -> LedgerReport:
    with Ledger.open(path, can_create=False) as ledger:
        return ledger.verify()


def alter(path: Path, statement: str, *values: Any) -> None:
    """What somebody who owns the file can do."""
    with sqlite3.connect(path) as connection:
        for name in ("update", "delete"):
            connection.execute(f"DROP TRIGGER IF EXISTS exactlm_ledger_{name}")
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def rewrite(path: Path, seq: int, **changes: Any) -> None:
    """Changes columns of an entry and makes its hash anew, as a careful forger does."""
    with Ledger.open(path) as ledger:
        values = {**vars(ledger.get(seq)), **changes}
    values["hash"] = link(values["seq"], values["appended"], values["previous"], values["content"])
    content = canonical(values["content"]).decode()
    alter(
        path,
        "UPDATE exactlm_ledger SET appended=?, previous=?, hash=?, content=? WHERE seq=?",
        *(values["appended"], values["previous"], values["hash"], content, seq),
    )


def test_what_is_appended_is_there(place: str) -> None:
    with Ledger.open(place) as ledger:
        assert ledger.head() == (0, ORIGIN)
        assert ledger.verify() == LedgerReport(0, 0, 0, 0, ORIGIN)
        first = ledger.append(make(1))
        others = ledger.append_many([make(2), make(3)])
        assert [first.seq, *(e.seq for e in others)] == [1, 2, 3]
        assert ledger.append_many([]) == []
    with Ledger.open(place, can_create=False) as ledger:
        entries = list(ledger.entries())
        assert entries == [first, *others]
        assert [e.receipt for e in entries] == [make(1), make(2), make(3)]
        assert [e.previous for e in entries] == [ORIGIN, entries[0].hash, entries[1].hash]
        assert [e.seq for e in ledger.entries(2)] == [2, 3]
        assert [e.seq for e in ledger.entries(1, 2)] == [1, 2]
        assert ledger.find(make(2)["digest"]) == [others[0]]
        assert ledger.find(DIGEST) == []
        assert ledger.head() == (3, others[1].hash)
        assert ledger.verify() == LedgerReport(3, 3, 0, 3, others[1].hash)
        with pytest.raises(LedgerError, match="no entry 4; it has 3"):
            ledger.get(4)


def test_a_database_without_an_encoding_keeps_text() -> None:
    with fresh_postgres("ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0") as url:
        receipt = make(1)
        receipt["request"]["text"] = "Wie heißt 😀?"
        receipt["digest"] = digest_of(receipt)
        with Ledger.open(url) as ledger:
            ledger.append(receipt)
            assert ledger.get(1).receipt == receipt
            assert ledger.verify().is_sound


def test_the_hash_is_that_of_the_spec(tmp_path: Path) -> None:
    """spec/receipts.md 7.2 to 7.4, written out."""
    with Ledger.open(tmp_path / "a.db") as ledger:
        entry = ledger.append(make(5))
    receipt = make(5)
    text = b"exactlm-ledger-1\0" + bytes.fromhex(str(entry.salt)) + canonical(receipt)
    sampling = {
        name: value
        for name, value in receipt["sampling"].items()
        if name not in ("logit_bias", "stop", "stop_token_ids", "json_schema", "regex", "grammar")
    }
    kept = {name: receipt[name] for name in ("receipt_version", "spec", "model")}
    kept |= {"sampling": sampling, "finish_reason": "length", "num_prompt_tokens": 3, "num_output_tokens": 3}
    content = {"kind": "receipt", "kept": kept, "seal": hashlib.sha256(text).hexdigest()}
    hashed = {"ledger_version": 1, "seq": 1, "appended": entry.appended, "previous": "0" * 64, "content": content}
    assert entry.hash == hashlib.sha256(canonical(hashed)).hexdigest()
    assert "secret" not in json.dumps(entry.content)
    appended = datetime.fromisoformat(entry.appended.replace("Z", "+00:00"))
    assert abs(datetime.now(timezone.utc) - appended) < timedelta(minutes=1)


def test_threads_and_ledgers_share_one_chain(place: str) -> None:
    ledgers = [Ledger.open(place) for _ in range(3)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(5):
                ledgers[number % 3].append(make(100 * number + i))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    report = ledgers[0].verify()
    assert (report.is_sound, report.num_entries) == (True, 45)
    assert len({e.receipt_text for e in ledgers[1].entries()}) == 45
    for ledger in ledgers:
        ledger.close()


def test_receipts_that_wait_share_a_transaction(tmp_path: Path) -> None:
    are_waiting, sizes = threading.Event(), list[int]()
    with Ledger.open(tmp_path / "a.db") as ledger:
        append = ledger._writer._append

        def append_later(items: Sequence[Sealed]) -> list[Entry]:
            assert are_waiting.wait(60)
            sizes.append(len(items))
            return append(items)

        ledger._writer._append = append_later
        results = [ledger.submit([make(i)]) for i in range(300)]
        are_waiting.set()
        assert [result.result()[0].seq for result in results] == list(range(1, 301))
        assert len({entry.appended for entry in ledger.entries()}) <= len(sizes)  # its time is its transaction's
    assert sum(sizes) == 300
    assert len(sizes) <= 3  # the one that began before all were there, and two of up to 256


def test_what_waits_is_appended_before_the_ledger_closes(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "a.db")
    results = [ledger.submit([make(i)]) for i in range(100)]
    ledger.close()
    assert all(result.done() for result in results)
    with Ledger.open(tmp_path / "a.db") as ledger:
        assert ledger.verify().num_entries == 100
    with pytest.raises(LedgerError, match="is closed"):
        ledger.append(make(1))


def test_what_is_no_receipt_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    altered, missing, odd = make(1), make(2), make(3)
    altered["output"]["text"] = "x"
    del missing["request"]
    odd["extra"] = "\ud800"
    with Ledger.open(tmp_path / "a.db") as ledger:
        good, bad = ledger.submit([make(4)]), [ledger.submit([make(5), r]) for r in (altered, missing, odd)]
        not_one: Any = "text"
        for receipt, reason in ((altered, "was altered"), (missing, "request is missing"), (not_one, "JSON object")):
            with pytest.raises(ReceiptError, match=reason):
                ledger.append(receipt)
        assert good.result()[0].seq >= 1
        assert all(isinstance(result.exception(), ReceiptError) for result in bad)
        assert [e.receipt for e in ledger.entries()] == [make(4)]


def test_durable_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Ledger.open(path) as ledger:
        ledger.append(make(1))
        with ledger._store._engine.connect() as connection:
            settings = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "secure_delete")
            }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_database_refuses_changes(place: str) -> None:
    with Ledger.open(place) as ledger:
        ledger.append_many([make(1), make(2)])
    url = place if "://" in place else f"sqlite:///{place}"
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    statements = [
        "DELETE FROM exactlm_ledger WHERE seq = 1",
        "UPDATE exactlm_ledger SET appended = '2020' WHERE seq = 1",
        "UPDATE exactlm_ledger SET receipt = 'x' WHERE seq = 1",
        "INSERT INTO exactlm_ledger (seq, appended, previous, hash, content) "
        "SELECT 3, appended, previous, 'x', content FROM exactlm_ledger WHERE seq = 2",
        "INSERT INTO exactlm_ledger (seq, appended, previous, hash, content) VALUES (2, 'a', 'b', 'c', 'd')",
    ]
    for statement in statements:
        with pytest.raises(DBAPIError, match=r"append-only|(?i:unique)"), engine.begin() as connection:
            connection.exec_driver_sql(statement)
    engine.dispose()
    with Ledger.open(place) as ledger:
        assert ledger.verify().is_sound


def test_redaction_keeps_the_chain(place: str) -> None:
    with Ledger.open(place) as ledger:
        ledger.append_many([make(i) for i in range(1, COUNT + 1)])
        hashes = [entry.hash for entry in ledger.entries()]
        entry, is_cleared = ledger.redact([4, 3, 8, 3], reason="asked")
        assert is_cleared
        assert entry is not None
        assert entry.content == {"kind": "redaction", "entries": [[3, 4], [8, 8]], "reason": "asked"}
        assert ledger.redact([3, 8], reason="test") == (None, True)
        ledger.append(make(77))
        report = ledger.verify()
        assert (report.is_sound, report.num_entries, report.num_receipts, report.num_redacted) == (True, 14, 13, 3)
        assert [entry.hash for entry in ledger.entries()][:COUNT] == hashes
        redacted = ledger.get(3)
        assert (redacted.is_redacted, redacted.receipt, redacted.salt) == (True, None, None)
        assert redacted.content["kept"] == summarise(make(3))
        assert ledger.find(make(3)["digest"]) == []
        late = datetime.now(timezone.utc) + timedelta(seconds=1)
        assert ledger.redact(before=late - timedelta(days=1), reason="test")[0] is None
        entry, _ = ledger.redact(before=late, reason="test")
        assert entry is not None
        assert entry.content["entries"] == [[1, 2], [5, 7], [9, 12], [14, 14]]
        assert ledger.verify().num_redacted == 13
        for wrong in (
            {},
            {"seqs": [1], "before": late},
            {"seqs": [99]},
            {"seqs": [0]},
            {"before": datetime.now()},
            {"seqs": [9], "reason": " "},
        ):
            with pytest.raises(LedgerError):
                ledger.redact(**{"reason": "test", **wrong})  # type: ignore[arg-type]


def test_redacted_text_is_gone_from_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Ledger.open(path) as ledger:
        ledger.append_many([make(i) for i in range(1, 200)])
        salt, digest = str(ledger.get(7).salt), make(7)["digest"]
        words = [b"secret prompt 7", b"secret answer 7", b"secret stop 7", salt.encode(), digest.encode()]

        stored = b"".join(p.read_bytes() for p in tmp_path.iterdir())
        assert all(word in stored for word in words)
        assert ledger.redact(range(1, 100), reason="test")[1]
        stored = b"".join(p.read_bytes() for p in tmp_path.iterdir())
        assert not [word for word in (*(word + b'"' for word in words[:3]), *words[3:]) if word in stored]
        assert b"secret prompt 150" in stored


def test_a_disk_that_cannot_clear_does_not_undo_a_redaction(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Ledger.open(path) as ledger:
        ledger.append_many([make(i) for i in range(1, 200)])
        ledger.redact([1], reason="test")
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Enough for the log, too little for the pages behind.
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, old[1]))
        try:
            entry, is_cleared = ledger.redact([7], reason="test")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert entry is not None
        assert not is_cleared
        assert ledger.get(7).is_redacted
        assert ledger.verify().is_sound
        assert ledger.redact([7], reason="test") == (None, True)


@pytest.mark.parametrize("column", ["appended", "previous", "hash", "content", "salt", "receipt"])
def test_an_altered_bit_is_named(path: Path, column: str) -> None:
    with Ledger.open(path) as ledger:
        stored = {**vars(ledger.get(6)), "content": canonical(ledger.get(6).content).decode()}
        stored["receipt"] = stored.pop("receipt_text")
    value = str(stored[column])
    for at in range(0, len(value), max(1, len(value) // 23)):
        wrong = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
        alter(path, f"UPDATE exactlm_ledger SET {column} = ? WHERE seq = 6", wrong)
        report = check(path)
        # What stands there as the hash is what the next entry follows; both differ, the first is named.
        assert (report.is_sound, report.broken_seq) == (False, 6), (at, wrong)
    alter(path, f"UPDATE exactlm_ledger SET {column} = ? WHERE seq = 6", value)
    assert check(path).is_sound


@pytest.mark.parametrize(
    ("statement", "seq", "reason"),
    [
        ("DELETE FROM exactlm_ledger WHERE seq = 6", 6, "it is missing: entry 7 stands in its place"),
        ("DELETE FROM exactlm_ledger WHERE seq = 1", 1, "it is missing"),
        ("UPDATE exactlm_ledger SET receipt=NULL, salt=NULL WHERE seq = 6", 6, "no entry says that it was redacted"),
        ("UPDATE exactlm_ledger SET receipt=NULL WHERE seq = 6", 6, "receipt is gone, its salt is not"),
        ("UPDATE exactlm_ledger SET salt=NULL WHERE seq = 6", 6, "salt is gone, its receipt is not"),
        ("DELETE FROM exactlm_ledger WHERE seq = 13", 3, "no entry says that it was redacted"),
        ("UPDATE exactlm_ledger SET salt='00', receipt='{}' WHERE seq = 13", 13, "and has a receipt"),
        ("UPDATE exactlm_ledger SET receipt=x'00ff' WHERE seq = 6", 6, "does not fit the seal"),
        (
            "UPDATE exactlm_ledger SET content=replace(content, '\":0.5', '\":5E-1') WHERE seq = 6",
            6,
            "it was altered",
        ),
        ("UPDATE exactlm_ledger SET content=' ' || content WHERE seq = 6", 6, "it was altered"),
        ('UPDATE exactlm_ledger SET content=\'{"kind":"x",\' || substr(content, 2) WHERE seq = 6', 6, "it was altered"),
        ("UPDATE exactlm_ledger SET content='[' WHERE seq = 6", 6, "it was altered"),
        ("UPDATE exactlm_ledger SET content='[]' WHERE seq = 6", 6, "it was altered"),
        ('UPDATE exactlm_ledger SET content=\'{"kind":"redaction"}\' WHERE seq = 6', 6, "it was altered"),
        ("UPDATE exactlm_ledger SET appended=x'00' WHERE seq = 6", 6, "RFC 8785"),
    ],
)
def test_what_an_owner_of_the_file_does_is_named(path: Path, statement: str, seq: int, reason: str) -> None:
    alter(path, statement)
    report = check(path)
    assert report.broken_seq == seq
    assert reason in report.reason


def test_entries_put_in_another_order_are_named(path: Path) -> None:
    for a, b in ((6, 99), (7, 6), (99, 7)):
        alter(path, "UPDATE exactlm_ledger SET seq = ? WHERE seq = ?", b, a)
    assert check(path).broken_seq == 6


def test_a_forged_entry_breaks_the_chain_behind_it(path: Path) -> None:
    with Ledger.open(path) as ledger:
        content = ledger.get(6).content
    kept = {**content["kept"], "finish_reason": "stop"}
    rewrite(path, 6, content={**content, "kept": kept})
    report = check(path)
    assert (report.broken_seq, report.reason) == (6, "what is kept of its receipt is not what the receipt says")
    rewrite(path, 6, content=content, appended="2020-01-01T00:00:00.000000Z")
    report = check(path)
    assert report.broken_seq == 7
    assert report.reason.startswith("it follows")


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "redaction", "entries": [[3, 4]], "reason": ""},
        {"kind": "redaction", "entries": [[3, 8]], "reason": ""},
        {"kind": "redaction", "entries": [[3, 4], [8, 8], [13, 13]], "reason": ""},
        {"kind": "redaction", "entries": [[8, 8], [3, 4]], "reason": ""},
        {"kind": "redaction", "entries": [[3, 4.5], [8, 8]], "reason": ""},
        {"kind": "redaction", "entries": [[3], [8]], "reason": ""},
        {"kind": "redaction", "entries": [], "reason": ""},
        {"kind": "redaction", "entries": [[3, 4], [8, 8]]},
        {"kind": "other", "entries": [[3, 4], [8, 8]], "reason": ""},
    ],
)
def test_a_forged_redaction_is_named(path: Path, content: dict[str, Any]) -> None:
    rewrite(path, 13, content=content)
    report = check(path)
    assert not report.is_sound
    assert report.broken_seq in (3, 5, 8, 13)


def test_a_receipt_that_is_put_back_is_named(path: Path) -> None:
    with Ledger.open(path) as ledger:
        (entry,) = ledger.append_many([make(50)])
        ledger.redact([entry.seq], reason="test")
    alter(path, "UPDATE exactlm_ledger SET salt=?, receipt=? WHERE seq=?", entry.salt, entry.receipt_text, entry.seq)
    report = check(path)
    assert report.broken_seq == entry.seq
    assert "its receipt is there" in report.reason


def test_a_cut_end_shows_against_a_noted_head(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.append(make(20))
        head = ledger.head()
        ledger.append(make(21))
        assert ledger.verify(head).is_sound
        assert ledger.verify((head[0], DIGEST)).broken_seq == head[0]
    alter(path, "DELETE FROM exactlm_ledger WHERE seq >= ?", head[0])
    with Ledger.open(path) as ledger:
        assert ledger.verify().is_sound  # a chain alone cannot show it
        assert ledger.verify(head).broken_seq == head[0]


def test_the_head_of_an_empty_ledger_is_in_every_ledger(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "empty.db") as ledger:
        head = ledger.head()
        assert ledger.verify(head).is_sound
    with Ledger.open(path) as ledger:
        assert ledger.verify(head).is_sound
        assert not ledger.verify((0, DIGEST)).is_sound


def test_an_export_can_be_checked_alone(path: Path, tmp_path: Path) -> None:
    out, receipts = tmp_path / "out.jsonl", tmp_path / "receipts.jsonl"
    with Ledger.open(path) as ledger:
        assert ledger.export(out) == 13
        assert ledger.export_receipts(receipts) == 9
        assert list(read_export(out)) == list(ledger.entries())
        assert check_chain(read_export(out)) == ledger.verify()
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.export(tmp_path / "no" / "out.jsonl")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [json.loads(line) for line in receipts.read_text().splitlines()][2] == make(5)
    lines = out.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if "secret prompt" not in line:
            continue
        wrong = line.replace("secret prompt", "secret Prompt")
        out.write_text("\n".join([*lines[: number - 1], wrong, *lines[number:]]))
        assert check_chain(read_export(out)).broken_seq == number


def test_an_export_that_fails_leaves_what_was_there(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Ledger.open(path) as ledger:
        ledger.export(out)
        before = out.read_bytes()
        ledger.append(make(21))
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TRIGGER exactlm_ledger_update")
            connection.execute("UPDATE exactlm_ledger SET receipt = X'FF' WHERE seq = 10")
        connection.close()
        with pytest.raises(LedgerError, match="10"):
            ledger.export(out)
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir() if "part" in p.name) == []


def test_an_export_never_overwrites_the_ledger(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "a" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    for number, opened in enumerate((path, link)):
        with Ledger.open(opened) as ledger:
            ledger.append(make(20))
            for target in (path, link, path.with_name(f"{path.name}-wal")):
                for export in (ledger.export, ledger.export_receipts):
                    with pytest.raises(LedgerError, match="of the ledger itself"):
                        export(target)
        assert check(path).num_entries == 14 + number


def test_an_export_goes_where_a_link_points_and_into_streams(path: Path, tmp_path: Path) -> None:
    target, link = tmp_path / ("n" * 250 + ".out"), tmp_path / "link.jsonl"
    link.symlink_to(target)
    with Ledger.open(path) as ledger:
        assert ledger.export(link) == COUNT + 1
        assert link.is_symlink()
        whole = target.read_bytes()
        for mode in ("r+b", "ab"):  # as `{ echo; exactlm ledger export -o -; echo; } > FILE` does, and `>> FILE`
            target.write_bytes(b"before\n")
            with target.open(mode) as file:
                file.seek(0, 2)
                assert ledger.export(f"/dev/fd/{file.fileno()}") == COUNT + 1
                file.write(b"after\n")
            assert target.read_bytes() == b"before\n" + whole + b"after\n"
        target.chmod(0o640)
        ledger.export(target)
        assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_exports_at_the_same_time_are_each_whole(path: Path, tmp_path: Path) -> None:
    out, failed = tmp_path / "out.jsonl", []

    def export(ledger: Ledger) -> None:
        for _ in range(20):
            try:
                ledger.export(out)
            except LedgerError as error:
                failed.append(error)

    with Ledger.open(path) as ledger:
        ledger.export(out)
        whole = out.read_bytes()
        threads = [threading.Thread(target=export, args=(ledger,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert out.read_bytes() == whole
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_redaction_of_countless_entries_is_checked_at_once() -> None:
    """A file may say that entry 2^53 - 1 redacts all before it: nothing is done for each."""
    entries = []
    for seq, last in ((1, 0), (MAX_ENTRIES - 1, MAX_ENTRIES - 2), (MAX_ENTRIES, MAX_ENTRIES - 1)):
        content = {"kind": "redaction", "entries": [[1, last]], "reason": ""}
        digest = link(seq, "", ORIGIN, content)
        entries.append(Entry(seq, "", ORIGIN, digest, content))
    report = check_chain(entries[1:])
    assert (report.num_entries, report.head_seq, report.broken_seq) == (2, MAX_ENTRIES, 1)
    assert "entry 9007199254740990 stands in its place" in report.reason
    assert check_chain(entries).num_entries == 3


def test_faults_before_a_gap_are_named(path: Path) -> None:
    """The redactions of what stands before a gap may stand behind it."""
    alter(path, "DELETE FROM exactlm_ledger WHERE seq IN (6, 10)")
    report = check(path)
    assert (report.num_entries, report.num_receipts, report.num_redacted) == (11, 10, 3)
    assert (report.head_seq, report.broken_seq) == (13, 6)
    alter(path, "UPDATE exactlm_ledger SET receipt=NULL, salt=NULL WHERE seq = 2")
    assert check(path).broken_seq == 2


def test_a_salt_shows_whose_entry_it_was(path: Path) -> None:
    with Ledger.open(path) as ledger:
        mine = ledger.get(5)
        assert mine.salt is not None
        ledger.redact([5], reason="test")
        assert seal_of(mine.salt, canonical(make(5)).decode()) == ledger.get(5).content["seal"]
        assert seal_of(mine.salt, canonical(make(6)).decode()) != ledger.get(5).content["seal"]


ODD = '{"seq":true,"appended":"","previous":"","hash":"","content":{},"salt":null,"receipt":null}'


TWICE = ODD.replace('"salt":null', '"salt":null,"salt":null').replace("true", "1")
NUMBER = ODD.replace("true", "1").replace('"content":{}', '"content":{"a":NaN}')
HUGE = ODD.replace('"receipt":null', '"receipt":{"a":9007199254740993}').replace("true", "1")


@pytest.mark.parametrize("line", ["[]", "{", "{}", '{"seq":1}', "\xff", "[" * 100_000, ODD, TWICE, NUMBER, HUGE])
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(line.encode("latin-1"))
    with pytest.raises(LedgerError, match=r"x\.jsonl"):
        list(read_export(tmp_path / "x.jsonl"))
    with pytest.raises(LedgerError, match="cannot be read"):
        list(read_export(tmp_path / "none.jsonl"))


def test_an_odd_line_of_a_file_is_named(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Ledger.open(path) as ledger:
        ledger.export(out)
    good = out.read_text()
    for line, reason in ((TWICE, "'salt' stands twice"), (NUMBER, "NaN is not a JSON number"), (HUGE, "RFC 8785")):
        out.write_text(good + line + "\n")
        with pytest.raises(LedgerError, match=rf"out\.jsonl:14: .*{reason}"):
            list(read_export(out))


def test_bytes_in_the_place_of_text_are_named(path: Path, tmp_path: Path) -> None:
    alter(path, "UPDATE exactlm_ledger SET receipt = CAST(receipt AS BLOB) WHERE seq = 6")
    with Ledger.open(path) as ledger:
        for export in (ledger.export, ledger.export_receipts):
            with pytest.raises(LedgerError, match="entry 6 was altered: receipt_text holds bytes"):
                export(tmp_path / "out.jsonl")


def test_odd_entries_of_a_file_are_named(path: Path) -> None:
    with Ledger.open(path) as ledger:
        value = ledger.get(1).to_dict()
        assert read_entry(value, "here") == ledger.get(1)
    for name, wrong in (("salt", 5), ("receipt", []), ("seq", "1"), ("content", None), ("receipt", {"a": "\ud800"})):
        with pytest.raises(LedgerError, match="here"):
            read_entry({**value, name: wrong}, "here")


@pytest.mark.parametrize(
    ("place", "kind", "reason"),
    [
        ("none/a.db", LedgerError, "cannot be created"),
        ("mysql://host/x", ConfigError, "use a path"),
        ("sqlite://", ConfigError, "use a path"),
        ("sqlite:///:memory:", ConfigError, "use a path"),
        ("postgresql://u:hush@127.0.0.1:1/x", LedgerError, "cannot be opened"),
        ("://", ConfigError, "cannot be read"),
    ],
)
def test_what_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, kind: type[ExactlmError], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=reason) as caught:
        Ledger.open(place)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("a/b.db", "a/b.db"),
        ("sqlite:///a/b.db", "a/b.db"),
        ("postgresql:///answers", "postgresql+psycopg:///answers"),
        ("postgresql://u:hush@h/answers", "postgresql+psycopg://u:***@h/answers"),
        ("postgresql:///answers?host=/run&password=hush", "postgresql+psycopg:///answers?host=%2Frun"),
    ],
)
def test_a_place_has_one_name_and_no_password(place: str, name: str) -> None:
    assert name_of(read_url(place)) == name


def test_what_the_database_cannot_be_asked_is_an_error(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for ask in (lambda: list(ledger.entries(2**63)), lambda: ledger.get(-(2**64)), lambda: ledger.find("\udcff")):
            with pytest.raises(LedgerError, match=path.name):
                ask()
        for text in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
            with pytest.raises(LedgerError, match="years 1 to 9999"):
                ledger.redact(before=datetime.fromisoformat(text), reason="test")
        assert ledger.verify().num_entries == 13


def test_an_index_that_was_altered_finds_nothing_else(path: Path) -> None:
    with Ledger.open(path) as ledger:
        first, second = (str((ledger.get(seq).receipt or {})["digest"]) for seq in (6, 7))
        salt = ledger.get(5).salt
        alter(path, "UPDATE exactlm_ledger SET receipt_digest = ? WHERE seq = 7", first)
        assert [entry.seq for entry in ledger.find(first)] == [6]
        assert ledger.find(second) == []
        report = ledger.verify()
    assert (report.broken_seq, report.reason) == (7, "the index does not have it under its receipt's digest")
    alter(path, "UPDATE exactlm_ledger SET receipt_digest = ? WHERE seq = 7", second)
    assert check(path).is_sound
    alter(path, "UPDATE exactlm_ledger SET receipt_digest = ? WHERE seq = 3", DIGEST)  # of one that was redacted
    assert check(path).broken_seq == 3
    assert "still has the digest" in check(path).reason
    alter(path, "UPDATE exactlm_ledger SET salt = '00' WHERE seq = 5")  # a fault of the chain behind it
    assert check(path).broken_seq == 3
    alter(path, "UPDATE exactlm_ledger SET salt = ? WHERE seq = 5", salt)
    alter(path, "UPDATE exactlm_ledger SET receipt_digest = NULL WHERE seq = 3")
    assert check(path).is_sound
    alter(path, "UPDATE exactlm_ledger SET receipt_digest = CAST(X'FFFE' AS TEXT) WHERE seq = 5")
    assert check(path).broken_seq == 5


def test_a_receipt_that_has_no_digest_is_named(path: Path) -> None:
    """Whoever owns the database can chain one."""
    with Ledger.open(path) as ledger:
        receipt, (seq, head) = make(21), ledger.head()
        del receipt["digest"]
        text, salt = canonical(receipt).decode(), "00" * 32
        content = {"kind": "receipt", "seal": seal_of(salt, text), "kept": summarise(receipt)}
        values = [seq + 1, head, link(seq + 1, "", head, content), canonical(content).decode(), salt, text]
        columns = "seq, appended, previous, hash, content, salt, receipt"
        alter(path, f"INSERT INTO exactlm_ledger ({columns}) VALUES (?, '', ?, ?, ?, ?, ?)", *values)
        assert check_chain(ledger.entries()).is_sound
        assert ledger.verify().broken_seq == seq + 1


def test_what_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(tmp_path / "a.db", can_create=False)
    (tmp_path / "text").write_text("no database at all, but long enough to look at" * 30)
    for can_create in (False, True):
        with pytest.raises(LedgerError, match="not a database"):
            Ledger.open(tmp_path / "text", can_create=can_create)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(LedgerError, match="no such table"):
        Ledger.open(tmp_path / "other.db", can_create=False)


def test_where_nothing_can_be_written_the_error_says_what_to_do(path: Path) -> None:
    path.with_name(f"{path.name}-wal").mkdir()  # binds root too
    with pytest.raises(LedgerError, match="copy it, with its -wal"):
        Ledger.open(path, can_create=False)


def test_a_damaged_schema_is_an_error(path: Path) -> None:
    """SQLite quotes it in its message, which then is no UTF-8."""
    with Ledger.open(path):
        pass
    content = path.read_bytes()
    at = content.index(b"ix_exactlm_ledger_receipt_digest")
    path.write_bytes(content[: at + 5] + b"\xbe" + content[at + 6 :])
    for can_create in (False, True):
        with pytest.raises(LedgerError, match="cannot be opened as a ledger"):
            Ledger.open(path, can_create=can_create)


def test_a_full_or_broken_database_acknowledges_nothing(path: Path) -> None:
    with Ledger.open(path) as ledger:
        alter(path, "UPDATE exactlm_ledger SET hash = 'x' || hash WHERE seq = 13")
        with sqlite3.connect(path) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON exactlm_ledger BEGIN SELECT RAISE(ABORT, 'full'); END")
        other.close()
        results = [ledger.submit([make(i)]) for i in range(3)]
        for result in results:
            with pytest.raises(LedgerError, match="full"):
                result.result()
        assert ledger.head()[0] == 13


def test_times_sort_as_text() -> None:
    begin = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    moments = [begin + timedelta(microseconds=m) for m in (0, 1, 999_999, 10**6)]
    assert sorted(map(tell_time, moments)) == [tell_time(m) for m in moments]
    assert tell_time(moments[0]) == "2026-01-31T12:00:00.000000Z"
    assert tell_time(moments[0].astimezone(timezone(timedelta(hours=5)))) == "2026-01-31T12:00:00.000000Z"


def test_real_receipts_are_taken(receipts: list[Receipt], tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.db") as ledger:
        entries = ledger.append_many(receipts)
        assert [entry.receipt for entry in ledger.entries()] == receipts
        assert [digest_of(entry.receipt or {}) for entry in entries] == [r["digest"] for r in receipts]
