"""exactlm bench: task benchmarks of any engine, and how far its answers move with the load."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactlm.cli.option import print_json
from exactlm.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from exactlm.bench.data import DataSource
    from exactlm.bench.engine import WorkerEngine
    from exactlm.bench.report import EngineReport
    from exactlm.bench.run import Plan
    from exactlm.bench.task.base import Task

NAMES = ("boolq", "essays", "gsm8k-steps", "humaneval", "mbpp", "contracts")
EPILOG = """examples:
  exactlm bench boolq --engine exactlm:smollm2 --data data --limit 200
  exactlm bench boolq --engine exactlm:smollm2 --engine torch:checkpoint:bfloat16 --python peers/bin/python
  exactlm bench humaneval --engine exactlm:smollm2 --conditions batch-32,alone --spread-limit 20 --json

Each engine runs in a process of its own and is asked the same questions under every condition: alone, batch-4,
batch-32, shuffled, threads-1, threads-2, neighbours, load, cached. A run that was ended goes on where it was.
Exit status 0: done. 1: answers of an exactlm engine differ between conditions. 2: wrong usage or input."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "bench",
        help="measure how well an engine answers, and how far its answers move with the load",
        description="Measure how well an engine answers, and how far its answers move with the load.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    parser.add_argument(
        "--engine", action="append", required=True, metavar="SPEC",
        help="exactlm:DIR, llama.cpp:FILE or torch:DIR[:DTYPE]; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--python", action="append", default=[], metavar="[KIND=]PATH",
        help="interpreter that has the packages of peers, or of one kind of them; may be repeated (default: this one)",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="DIR", help="folder of the data (default: EXACTLM_DATA, else the Hugging Face hub)"
    )
    parser.add_argument(
        "--essays",
        metavar="FILE",
        help="essays to grade: JSON lines of prompt, essay, score if known (default: the model writes them)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="ask only the first N items (default: all)")
    parser.add_argument("--conditions", metavar="LIST", help="conditions with commas between (default: all)")
    parser.add_argument(
        "--spread-limit",
        type=int,
        metavar="N",
        help="ask only N items under all conditions but the first (default: all)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each engine (default: all processors)")
    parser.add_argument(
        "--out", default="exactlm-bench", metavar="DIR", help="folder of the records (default: exactlm-bench)"
    )
    parser.add_argument(
        "--unsafe", action="store_true", help="run generated programs even where this machine cannot isolate them"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of tables")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"exactlm bench reads /proc and runs on Linux only, not on {sys.platform}")
    from exactlm.bench.data import DataSource
    from exactlm.bench.engine import read_engine

    for option in ("limit", "spread_limit", "threads"):
        value = getattr(options, option)
        if value is not None and value < 1:
            raise ConfigError(f"--{option.replace('_', '-')} {value}: use a number from 1")
    pythons = dict(_split_python(given) for given in options.python)
    engines = [read_engine(spec, pythons) for spec in options.engine]
    task = _make_task(options, DataSource(options.data), engines)
    plan = _make_plan(options, task)
    reports = [_measure(engine, task, plan, options) for engine in engines]
    _print(options, task, plan, reports)
    broken = [
        r for e, r in zip(engines, reports, strict=True) if e.is_exact and r.spread is not None and r.spread.num_changed
    ]
    return 1 if broken else 0


def _split_python(given: str) -> tuple[str, str]:
    kind, equals, path = given.partition("=")
    return (kind, path) if equals and kind in ("llama.cpp", "torch") else ("", given)


def _make_task(options: argparse.Namespace, data: DataSource, engines: list[WorkerEngine]) -> Task:
    from exactlm.bench.catalogue import TASKS, Needs
    from exactlm.bench.sandbox import Sandbox

    needs = Needs(data, lambda: Sandbox(not options.unsafe), lambda: _find_essays(options, data, engines))
    return TASKS[options.name](needs)


def _find_essays(options: argparse.Namespace, data: DataSource, engines: list[WorkerEngine]) -> Path:
    """The file given, or essays that the first exactlm engine writes, once."""
    from exactlm.bench.task.essays import write_essays
    from exactlm.llm import LLM

    if options.essays:
        return Path(options.essays)
    writer = next((e for e in engines if e.kind == "exactlm"), None)
    if writer is None:
        raise ConfigError("essays: give --essays FILE, or an exactlm engine that writes them")
    path = Path(options.out) / f"essays-{writer.identity[:16]}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"exactlm bench: {writer.name} writes {path}", file=sys.stderr)
        write_essays(LLM(writer.model, threads=options.threads), data, path)
    return path


def _make_plan(options: argparse.Namespace, task: Task) -> Plan:
    from exactlm.bench.condition import read_conditions
    from exactlm.bench.run import Plan

    try:
        items = task.load()[: options.limit]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{task.name}: a row of its data is not as the task needs it: {error!r:.200}") from None
    if not items:
        raise ConfigError(f"{task.name}: its data hold no item that it can ask")
    threads = options.threads or os.cpu_count() or 1
    return Plan(items, read_conditions(options.conditions), threads, options.spread_limit)


def _measure(engine: WorkerEngine, task: Task, plan: Plan, options: argparse.Namespace) -> EngineReport:
    from rich.console import Console
    from rich.progress import Progress

    from exactlm.bench.journal import Journal
    from exactlm.bench.report import EngineReport
    from exactlm.bench.run import run_engine
    from exactlm.bench.spread import measure_spread, summarise

    path = Path(options.out) / task.name / (re.sub(r"[^\w.-]+", "-", engine.name).strip("-") + ".jsonl")
    header = {"bench": task.name, "engine": engine.name, "model": engine.identity, "threads": plan.threads}
    header |= _digests(task, plan)
    refused = {c.name: reason for c in plan.conditions if (reason := engine.refuse(c)) is not None}
    if len(refused) == len(plan.conditions):
        raise ConfigError(f"{engine.name}: no condition is left: {'; '.join(refused.values())}")
    total = sum(len(plan.select(c)) for c in plan.conditions if c.name not in refused)
    console = Console(stderr=True)
    with (
        Journal(path, header) as journal,
        Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        at = bar.add_task(f"{task.name} {engine.name}", total=total)
        run_engine(engine, task, plan, journal, lambda count: bar.advance(at, count))
        names = [c.name for c in plan.conditions if c.name not in refused]
        asked = {(c, i.id) for c in names for i in plan.items} | {(c, "") for c in names}
        records = {key: record for key, record in journal.records.items() if key in asked}
        conditions = {name: summarise(records, name) for name in names}
        return EngineReport(engine.name, conditions, measure_spread(records, names), refused)


def _digests(task: Task, plan: Plan) -> dict[str, Any]:
    """What was asked: digests of the template and of every question with its reference."""
    from exactlm.bench.run import digest_items
    from exactlm.format.digest import sha256_bytes

    return {"template_sha256": sha256_bytes(task.template.encode()), "items_sha256": digest_items(plan.items)}


def _print(options: argparse.Namespace, task: Task, plan: Plan, reports: list[EngineReport]) -> None:
    from rich.console import Console

    from exactlm.bench.report import make_score_table, make_spread_table

    told = {"bench": task.name, "template": task.template, **_digests(task, plan), "num_items": len(plan.items)}
    if options.json:
        print_json({**told, "threads": plan.threads, "engines": [r.to_json() for r in reports]})
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    title = f"{task.name}, {len(plan.items)} items, {plan.conditions[0].name}, {plan.threads} threads"
    console.print(make_score_table(title, reports))
    console.print(f"template sha256 {told['template_sha256']}, items sha256 {told['items_sha256']}", highlight=False)
    if any(r.spread is not None for r in reports):
        console.print(make_spread_table(reports))
    for report in reports:
        for condition, reason in report.not_varied.items():
            console.print(f"{report.engine}: {condition} was not varied: {reason}", highlight=False)
