"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from exactlm.llm import LLM


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model directory, and how to run it."""
    parser.add_argument("model", metavar="DIR", help="a model directory made by `exactlm convert`")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads to use; cannot change the answer (default: all processors)"
    )
    parser.add_argument(
        "--isa", metavar="NAME", help="instruction set to use; cannot change the answer (default: the fastest)"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="first check that every weight is what the manifest says (reads the whole file)",
    )


def add_generation(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """What changes the answer."""
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help=f"tokens to generate at most (default: {max_tokens})",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0 for greedy, the only choice available (default: 0)",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="recorded; greedy decoding does not use it")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text; may be repeated"
    )


def open_llm(options: argparse.Namespace) -> LLM:
    """The model with the threads and instruction set asked for."""
    return LLM(options.model, threads=options.threads, isa=options.isa, verify=options.verify)


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")


def print_rows(rows: list[tuple[str, object]]) -> None:
    """Names and values in two columns, never cut: digests are for copying."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        sys.stdout.write(f"{name:<{width}}  {value}\n")
