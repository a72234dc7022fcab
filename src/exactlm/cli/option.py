"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import RequestError
from exactlm.llm import LLM


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model directory, and how to run it."""
    parser.add_argument("model", metavar="DIR", help="a model directory made by `exactlm convert`")
    add_capacity(parser)


def add_capacity(parser: argparse.ArgumentParser) -> None:
    """How to run a model."""
    group = parser.add_argument_group("how exactlm runs, which cannot change an answer")
    group.add_argument("--threads", type=int, metavar="N", help="threads to use (default: all processors)")
    group.add_argument("--isa", metavar="NAME", help="instruction set to use (default: the fastest)")
    group.add_argument(
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
    for name, letter, text in (
        ("temperature", "T", "0 for the most likely token each time, or 0.001 to 1000 to draw (default: 0)"),
        ("top-p", "P", "draw among the most likely tokens that have this share of the probability (default: 1)"),
        ("min-p", "P", "leave out tokens less likely than this share of the most likely one (default: 0)"),
        ("repetition-penalty", "R", "above 1: tokens of the prompt and the answer become less likely (default: 1)"),
        ("presence-penalty", "X", "above 0: tokens of the answer become less likely (default: 0)"),
        ("frequency-penalty", "X", "above 0: the more often a token is in the answer, the less likely (default: 0)"),
    ):
        parser.add_argument(f"--{name}", type=float, default=argparse.SUPPRESS, metavar=letter, help=text)
    parser.add_argument(
        "--top-k",
        type=int,
        default=argparse.SUPPRESS,
        metavar="K",
        help="draw among the K most likely tokens (default: all)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="seed of the draws, 0 to 2^64 - 1 (default: one is made up, and told)"
    )
    parser.add_argument("--regex", metavar="RE", help="only text that this regular expression matches whole")
    parser.add_argument("--json-schema", metavar="FILE", help="only JSON that fits the schema in this file")
    parser.add_argument("--grammar", metavar="FILE", help="only text of the grammar in this file, in llguidance's Lark")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text; may be repeated"
    )


def read_params(options: argparse.Namespace) -> SamplingParams:
    """The sampling parameters asked for; what is not given has the default of SamplingParams."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    given = {name: getattr(options, name) for name in names if hasattr(options, name)}
    schema = _read_text("--json-schema", options.json_schema) if options.json_schema else None
    grammar = _read_text("--grammar", options.grammar) if options.grammar else None
    return SamplingParams(
        **given,
        seed=options.seed,
        max_tokens=options.max_tokens,
        stop=tuple(options.stop),
        regex=options.regex,
        json_schema=schema,
        grammar=grammar,
    )


def _read_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{option} {path}: cannot be read: {error}") from None


def read_input(read: Callable[[], str]) -> str:
    """What `read` takes from standard input. RequestError if that is not text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not text in {error.encoding}: {error}") from None


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
