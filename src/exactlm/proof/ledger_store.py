"""Appends to a ledger's table, reads it, and takes receipts out of it. Needs the extra `proof`.

Every change is one transaction that first takes the only writer's place: two processes cannot fork the chain. Knows
entries, not where receipts come from.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, insert, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from exactlm.errors import LedgerError, ReceiptError
from exactlm.proof.ledger_entry import ORIGIN, Entry, Sealed, link, note_redaction, tell_time
from exactlm.proof.ledger_schema import (
    TABLE,
    forget_erased,
    lock_for_writing,
    name_of,
    open_database,
    see_one_moment,
    tell,
)
from exactlm.receipt import canonical

_COLUMNS = TABLE.c
_ENTRY = [_COLUMNS[name] for name in ("seq", "appended", "previous", "hash", "content", "salt", "receipt")]
_ROWS_AT_ONCE = 256


class Store:
    """One chain, in one table of one database."""

    def __init__(self, url: URL, can_create: bool) -> None:
        self.name = name_of(url)
        self._engine = open_database(url, can_create)
        self._writing = self._engine.execution_options(is_write=True)

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def append(self, items: Sequence[Sealed]) -> list[Entry]:
        """Appends receipts in one transaction; returns when it is durable."""
        with self._changing() as connection:
            return self._extend(connection, [(item.content, item) for item in items])

    def redact(self, seqs: Sequence[int] | None, before: datetime | None, reason: str) -> Entry | None:
        """Erases receipts, and notes it in the chain in the same transaction; None if there was none to erase."""
        chosen: ColumnElement[bool] = _COLUMNS.receipt.is_not(None)
        if before is not None:
            chosen = and_(chosen, _COLUMNS.appended < tell_time(before))
        with self._changing() as connection:
            there = list(connection.execute(select(_COLUMNS.seq).where(chosen).order_by(_COLUMNS.seq)).scalars())
            if seqs is not None:
                there = self._pick(connection, seqs, set(there))
            if not there:
                return None
            erased = update(TABLE).values(salt=None, receipt=None, receipt_digest=None)
            for begin in range(0, len(there), _ROWS_AT_ONCE):
                connection.execute(erased.where(_COLUMNS.seq.in_(there[begin : begin + _ROWS_AT_ONCE])))
            (entry,) = self._extend(connection, [(note_redaction(there, reason), None)])
        return entry

    def forget_erased(self) -> bool:
        """Whether the database could clear what was erased; see ledger_schema."""
        return forget_erased(self._engine)

    def read(self, first: int, last: int | None) -> Generator[Entry, None, None]:
        """The entries from `first` to `last`, of one moment, in their order."""
        query = select(*_ENTRY).where(_COLUMNS.seq >= first).order_by(_COLUMNS.seq)
        if last is not None:
            query = query.where(_COLUMNS.seq <= last)
        with self._telling(), self._engine.connect() as connection:
            options = {"stream_results": True, "yield_per": _ROWS_AT_ONCE}
            with connection.execute(query, execution_options=options) as rows:
                for row in rows:
                    yield _read_row(row)

    def get(self, seq: int) -> Entry | None:
        """One entry."""
        with contextlib.closing(self.read(seq, seq)) as entries:
            return next(entries, None)

    def find(self, receipt_digest: str) -> list[int]:
        """The numbers of the entries that have the receipt of this digest."""
        query = select(_COLUMNS.seq).where(_COLUMNS.receipt_digest == receipt_digest).order_by(_COLUMNS.seq)
        with self._telling(), self._engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def find_misfiled(self) -> tuple[int, str] | None:
        """The first entry whose receipt its digest does not find, or that is found though its receipt is gone, and
        which of the two; None if there is none."""
        there = select(_COLUMNS.seq, _COLUMNS.receipt).where(_COLUMNS.receipt.is_not(None)).order_by(_COLUMNS.seq)
        gone = select(_COLUMNS.seq).where(_COLUMNS.receipt.is_(None), _COLUMNS.receipt_digest.is_not(None))
        with self._telling(), self._engine.connect() as connection:
            see_one_moment(connection)
            kept = connection.execute(gone.order_by(_COLUMNS.seq).limit(1)).scalars()
            misfiled = [(int(seq), "its receipt is gone, but the index still has the digest of it") for seq in kept]
            options = {"stream_results": True, "yield_per": _ROWS_AT_ONCE}
            with connection.execute(there, execution_options=options) as rows:
                for part in rows.partitions():
                    if seqs := _look_up(connection, {int(row.seq): _read_digest(row.receipt) for row in part}):
                        misfiled.append((min(seqs), "the index does not have it under its receipt's digest"))
                        break
        return min(misfiled, default=None)

    def head(self) -> tuple[int, str]:
        """Number and hash of the last entry; 0 and zeros if there is none."""
        with self._telling(), self._engine.connect() as connection:
            return _read_head(connection)

    def _pick(self, connection: Connection, seqs: Sequence[int], there: set[int]) -> list[int]:
        end, _ = _read_head(connection)
        if odd := [seq for seq in seqs if not 1 <= seq <= end]:
            raise LedgerError(f"{self.name}: there is no entry {odd[0]}; it has {end}")
        return sorted(there & set(seqs))

    def _extend(self, connection: Connection, items: Sequence[tuple[dict[str, Any], Sealed | None]]) -> list[Entry]:
        seq, previous = _read_head(connection)
        appended = tell_time(datetime.now(timezone.utc))
        entries: list[Entry] = []
        rows: list[dict[str, Any]] = []
        for content, sealed in items:
            seq += 1
            salt, text, digest = (sealed.salt, sealed.receipt_text, sealed.receipt_digest) if sealed else (None,) * 3
            entry = Entry(seq, appended, previous, link(seq, appended, previous, content), content, salt, text)
            row = {"seq": seq, "appended": appended, "previous": previous, "hash": entry.hash, "salt": salt}
            rows.append({**row, "content": canonical(content).decode(), "receipt": text, "receipt_digest": digest})
            entries.append(entry)
            previous = entry.hash
        if rows:
            connection.execute(insert(TABLE), rows)
        return entries

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Connection]:
        with self._telling(), self._writing.begin() as connection:
            lock_for_writing(connection)
            yield connection

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OverflowError, UnicodeError) as error:  # what SQLite cannot be asked or say
            raise LedgerError(f"{self.name}: {tell(error)}") from error


def _read_head(connection: Connection) -> tuple[int, str]:
    query = select(_COLUMNS.seq, _COLUMNS.hash).order_by(_COLUMNS.seq.desc()).limit(1)
    row = connection.execute(query).first()
    return (0, ORIGIN) if row is None else (int(row.seq), str(row.hash))


def _look_up(connection: Connection, digests: dict[int, str | None]) -> list[int]:
    """Those of these entries that the index does not find by their digests."""
    wanted = [digest for digest in digests.values() if digest is not None]
    query = select(_COLUMNS.seq, _COLUMNS.receipt_digest).where(_COLUMNS.receipt_digest.in_(wanted))
    found = {(int(row.seq), row.receipt_digest) for row in connection.execute(query)}
    return [seq for seq, digest in digests.items() if (seq, digest) not in found]


def _read_digest(receipt_text: Any) -> str | None:
    """None where there is none: the check of the chain has then said more of it, or the receipt never had one."""
    try:
        digest = json.loads(receipt_text)["digest"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return digest if isinstance(digest, str) else None


def _read_row(row: Any) -> Entry:
    try:
        content = json.loads(row.content)
        is_ours = isinstance(content, dict) and canonical(content).decode() == row.content
    except (ValueError, TypeError, RecursionError, ReceiptError):
        is_ours = False
    if not is_ours:  # 1E-7 for 1e-7, say, or a member twice: no writer of ours did that, and its hash will show it
        content = {"kind": "unreadable"}
    return Entry(row.seq, row.appended, row.previous, row.hash, content, row.salt, row.receipt)
