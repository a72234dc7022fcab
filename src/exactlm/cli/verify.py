"""exactlm verify: does this model answer what these receipts say?"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import Progress

from exactlm.cli.option import add_capacity, open_llm, print_json
from exactlm.errors import ReceiptError
from exactlm.proof.verdict import Verdict
from exactlm.proof.verify import verify_receipts
from exactlm.receipt import Receipt, read_receipts

EPILOG = """examples:
  exactlm run smollm2 "The capital of France is" --receipt answer.json
  exactlm verify answer.json smollm2
  exactlm verify graded.jsonl smollm2 --sample 10% --sample-seed 7
  exactlm verify answer.json smollm2 --public-key 3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29

Every answer is computed again, many tokens at a time: faster than it was made, on any machine, with the same bits.
Exit status 0: all identical. 1: one is not; what differs first is named. 2: wrong usage or input."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "verify",
        help="check receipts against a model",
        description="Check that a model answers exactly what receipts say it answered.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("receipt", metavar="RECEIPT", help="a file with one receipt, or one on each line")
    parser.add_argument("model", metavar="DIR", help="a model directory made by `exactlm convert`")
    add_capacity(parser)
    parser.add_argument("--sample", metavar="P%", help="check only so many of the receipts, drawn at random")
    parser.add_argument(
        "--sample-seed", type=int, metavar="S", help="draw the same ones again (default: others each time)"
    )
    parser.add_argument("--signed", action="store_true", help="an unsigned receipt fails")
    parser.add_argument("--public-key", metavar="HEX", help="a receipt that this key has not signed fails")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON instead")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    key = options.public_key
    if key is not None and not re.fullmatch("[0-9a-fA-F]{64}", key):
        raise ReceiptError(f"--public-key {key:.80}: use the 64 hexadecimal digits that `exactlm keygen` printed")
    options.public_key = key and key.lower()
    receipts = read_receipts(options.receipt)
    chosen = _choose(len(receipts), options.sample, options.sample_seed)
    llm = open_llm(options)
    verdicts = _verify(llm, [receipts[i] for i in chosen], options)
    verdicts = sorted((_renumber(v, chosen) for v in verdicts), key=lambda v: v.index)
    is_sound = all(v.is_identical for v in verdicts)
    differing = [v for v in verdicts if v.differs is not None]
    if options.json:
        checked, told = sum(v.is_checked for v in verdicts), [_plain(verdict) for verdict in verdicts]
        print_json({"identical": is_sound, "checked": checked, "of": len(receipts), "receipts": told})
    else:
        for verdict in verdicts:
            if not verdict.is_identical:
                print(f"receipt {verdict.index}: {_tell(verdict)}")
        identical = sum(v.is_identical for v in verdicts)
        share = f" (drawn from {len(receipts)})" if len(chosen) < len(receipts) else ""
        print("identical" if len(receipts) == 1 and is_sound else f"{identical} of {len(verdicts)} identical{share}")
    return 0 if is_sound else 1 if differing else 2


def _verify(llm: Any, receipts: list[Receipt], options: argparse.Namespace) -> list[Verdict]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=len(receipts) < 2 or not console.is_terminal) as progress:
        task = progress.add_task("verifying", total=len(receipts))
        verdicts = []
        for verdict in verify_receipts(llm, receipts, options.signed, options.public_key):
            verdicts.append(verdict)
            progress.advance(task)
    return verdicts


def _choose(count: int, sample: str | None, seed: int | None) -> list[int]:
    """Indices of the receipts to check, at least one."""
    if sample is None:
        return list(range(count))
    try:
        share = float(sample.removesuffix("%"))
    except ValueError:
        share = -1.0
    if not 0 < share <= 100:
        raise ReceiptError(f"--sample {sample}: use a share above 0% and up to 100%")
    number = min(count, max(1, round(count * share / 100)))
    return sorted(random.Random(seed).sample(range(count), number))


def _renumber(verdict: Verdict, chosen: list[int]) -> Verdict:
    return replace(verdict, index=chosen[verdict.index])


def _tell(verdict: Verdict) -> str:
    if not verdict.is_checked:
        return f"not checked: {verdict.reason}"
    is_named = verdict.position is not None and verdict.altered is None  # else the reason says where
    where = f" at token {verdict.position}" if is_named else ""
    return f"{verdict.differs} differs{where}: {verdict.reason}"


def _plain(verdict: Verdict) -> dict[str, object]:
    values = vars(verdict)
    return {"identical": verdict.is_identical, **values}
