"""exactlm chat: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys

from exactlm.cli.option import add_generation, add_model, open_llm, read_input, read_params
from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import RequestError
from exactlm.llm import LLM

EPILOG = """examples:
  exactlm chat smollm2
  exactlm chat smollm2 --system "Answer in one sentence."

Lines are sent as they are. /reset begins anew, /exit or Ctrl-D ends. The same lines give the same answers, always."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model",
        description="A conversation in the terminal.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_generation(parser, 512)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    params = read_params(options)
    if options.seed is None and not params.is_greedy:
        params = params.seeded()
        print(f"exactlm: --seed {params.seed} gives these answers again", file=sys.stderr)
    llm = open_llm(options)
    start = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(start)
    while True:
        try:
            line = read_input(lambda: input("> " if sys.stdin.isatty() else ""))
        except EOFError:
            return 0
        if line == "/exit":
            return 0
        if line == "/reset":
            messages = list(start)
        elif line.startswith("/"):
            print(f"{line.split()[0]} is not a command; /reset begins anew, /exit ends", file=sys.stderr)
        elif line.strip():
            _turn(llm, messages, line, params)


def _turn(llm: LLM, messages: list[dict[str, str]], line: str, params: SamplingParams) -> None:
    """Adds the user's line and the answer to the conversation, or neither."""
    asked = [*messages, {"role": "user", "content": line}]
    parts: list[str] = []
    try:
        for delta in llm.stream(llm.chat_ids(asked), params):
            parts.append(delta.text)
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\n(interrupted; this exchange is forgotten)")
        return
    except RequestError as error:
        print(f"{error}; /reset begins anew", file=sys.stderr)
        return
    print()
    messages[:] = [*asked, {"role": "assistant", "content": "".join(parts)}]
