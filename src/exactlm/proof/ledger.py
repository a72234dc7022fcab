"""The ledger: an append-only, hash-chained store of receipts, for one process or several. spec/receipts.md 7.

An append that has returned survives kill -9 and power loss. Receipts that wait at the same time share a transaction.
Knows nothing of models. Needs the extra `proof`, for PostgreSQL also `postgres`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from exactlm.errors import ConfigError, LedgerError, ReceiptError
from exactlm.proof.ledger_check import LedgerReport, check_chain
from exactlm.proof.ledger_entry import Entry, read_entry
from exactlm.proof.ledger_writer import Writer
from exactlm.receipt import Receipt, load_strict

if TYPE_CHECKING:
    from exactlm.proof.ledger_store import Store


_STREAM = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)")


class Ledger:
    """A ledger that is open. Safe to use from any thread, not across a fork. Close it, or use it in a `with`."""

    def __init__(self, store: Store) -> None:
        """Use Ledger.open."""
        self._store = store
        self._writer = Writer(store.append)

    @classmethod
    def open(cls, url_or_path: str | os.PathLike[str], can_create: bool = True) -> Ledger:
        """The ledger in a SQLite file or at a PostgreSQL URL. can_create: make it if it is not there.

        ConfigError for another URL or a missing package; LedgerError if it cannot be opened.
        """
        try:
            from exactlm.proof.ledger_schema import read_url
            from exactlm.proof.ledger_store import Store
        except ImportError:
            raise ConfigError('a ledger needs the package sqlalchemy: pip install "exactlm[proof]"') from None
        return cls(Store(read_url(url_or_path), can_create))

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Appends what was submitted, and closes the database."""
        self._writer.close()
        self._store.close()

    @property
    def name(self) -> str:
        """Where it is: a path, or a URL without its password."""
        return self._store.name

    def append(self, receipt: Receipt) -> Entry:
        """Appends a receipt; returns when it is durable. ReceiptError if it is not one; LedgerError if the database
        fails: then it was not acknowledged, and where a connection broke it may be there all the same."""
        return self.submit([receipt]).result()[0]

    def append_many(self, receipts: Sequence[Receipt]) -> list[Entry]:
        """Appends receipts together, all or none; returns when they are durable. Errors as those of append."""
        return self.submit(receipts).result()

    def submit(self, receipts: Sequence[Receipt]) -> Future[list[Entry]]:
        """append_many that does not wait: the result comes when they are durable."""
        return self._writer.submit(list(receipts))

    def entries(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries from number `first` to `last`, in their order, as they are at this moment."""
        return self._store.read(first, last)

    def get(self, seq: int) -> Entry:
        """The entry of a number. LedgerError if there is none."""
        entry = self._store.get(seq)
        if entry is None:
            raise LedgerError(f"{self.name}: there is no entry {seq}; it has {self.head()[0]}")
        return entry

    def find(self, receipt_digest: str) -> list[Entry]:
        """The entries that hold the receipt of this digest; redacted ones are not found."""
        found = map(self.get, self._store.find(receipt_digest))  # by an index, which the chain does not cover
        return [entry for entry in found if (entry.receipt or {}).get("digest") == receipt_digest]

    def head(self) -> tuple[int, str]:
        """Number and hash of the last entry, 0 and zeros if there is none: worth noting elsewhere."""
        return self._store.head()

    def verify(self, head: tuple[int, str] | None = None) -> LedgerReport:
        """Checks the whole chain, and that every receipt is found by its digest. head: number and hash of an entry as
        noted elsewhere; it must be there."""
        report = check_chain(self.entries(), head)
        if (found := self._store.find_misfiled()) is not None and found[0] < (report.broken_seq or math.inf):
            report = replace(report, broken_seq=found[0], reason=found[1])
        return report

    def redact(
        self, seqs: Iterable[int] | None = None, before: datetime | None = None, *, reason: str
    ) -> tuple[Entry | None, bool]:
        """Erases the receipts of entries by number, or of those appended before a time, and notes that in the chain.

        Returns the entry that notes it, None if no receipt was left to erase; and whether the database could clear
        what was erased: in SQLite a reader of old rows can delay it until the next redaction. PostgreSQL does not tell
        whether an old transaction kept it from clearing: there True means that it was vacuumed. LedgerError.
        """
        if (seqs is None) == (before is None):
            raise LedgerError("a redaction needs either numbers of entries or a time")
        if not reason.strip():
            raise LedgerError("a redaction needs a reason: it stays in the chain and cannot be added later")
        entry = self._store.redact(None if seqs is None else sorted(set(seqs)), before, reason)
        return entry, self._store.forget_erased()

    def export(self, path: str | os.PathLike[str]) -> int:
        """Writes all entries to a file, one JSON object a line; returns their number. LedgerError."""
        self._check_target(path)
        return _write(path, (json.dumps(entry.to_dict(), ensure_ascii=False) for entry in self.entries()))

    def export_receipts(self, path: str | os.PathLike[str]) -> int:
        """Writes the receipts that are there to a file, one a line; returns their number. LedgerError."""
        self._check_target(path)
        return _write(path, self._receipt_texts())

    def _check_target(self, path: str | os.PathLike[str]) -> None:
        """LedgerError for a file of the ledger itself: to open it for writing would empty it."""
        place = os.path.realpath(self.name)
        for own in (place, f"{place}-wal", f"{place}-shm"):
            if os.path.exists(path) and os.path.exists(own) and os.path.samefile(path, own):
                raise LedgerError(f"{path}: is a file of the ledger itself; name another one to write")

    def _receipt_texts(self) -> Iterator[str]:
        for entry in self.entries():
            entry.check_types()
            if entry.receipt_text is not None:
                yield entry.receipt_text


def _write(path: str | os.PathLike[str], lines: Iterator[str]) -> int:
    """Whole or not at all, and then what stood there stays: the beginning of a chain looks like a whole one."""
    count = 0
    try:
        with _open_target(path) as file:
            for line in lines:
                file.write(line + "\n")
                count += 1
    except BrokenPipeError:  # who reads a pipe may have had enough: `| head`
        raise
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written: {error.strerror}") from None
    except UnicodeEncodeError as error:
        raise LedgerError(f"{path}: line {count + 1}: the entry was altered and cannot be written: {error}") from None
    return count


@contextlib.contextmanager
def _open_target(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A file that takes its place only when it is whole and on the disk; what is no file of the disk is written to.
    What the caller of this process has open is gone on with where it stands: `>>` appends."""
    stream = _STREAM.fullmatch(os.path.abspath(path))
    target = Path(os.path.realpath(path))
    if stream or (target.exists() and not target.is_file()):
        number = stream and ({"stdout": "1", "stderr": "2"}.get(stream[1], stream[2]))
        with open(path if number is None else os.dup(int(number)), "w", encoding="utf-8") as file:
            yield file
        return
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
    descriptor, part = tempfile.mkstemp(".part", ".exactlm-", target.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(part, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def read_export(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """The entries of a file that `export` wrote, for check_chain. LedgerError names the line."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield read_entry(load_strict(line, f"{path}:{number}"), f"{path}:{number}")
    except ReceiptError as error:
        raise LedgerError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: cannot be read as an exported ledger: {error}") from None
