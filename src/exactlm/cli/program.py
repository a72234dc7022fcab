"""The parser of all commands, one file per command, and what their errors become."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

from exactlm import __version__
from exactlm.cli import audit, bench, chat, convert, doctor, info, keygen, ledger, outline, run, serve, verify
from exactlm.errors import ExactlmError
from exactlm.log import configure_log
from exactlm.numerics import SPEC_VERSION

COMMANDS = (convert, run, chat, outline, serve, info, verify, keygen, ledger, audit, doctor, bench)
EPILOG = """examples:
  exactlm convert SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2
  exactlm run smollm2 "The capital of France is" --max-tokens 32
  exactlm chat smollm2
  exactlm serve smollm2 --port 8000
  exactlm run smollm2 "Who signs?" --receipt answer.json && exactlm verify answer.json smollm2
  exactlm COMMAND --help

environment: EXACTLM_ISA forces an instruction set, EXACTLM_THREADS the number of threads. Neither can change an
answer. EXACTLM_LOG tells more on standard error: debug, info, warning or error."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="exactlm",
        description="Deterministic LLM inference: same prompt, same bytes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"exactlm {__version__}, numerics spec {SPEC_VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_parser(commands)
    return parser


def execute(arguments: Sequence[str] | None = None) -> int:
    """Parses and runs one command; returns the exit status."""
    parser = build_parser()
    options, extra = parser.parse_known_args(arguments)
    if extra:  # told by the command's own parser, with the command's own usage
        command_parser(parser, options.command).error(f"unrecognized arguments: {' '.join(extra)}")
    if sys.stdout is None:  # closed by the caller, as `>&-` does
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):  # another encoding, or half a surrogate pair that a server sent
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        configure_log()
        status = int(options.execute(options))
        sys.stdout.flush()  # here, where an error still decides the exit status
        return status
    except ExactlmError as error:
        print(f"exactlm {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"exactlm {options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        _drop_output()
        return 141  # as SIGPIPE: 0 would say that all receipts are identical before the last is told
    except OSError as error:  # a full disk, say: never 1, which is an answer
        _drop_output()
        print(f"exactlm {options.command}: {error}", file=sys.stderr)
        return 2


def _drop_output() -> None:
    """What is left to be written goes nowhere, so that the end of the process does not fail of it."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_parser(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices[command]
            return found
    raise KeyError(command)
