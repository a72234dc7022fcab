"""exactlm outline: a text in two stages, reproducible from one seed."""

from __future__ import annotations

import argparse

from exactlm.cli.option import add_model, open_llm, print_json, print_rows
from exactlm.engine.sampling_params import SamplingParams
from exactlm.two_stage import TwoStageOutput, write_in_two_stages

EPILOG = """examples:
  exactlm outline smollm2 "Explain why the sky is blue." --seed 7
  exactlm outline smollm2 "A short guide to baking bread" --points 4 --temperature 0.6
  exactlm outline smollm2 "The history of Rome" --seed 7 --json | jq -r .digest

First an outline from the most likely tokens, then every point in drawn words, all points together. The same seed gives
the same text, always. The outline is kept to a numbered list, which needs the extra `server`."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "outline",
        help="write an outline, then elaborate each point",
        description="Write an outline deterministically, then elaborate each point with seeded sampling.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("task", metavar="TASK", help="what to write")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="what the words are drawn with (default: 0)")
    parser.add_argument("--points", type=int, metavar="N", help="points of the outline (default: 3 to 6)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="of the points' texts; 0 for greedy (default: 0.8)"
    )
    parser.add_argument("--top-p", type=float, default=0.95, metavar="P", help="of the points' texts (default: 0.95)")
    parser.add_argument(
        "--max-tokens", type=int, default=256, metavar="N", help="tokens of each point at most (default: 256)"
    )
    parser.add_argument(
        "--free-outline",
        action="store_true",
        help="do not keep the outline to a numbered list; needs no extra, and a model that makes one by itself",
    )
    parser.add_argument("--json", action="store_true", help="print all parts with ids, seeds and digests as JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    outline = SamplingParams(repetition_penalty=1.1, max_tokens=512) if options.free_outline else None
    detail = SamplingParams(temperature=options.temperature, top_p=options.top_p, max_tokens=options.max_tokens)
    llm = open_llm(options)
    result = write_in_two_stages(
        llm, options.task, points=options.points, seed=options.seed, outline_params=outline, detail_params=detail
    )
    if options.json:
        print_json(result.to_dict())
    else:
        _print(result)
    return 0


def _print(result: TwoStageOutput) -> None:
    for number, (point, part) in enumerate(zip(result.points, result.details, strict=True), 1):
        print(f"{number}. {point}\n\n{part.text.strip()}\n")
    print_rows([("seed", result.seed), ("digest", result.digest), ("fingerprint", result.fingerprint)])
