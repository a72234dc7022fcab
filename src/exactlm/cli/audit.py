"""exactlm audit: how deterministic is an engine?"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from exactlm.audit.analysis import Analysis, Scorer
from exactlm.audit.condition import FACTORS, Condition, Workload
from exactlm.audit.observation import Journal
from exactlm.audit.plot import require_plots
from exactlm.audit.prompt import AuditPrompt, load_prompts
from exactlm.audit.report import Report, tell_share, tell_size, to_json, write_report
from exactlm.audit.runner import Runner, digest_plan
from exactlm.audit.target import Target, Unvaried
from exactlm.cli.option import add_capacity, print_json
from exactlm.errors import ConfigError

EPILOG = """examples:
  exactlm audit smollm2
  exactlm audit http://127.0.0.1:8080 --concurrency 8,64 -o llama.html
  exactlm audit hf:SmolLM2-135M-Instruct --dtype bfloat16 --prompts boolq --data data --limit 16
  exactlm audit http://127.0.0.1:8000 --score-regex 'Score: *(\\d+)'

environment: EXACTLM_API_KEY is sent to a URL as its key, if it is set.
Exit status 0: nothing changed. 1: something did, or a request failed. 2: wrong usage or input."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "audit",
        help="measure how deterministic an engine is",
        description="Ask an engine the same prompts under changing conditions, and report what changes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", metavar="TARGET",
        help="URL of a server that speaks OpenAI's API, a model directory made by `exactlm convert`, or hf:DIR for a "
        "Hugging Face model on torch",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", default="audit.html", metavar="FILE",
        help="the report; .json is written beside it, and .jsonl as the audit goes on (default: audit.html)",
    )  # fmt: skip
    parser.add_argument("--restart", action="store_true", help="drop what an earlier run left in .jsonl")
    parser.add_argument("--json", action="store_true", help="print the report as JSON too")
    _add_workload(parser)
    _add_engine(parser)
    parser.set_defaults(execute=execute)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompts", default="built-in", metavar="NAME",
        help="built-in, boolq, mt_bench, or a file: one prompt a line, or JSONL with `prompt` (default: built-in)",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="FOLDER", help="where the files of boolq and mt_bench are (default: EXACTLM_DATA)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="take only the first N prompts (default: all)")
    for name, default, text in (
        ("max-tokens", 32, "tokens of each answer at most"),
        ("repeats", 3, "times that most conditions ask each prompt"),
        ("seed", 7, "seed of the drawn answers"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="temperature of the drawn answers (default: 1)"
    )
    parser.add_argument(
        "--concurrency", default="2,4,8,16,32,64", metavar="N,..", help="requests at once (default: 2,4,8,16,32,64)"
    )
    parser.add_argument("--vary", metavar="NAME,..", help=f"vary only these: {', '.join(FACTORS)} (default: all)")
    parser.add_argument("--chat", action="store_true", help="send prompts as a user's messages")
    parser.add_argument(
        "--score-regex", metavar="RE", help="read a number from each answer: the expression's first group, or its match"
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model-name", metavar="NAME", help="of a URL: the model to ask for (default: its first)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="of a URL: seconds that a request may take (default: 120)",
    )
    parser.add_argument("--dtype", metavar="NAME", help="of hf:DIR: float32, bfloat16 or float16 (default: the file's)")
    add_capacity(parser)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    require_plots()
    html, load = Path(options.output), _read_workload(options)
    if html.suffix not in (".html", ".htm"):
        raise ConfigError(f"--output {html}: name a file that ends in .html")
    if Path(options.prompts).resolve() in [html.with_suffix(end).resolve() for end in (".json", ".jsonl")]:
        raise ConfigError(f"--output {html}: would write over {options.prompts}, which holds the prompts")
    scorer = _read_scorer(options.score_regex)
    vary = _read_names(options.vary) if options.vary else set(FACTORS)
    target = open_target(options)
    try:
        found = target.conditions(load)
        conditions = [c for c in found if c.factor in vary or c.role == "base"]
        if "seed" not in vary:
            conditions = [c for c in conditions if c.group != "sampled"]
        header = {"target": target.describe(), "plan": digest_plan(conditions)}
        with Journal(html.with_suffix(".jsonl"), header, options.restart) as journal:
            _run(target, journal, conditions)
    finally:
        target.close()
    left = [Unvaried(name, "left out by --vary") for name in sorted({c.factor for c in found} - vary)]
    analysis = Analysis(conditions, journal.observations, scorer)
    settings = _tell_settings(options, load)
    unvaried = [*target.unvaried(), *left]
    report = Report(target.describe(), settings, load.prompts, unvaried, analysis, journal.notes)
    told = to_json(report)
    write_report(report, html, told)
    if options.json:
        print_json(told)
    else:
        _print(report, html)
    return 0 if report.verdict == "same" and report.num_failed == 0 else 1


def open_target(options: argparse.Namespace) -> Target:
    """The engine that TARGET names. ConfigError for what is missing."""
    name: str = options.target
    if name.startswith(("http://", "https://")):
        try:
            from exactlm.audit.endpoint import EndpointTarget
        except ImportError as error:
            message = f"auditing a URL needs the extra `audit` ({error}); install it: pip install 'exactlm[audit]'"
            raise ConfigError(message) from None
        key = os.environ.get("EXACTLM_API_KEY")
        return EndpointTarget(name, options.model_name, key, options.chat, options.timeout)
    if name.startswith("hf:"):
        try:
            from exactlm.audit.huggingface import HuggingFaceTarget
        except ImportError as error:
            message = f"auditing hf: needs the extra `torch` ({error}); install it: pip install 'exactlm[torch]'"
            raise ConfigError(message) from None
        return HuggingFaceTarget(name[3:], options.dtype, options.threads, options.chat)
    from exactlm.audit.model import ModelTarget

    return ModelTarget(name, options.threads, options.isa, options.verify, options.chat)


def _run(target: Target, journal: Journal, conditions: list[Condition]) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=sum(c.num_observed for c in conditions))

        def tell(condition: Condition, count: int) -> None:
            progress.update(task, advance=count, description=condition.name)

        Runner(target, journal, tell).run(conditions)


