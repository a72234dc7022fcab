"""Entries of a ledger: what is hashed into the chain, what is sealed, and what stays when a receipt is taken out.
spec/receipts.md 7.

Knows receipts as plain values; nothing of databases, and nothing of models.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from exactlm.errors import LedgerError, ReceiptError
from exactlm.receipt import Receipt, canonical, digest_of

LEDGER_VERSION = 1
SEALED_PREFIX = b"exactlm-ledger-1\0"
ORIGIN = "0" * 64  # what the first entry follows
MAX_ENTRIES = 2**53 - 1  # the largest integer of RFC 8785
# Members of `sampling` that may quote what was asked: they go with the receipt.
TELLING = {"logit_bias", "stop", "stop_token_ids", "json_schema", "regex", "grammar"}
DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One link of the chain. `appended`: UTC, ISO 8601 with microseconds. `previous`, `hash`: SHA-256 in hexadecimal.
    `content`: spec/receipts.md 7.3. `salt` and `receipt_text`, the receipt's canonical form: None once redacted, and
    in an entry that notes a redaction."""

    seq: int
    appended: str
    previous: str
    hash: str
    content: dict[str, Any]
    salt: str | None = None
    receipt_text: str | None = None

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, if it is still there. LedgerError if it was altered beyond reading."""
        if self.receipt_text is None:
            return None
        try:
            return dict(json.loads(self.receipt_text))
        except (ValueError, TypeError, RecursionError) as error:
            raise LedgerError(f"entry {self.seq}: its receipt was altered and cannot be read: {error}") from None

    @property
    def kind(self) -> str:
        """One of "receipt" and "redaction"."""
        return str(self.content.get("kind"))

    @property
    def is_redacted(self) -> bool:
        """Whether the receipt was taken out."""
        return self.kind == "receipt" and self.receipt_text is None

    def check_types(self) -> None:
        """LedgerError if a text of it was altered into bytes, as SQLite lets one."""
        if odd := [name for name, value in vars(self).items() if isinstance(value, bytes)]:
            raise LedgerError(f"entry {self.seq} was altered: {odd[0]} holds bytes, not text")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `export` writes them. LedgerError if one was altered beyond reading."""
        self.check_types()
        values = dict(vars(self))
        del values["receipt_text"]
        return {**values, "receipt": self.receipt}


@dataclass(frozen=True)
class Sealed:
    """A receipt that is ready to be appended."""

    content: dict[str, Any]
    salt: str
    receipt_text: str
    receipt_digest: str


def seal_receipt(receipt: Receipt) -> Sealed:
    """Draws a salt and seals a receipt. ReceiptError if it is not one, or not what its digest says."""
    if not isinstance(receipt, dict):
        raise ReceiptError(f"a receipt is a JSON object, not a {type(receipt).__name__}")
    kept = summarise(receipt)
    if receipt.get("digest") != (found := digest_of(receipt)):
        raise ReceiptError(f"the receipt was altered: its digest is {found}, it says {receipt.get('digest')!r:.80}")
    text, salt = canonical(receipt).decode(), os.urandom(32).hex()
    return Sealed({"kind": "receipt", "kept": kept, "seal": seal_of(salt, text)}, salt, text, found)


def summarise(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The member `kept`: what of a receipt holds no text and no token. ReceiptError names a missing member."""
    try:
        sampling = {key: value for key, value in receipt["sampling"].items() if key not in TELLING}
        return {
            "receipt_version": receipt["receipt_version"],
            "spec": receipt["spec"],
            "model": receipt["model"],
            "sampling": sampling,
            "finish_reason": receipt["output"]["finish_reason"],
            "num_prompt_tokens": len(receipt["request"]["prompt_token_ids"]),
            "num_output_tokens": len(receipt["output"]["token_ids"]),
        }
    except KeyError as error:
        raise ReceiptError(f"not a receipt: {error.args[0]} is missing") from None
    except (TypeError, AttributeError) as error:
        raise ReceiptError(f"not a receipt: {error}") from None


def seal_of(salt: str, receipt_text: str) -> str:
    """Clause 7.4."""
    return hashlib.sha256(SEALED_PREFIX + bytes.fromhex(salt) + receipt_text.encode()).hexdigest()


def link(seq: int, appended: str, previous: str, content: Mapping[str, Any]) -> str:
    """The hash of an entry: clause 7.2."""
    hashed = {"appended": appended, "content": content, "previous": previous, "seq": seq}
    return hashlib.sha256(canonical({"ledger_version": LEDGER_VERSION, **hashed})).hexdigest()


def note_redaction(seqs: Sequence[int], reason: str) -> dict[str, Any]:
    """The content of the entry that notes that these receipts were taken out. seqs: ascending."""
    runs: list[list[int]] = []
    for seq in seqs:
        if runs and runs[-1][1] == seq - 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return {"kind": "redaction", "entries": runs, "reason": reason}


def tell_time(moment: datetime) -> str:
    """A time as entries hold it: as text it sorts as it does in time. LedgerError if it has no time zone."""
    if moment.tzinfo is None:
        raise LedgerError(f"{moment}: a time needs its time zone")
    try:
        return moment.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        raise LedgerError(f"{moment}: in UTC this is not within the years 1 to 9999") from None


def read_entry(value: object, where: str) -> Entry:
    """An entry that `to_dict` made, from anywhere. LedgerError says what is odd about it."""
    names = {"seq": int, "appended": str, "previous": str, "hash": str, "content": dict}
    if not isinstance(value, dict) or set(value) != {*names, "salt", "receipt"}:
        raise LedgerError(f"{where}: not an entry of a ledger: it must have {', '.join(names)}, salt and receipt")
    for name, kind in names.items():
        if type(value[name]) is not kind:
            raise LedgerError(f"{where}: {name} is a {type(value[name]).__name__}")
    salt, receipt = value["salt"], value["receipt"]
    if not isinstance(salt, (str, type(None))) or not isinstance(receipt, (dict, type(None))):
        raise LedgerError(f"{where}: salt and receipt must be a text and an object, or null")
    try:
        text = None if receipt is None else canonical(receipt).decode()
    except ReceiptError as error:
        raise LedgerError(f"{where}: {error}") from None
    return Entry(**{name: value[name] for name in names}, salt=salt, receipt_text=text)
