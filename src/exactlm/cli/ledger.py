"""exactlm ledger: look at a ledger of receipts, check its chain, take receipts out."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from exactlm.cli.option import print_json, print_rows
from exactlm.errors import LedgerError
from exactlm.proof.ledger import Ledger, read_export
from exactlm.proof.ledger_check import check_chain
from exactlm.proof.ledger_entry import Entry
from exactlm.receipt import Receipt

EPILOG = """actions:
  list    the last entries, one a line
  show    one entry with its receipt; ENTRY is its number, or the digest of its receipt
  verify  check the whole chain; LEDGER may also be a file that export wrote
  export  write all entries into a file, one JSON object a line
  redact  erase receipts for good, and note that in the chain

examples:
  exactlm serve smollm2 --ledger answers.db
  exactlm ledger list answers.db --last 5
  exactlm ledger show answers.db 17 --json
  exactlm ledger verify answers.db --head "$HEAD"    # 2210:5f1c7b.., as verify printed it earlier
  exactlm ledger export postgresql://audit@db.example/answers -o answers.jsonl
  exactlm ledger redact answers.db --older-than 30 --reason "retention: 30 days"

Exit status 0: done, and verify found every entry as it was appended. 1: verify names the first one that is not.
2: wrong usage or input."""
# What each action takes beside the ledger.
_OPTIONS = {
    "list": {"last", "first", "json"},
    "show": {"entry", "json"},
    "verify": {"head", "json"},
    "export": {"output", "receipts", "json"},
    "redact": {"seq", "before", "older_than", "reason", "json"},
}
_DEFAULT_LAST = 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "ledger",
        help="look at a ledger of receipts, check its chain, redact it",
        description="Look at a ledger of receipts, check its chain, take receipts out of it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", metavar="ACTION", choices=tuple(_OPTIONS), help=", ".join(_OPTIONS))
    parser.add_argument("ledger", metavar="LEDGER", help="a SQLite file or a postgresql:// URL")
    parser.add_argument("entry", metavar="ENTRY", nargs="?", help="show: number, or digest of a receipt")
    for name, kind, letter, text in (
        ("last", int, "N", f"list: the last N entries (default: {_DEFAULT_LAST})"),
        ("first", int, "SEQ", "list: entries from this number on"),
        ("head", str, "SEQ:HASH", "verify: an entry as noted earlier, which must be there"),
        ("before", str, "TIME", "redact: receipts appended before this time, as 2026-01-31 or 2026-01-31T12:00:00Z"),
        ("older-than", float, "DAYS", "redact: receipts that are older"),
        ("reason", str, "TEXT", "redact: why (required); it stays in the chain, so quote nothing"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar=letter, help=text)
    parser.add_argument(
        "--seq", type=int, action="append", metavar="SEQ", help="redact: the receipt of this entry; may be repeated"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="export: the file to write, - for standard output (required)"
    )
    parser.add_argument(
        "--receipts",
        action="store_true",
        default=None,
        help="export: only the receipts that are there, for `exactlm verify`",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    given = {name for names in _OPTIONS.values() for name in names if getattr(options, name) not in (None, False)}
    if odd := sorted(given - _OPTIONS[options.action]):
        name = "ENTRY" if odd[0] == "entry" else f"--{odd[0].replace('_', '-')}"
        raise LedgerError(f"{name} is not for `exactlm ledger {options.action}`")
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "show": _show,
        "verify": _verify,
        "export": _export,
        "redact": _redact,
    }
    return actions[options.action](options)


def _list(options: argparse.Namespace) -> int:
    with Ledger.open(options.ledger, can_create=False) as ledger:
        if options.last is not None and options.last < 1:
            raise LedgerError(f"--last {options.last}: use a number from 1")
        last = _DEFAULT_LAST if options.last is None and options.first is None else options.last
        first = max(options.first or 1, ledger.head()[0] - last + 1 if last is not None else 1)
        entries = ledger.entries(first)
        if options.json:
            print_json([_summarise(entry) for entry in entries])
            return 0
        for entry in entries:
            print(f"{entry.seq:>8}  {entry.appended[:19]}Z  {entry.hash[:16]}  {_describe(entry)}")
    return 0


def _show(options: argparse.Namespace) -> int:
    if not options.entry:
        raise LedgerError("show needs an ENTRY: a number, or the digest of a receipt")
    with Ledger.open(options.ledger, can_create=False) as ledger:
        entry = _find(ledger, options.entry)
    if options.json:
        print_json(entry.to_dict())
        return 0
    rows: list[tuple[str, object]] = [
        ("entry", entry.seq),
        ("appended", entry.appended),
        ("previous", entry.previous),
        ("hash", entry.hash),
        ("what", _describe(entry)),
    ]
    if (receipt := entry.receipt) is not None:
        try:
            rows += [("receipt", receipt["digest"]), ("salt", entry.salt), *_quote(receipt)]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise LedgerError(
                f"entry {entry.seq}: its receipt was altered and cannot be read: {type(error).__name__}: {error}"
            ) from None
    print_rows(rows)
    return 0


def _quote(receipt: Receipt) -> list[tuple[str, object]]:
    request, output = receipt["request"], receipt["output"]
    asked = request["text"] if request["chat"] is None else json.loads(request["chat"]["messages"])
    return [("asked", json.dumps(asked, ensure_ascii=False)), ("answered", json.dumps(output["text"]))]


def _verify(options: argparse.Namespace) -> int:
    head = None
    if options.head is not None:
        match = re.fullmatch(r"([0-9]{1,15}):([0-9a-f]{64})", options.head)
        if match is None:
            raise LedgerError(f"--head {options.head:.100}: use SEQ:HASH with 64 digits, as `verify` prints it")
        head = int(match[1]), match[2]
    if options.ledger.endswith(".jsonl"):
        report = check_chain(read_export(options.ledger), head)
    else:
        with Ledger.open(options.ledger, can_create=False) as ledger:
            report = ledger.verify(head)
    if options.json:
        print_json({"sound": report.is_sound, **vars(report)})
    else:
        print(f"{report.num_entries} entries, {report.num_receipts} receipts, {report.num_redacted} redacted")
        print(f"head {report.head_seq}:{report.head_hash}")
        print("sound" if report.is_sound else f"BROKEN at entry {report.broken_seq}: {report.reason}")
    return 0 if report.is_sound else 1


def _export(options: argparse.Namespace) -> int:
    if not options.output:
        raise LedgerError("export needs -o FILE")
    output = "/dev/stdout" if options.output == "-" else options.output
    if output == "/dev/stdout" and options.json:
        raise LedgerError("export: --json would be mixed with the entries on standard output; name a file")
    with Ledger.open(options.ledger, can_create=False) as ledger:
        count = ledger.export_receipts(output) if options.receipts else ledger.export(output)
    kind = "receipts" if options.receipts else "entries"
    if output == "/dev/stdout":  # there is the export itself, and nothing else
        print(f"{count} {kind}", file=sys.stderr)
    elif options.json:
        print_json({"output": output, kind: count})
    else:
        print(f"{count} {kind} in {output}")
    return 0


def _redact(options: argparse.Namespace) -> int:
    if options.reason is None:
        raise LedgerError("redact needs --reason TEXT")
    chosen = [name for name in ("seq", "before", "older_than") if getattr(options, name) is not None]
    if len(chosen) != 1:
        raise LedgerError("redact needs one of --seq, --before and --older-than")
    before = None
    if options.before is not None:
        before = _read_time(options.before)
    elif options.older_than is not None:
        before = _count_back(options.older_than)
    with Ledger.open(options.ledger, can_create=False) as ledger:
        entry, is_cleared = ledger.redact(options.seq, before, reason=options.reason)
    runs = entry.content["entries"] if entry is not None else []
    count = sum(last - first + 1 for first, last in runs)
    if options.json:
        told = {"redacted": count, "entries": runs, "noted_in": entry.seq if entry else None}
        print_json({**told, "cleared": is_cleared})
        return 0
    print(f"{count} redacted" + (f", noted in entry {entry.seq}" if entry else ""))
    if not is_cleared:
        print("the database could not clear what was erased, as when a reader uses old pages: run this again later")
    return 0


def _find(ledger: Ledger, name: str) -> Entry:
    if re.fullmatch("[0-9]{1,15}", name):
        return ledger.get(int(name))
    found = ledger.find(name)
    if not found:
        raise LedgerError(
            f"{ledger.name}: no entry holds a receipt with the digest {name:.80}; redacted ones hold none"
        )
    return found[-1]


def _describe(entry: Entry) -> str:
    try:
        return _describe_content(entry)
    except (KeyError, TypeError, ValueError, AttributeError):
        return "altered: its content cannot be read"


def _describe_content(entry: Entry) -> str:
    if entry.kind == "redaction":
        runs = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in entry.content.get("entries", []))
        return f"redaction of {runs}: {_quote_reason(entry)}"
    kept: dict[str, Any] = entry.content.get("kept", {})
    size = f"{kept.get('num_prompt_tokens')} + {kept.get('num_output_tokens')} tokens, {kept.get('finish_reason')}"
    return f"receipt of {kept.get('model', {}).get('fingerprint')!s:.16}, {size}{', redacted' * entry.is_redacted}"


def _quote_reason(entry: Entry) -> str:
    """Quoted: it may hold anything, also what steers a terminal."""
    reason = entry.content.get("reason")
    return json.dumps(reason) if reason else "no reason given"


def _summarise(entry: Entry) -> dict[str, Any]:
    """An entry without its receipt's text."""
    entry.check_types()
    values = dict(vars(entry))
    text = values.pop("receipt_text")
    del values["salt"]
    return {**values, "redacted": entry.is_redacted, "has_receipt": text is not None}


def _read_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise LedgerError(f"--before {text:.60}: not a time; use 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def _count_back(days: float) -> datetime:
    try:
        return datetime.now(timezone.utc) - timedelta(days=days if days >= 0 else float("nan"))
    except (ValueError, OverflowError):
        raise LedgerError(f"--older-than {days}: use a number of days from 0") from None