def _print(report: Report, html: Path) -> None:
    rows = [("condition", "texts changed", "numbers changed", "logprob spread", "failed")]
    for finding in report.analysis.findings:
        told = (tell_share(finding.texts), tell_share(finding.numbers), tell_size(finding.max_spread))
        name = finding.condition.name + " (control: must change)" * (finding.condition.role == "control")
        rows.append((name, *told, str(finding.num_failed)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"verdict: {report.verdict}; report: {html}", file=sys.stdout)


def _read_workload(options: argparse.Namespace) -> Workload:
    for name in ("max_tokens", "repeats", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: use 1 or more")
    if not 0 < options.temperature <= 100:
        raise ConfigError(f"--temperature {options.temperature}: is of the drawn answers; use above 0 and up to 100")
    if not 0 <= options.seed < (1 << 64) - 1:  # the next one is asked for, too
        raise ConfigError(f"--seed {options.seed}: use a number from 0 to 2^64 - 2")
    if not 0 < options.timeout < math.inf:
        raise ConfigError(f"--timeout {options.timeout:g}: use a number of seconds above 0")
    prompts: list[AuditPrompt] = load_prompts(options.prompts, options.data, options.limit)
    counts = _read_counts(options.concurrency)
    return Workload(prompts, options.max_tokens, options.repeats, counts, options.temperature, options.seed)


def _read_counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= 1024 for part in parts):
        raise ConfigError(f"--concurrency {text}: use numbers from 1 to 1024, as 2,8,64")
    return sorted({int(part) for part in parts})


def _read_names(text: str) -> set[str]:
    names = {part.strip() for part in text.split(",")}
    unknown = sorted(names - set(FACTORS))
    if unknown:
        raise ConfigError(f"--vary {', '.join(unknown)}: unknown; use {', '.join(FACTORS)}")
    return names


def _read_scorer(pattern: str | None) -> Scorer | None:
    if pattern is None:
        return None
    try:
        return Scorer(pattern)
    except re.error as error:
        raise ConfigError(f"--score-regex {pattern}: is no regular expression: {error}") from None


def _tell_settings(options: argparse.Namespace, load: Workload) -> dict[str, object]:
    return {
        "prompts": f"{options.prompts}, {len(load.prompts)} of them",
        "tokens of an answer": load.max_tokens,
        "repeats": load.repeats,
        "requests at once": ", ".join(str(n) for n in load.concurrency),
        "drawn with": f"temperature {load.temperature:g}, seed {load.seed}",
        **({"score": options.score_regex} if options.score_regex else {}),
    }
