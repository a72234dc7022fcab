"""Checks the chain of a ledger, and names the first entry that is not as it was appended. spec/receipts.md 7.6.

Takes entries from anywhere, a database or an exported file, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from exactlm.errors import ReceiptError
from exactlm.proof.ledger_entry import DIGEST, MAX_ENTRIES, ORIGIN, Entry, link, seal_of, summarise
from exactlm.receipt import load_strict


@dataclass(frozen=True)
class LedgerReport:
    """What was found. `head_seq`, `head_hash`: the last entry; 0 and zeros for an empty ledger. `broken_seq`: the
    first entry that is not as it was appended, None if all are; `reason`: what is wrong with it."""

    num_entries: int
    num_receipts: int
    num_redacted: int
    head_seq: int
    head_hash: str
    broken_seq: int | None = None
    reason: str = ""

    @property
    def is_sound(self) -> bool:
        return self.broken_seq is None


class Chain:
    """Follows a chain from its first entry."""

    def __init__(self) -> None:
        self.seq, self.hash = 0, ORIGIN
        self.num_entries = self.num_receipts = self.num_redacted = 0
        # 1 for each entry up to the first gap, 0 where its receipt is gone; a gap is blamed before what lies behind it.
        self._is_there = bytearray()
        self._noted: list[tuple[int, int, int]] = []  # first and last of a run, and the entry that notes it
        self._broken: tuple[int, str] | None = None

    def follow(self, entry: Entry) -> None:
        """Takes in the next entry."""
        if entry.seq != self.seq + 1:
            self.blame(self.seq + 1, f"it is missing: entry {entry.seq} stands in its place")
        elif entry.previous != self.hash:
            self.blame(entry.seq, f"it follows {entry.previous!r:.80}, the entry before it is {self.hash}")
        elif reason := find_fault(entry):
            self.blame(entry.seq, reason)
        self.num_entries += 1
        if entry.seq == self.num_entries == len(self._is_there) + 1:
            self._is_there.append(not entry.is_redacted)
        if entry.kind == "receipt":
            self.num_receipts += 1
            self.num_redacted += entry.is_redacted
        elif find_note_fault(entry) is None:  # if it was altered it is blamed, but not those that it names
            self._noted += [(first, last, entry.seq) for first, last in entry.content["entries"]]
        self.seq, self.hash = entry.seq, entry.hash

    def blame(self, seq: int, reason: str) -> None:
        """Notes a fault; the first entry that has one is named."""
        if self._broken is None or seq < self._broken[0]:
            self._broken = seq, reason

    def finish(self, head: tuple[int, str] | None, is_head_found: bool) -> LedgerReport:
        """The report, after the last entry."""
        end = 0
        for first, last, noted_by in sorted(self._noted):
            self._blame_unnoted(end, first - 1)
            if (idx := self._is_there.find(1, max(end, first - 1), last)) >= 0:
                self.blame(idx + 1, f"entry {noted_by} says that it was redacted, but its receipt is there")
            end = max(end, last)
        self._blame_unnoted(end, len(self._is_there))
        if head is not None and not is_head_found:
            self.blame(head[0], f"it should be {head[1]}, which is not in this ledger")
        broken = self._broken or (None, "")
        counts = self.num_entries, self.num_receipts, self.num_redacted
        return LedgerReport(*counts, self.seq, self.hash, *broken)

    def _blame_unnoted(self, begin: int, end: int) -> None:
        """Blames the first of the entries from index begin to end, which no redaction names, whose receipt is gone."""
        if (idx := self._is_there.find(0, begin, end)) >= 0:
            self.blame(idx + 1, "its receipt is gone, and no entry says that it was redacted")


def check_chain(entries: Iterable[Entry], head: tuple[int, str] | None = None) -> LedgerReport:
    """Checks a whole chain. head: number and hash of an entry that was noted elsewhere; it must be there, or the
    chain was cut or made anew."""
    chain, is_head_found = Chain(), head == (0, ORIGIN)
    for entry in entries:
        chain.follow(entry)
        is_head_found |= (entry.seq, entry.hash) == head
    return chain.finish(head, is_head_found)


def find_fault(entry: Entry) -> str | None:
    """What is wrong with an entry by itself; None if nothing is."""
    try:
        found = link(entry.seq, entry.appended, entry.previous, entry.content)
    except ReceiptError as error:
        return f"its content is {error}"
    if found != entry.hash:
        return f"it was altered: its hash is {found}, it says {entry.hash!r:.80}"
    if entry.kind == "redaction":
        has_receipt = entry.salt is not None or entry.receipt_text is not None
        return find_note_fault(entry) or ("it is a redaction, and has a receipt" if has_receipt else None)
    if entry.kind != "receipt" or set(entry.content) != {"kind", "kept", "seal"}:
        return f"its content is of the kind {entry.kind!r:.60}, which spec/receipts.md 7.3 does not know"
    return _find_receipt_fault(entry)


def _find_receipt_fault(entry: Entry) -> str | None:
    salt, text = entry.salt, entry.receipt_text
    if salt is None and text is None:
        return None
    if salt is None or text is None:
        return (
            f"its {'salt' if salt is None else 'receipt'} is gone, its {'receipt' if salt is None else 'salt'} is not"
        )
    if not (isinstance(text, str) and DIGEST.fullmatch(str(salt))) or seal_of(salt, text) != entry.content["seal"]:
        return "its receipt was altered: it does not fit the seal"
    try:
        kept = summarise(load_strict(text, "JSON"))
    except ReceiptError as error:
        return f"its receipt is none: {error}"
    return None if kept == entry.content["kept"] else "what is kept of its receipt is not what the receipt says"


def find_note_fault(entry: Entry) -> str | None:
    """What is wrong with an entry as one that notes a redaction."""
    if entry.kind != "redaction":
        return "it is not a redaction"
    runs: Any = entry.content.get("entries")
    if set(entry.content) != {"kind", "entries", "reason"} or not isinstance(runs, list) or not runs:
        return "it is not a redaction of spec/receipts.md 7.3"
    end = 0
    for run in runs:
        if not isinstance(run, list) or len(run) != 2 or not all(type(seq) is int for seq in run):
            return f"it redacts {run!r:.60}, which is no run of entries"
        if not end < run[0] <= run[1] < entry.seq <= MAX_ENTRIES:
            return f"it redacts {run!r:.60}, which are not entries before it in ascending order"
        end = run[1]
    return None
