"""exactlm bench: task benchmarks of any engine, and how far its answers move with the load."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from exactlm.cli.option import print_json
from exactlm.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from rich.progress import Progress

    from exactlm.bench.condition import Condition
    from exactlm.bench.data import DataSource
    from exactlm.bench.engine import WorkerEngine
    from exactlm.bench.report import EngineReport
    from exactlm.bench.run import Plan
    from exactlm.bench.task.base import Item, Task
    from exactlm.bench.task.essays import Essays
    from exactlm.llm import LLM

NAMES = ("boolq", "essays", "gsm8k-steps", "humaneval", "mbpp", "contracts")
EPILOG = """examples:
  exactlm bench boolq --engine exactlm:smollm2 --data data --limit 200
  exactlm bench boolq --engine exactlm:smollm2 --engine torch:checkpoint:bfloat16 --python peers/bin/python
  exactlm bench humaneval --engine exactlm:smollm2 --conditions batch-32,alone --spread-limit 20 --json

Each engine runs in a process of its own and is asked the same questions under every condition: alone, batch-4,
batch-32, shuffled, threads-1, threads-2, neighbours, load, cached. A run that was ended goes on where it was, also with
another --limit.
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
    from exactlm.bench.condition import read_conditions
    from exactlm.bench.data import DataSource
    from exactlm.bench.engine import read_engine
    from exactlm.bench.run import Plan

    for option in ("limit", "spread_limit", "threads"):
        value = getattr(options, option)
        if value is not None and value < 1:
            raise ConfigError(f"--{option.replace('_', '-')} {value}: use a number from 1")
    conditions = read_conditions(options.conditions)
    pythons = dict(_split_python(given) for given in options.python)
    engines = [read_engine(spec, pythons) for spec in options.engine]
    for engine in engines:
        _check_conditions(engine, conditions)
    task = _make_task(options, DataSource(options.data), engines)
    items = _load(task)
    digests = _digest(task, items)
    threads = options.threads or os.cpu_count() or 1
    plan = Plan(items[: options.limit], conditions, threads, options.spread_limit)
    reports = [_measure(engine, task, plan, options, digests) for engine in engines]
    _print(options, task, plan, reports, digests)
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


def _find_essays(options: argparse.Namespace, data: DataSource, engines: list[WorkerEngine]) -> Essays:
    """Those of the file given, or as many as are asked for of those that the first exactlm engine writes."""
    from exactlm.bench.task.essays import Essays
    from exactlm.bench.writer import EssayFile, read_assignments
    from exactlm.llm import LLM

    if options.essays:
        return Essays(Path(options.essays))
    writer = next((e for e in engines if e.kind == "exactlm"), None)
    if writer is None:
        raise ConfigError("essays: give --essays FILE, or an exactlm engine that writes them")
    assignments = read_assignments(data)
    count = min(options.limit or len(assignments), len(assignments))
    path = Path(options.out) / f"essays-{writer.identity[:16]}.jsonl"
    essays = EssayFile(path, assignments, writer.identity)

    def open_writer() -> LLM:
        print(f"exactlm bench: {writer.name} writes {path}", file=sys.stderr)
        return LLM(writer.model, threads=options.threads)

    with _open_progress() as bar:
        at = bar.add_task(f"{writer.name} writes essays", total=count)
        essays.complete(count, open_writer, lambda number: bar.advance(at, number))
    return Essays(path, essays.digest)


def _open_progress() -> Progress:
    """A bar on the standard error; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _load(task: Task) -> list[Item]:
    try:
        items = task.load()
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{task.name}: a row of its data is not as the task needs it: {error!r:.200}") from None
    if not items:
        raise ConfigError(f"{task.name}: its data hold no item that it can ask")
    return items


def _check_conditions(engine: WorkerEngine, conditions: list[Condition]) -> None:
    refused = [reason for c in conditions if (reason := engine.refuse(c)) is not None]
    if len(refused) == len(conditions):
        raise ConfigError(f"{engine.name}: no condition is left: {'; '.join(refused)}")


def _measure(
    engine: WorkerEngine, task: Task, plan: Plan, options: argparse.Namespace, digests: dict[str, str]
) -> EngineReport:
    from exactlm.bench.journal import Journal
    from exactlm.bench.report import EngineReport
    from exactlm.bench.run import WHOLE, run_engine
    from exactlm.bench.spread import measure_spread, summarise

    path = Path(options.out) / task.name / (re.sub(r"[^\w.-]+", "-", engine.name).strip("-") + ".jsonl")
    header = {"bench": task.name, "engine": engine.name, "model": engine.identity, "threads": plan.threads, **digests}
    refused = {c.name: reason for c in plan.conditions if (reason := engine.refuse(c)) is not None}
    kept = [c for c in plan.conditions if c.name not in refused]
    names = [c.name for c in kept]
    asked = {(c.name, i.id) for c in kept for i in plan.select(c)}
    with Journal(path, header) as journal, _open_progress() as bar:
        at = bar.add_task(f"{task.name} {engine.name}", total=len(asked))
        run_engine(engine, task, plan, journal, lambda count: bar.advance(at, count))
        wanted = asked | {(name, WHOLE) for name in names}  # the journal may hold more, of another --limit
        records = {key: record for key, record in journal.records.items() if key in wanted}
        conditions = {name: summarise(records, name) for name in names}
        ids = {item: r["prompt_sha256"] for (name, item), r in records.items() if name == names[0] and item != WHOLE}
        return EngineReport(engine.name, conditions, measure_spread(records, names), refused, ids)


def _digest(task: Task, items: list[Item]) -> dict[str, str]:
    """What may be asked: digests of the template, and of every item of the task, so that another --limit goes on."""
    from exactlm.format.digest import sha256_bytes

    return {"template_sha256": sha256_bytes(task.template.encode()), "items_sha256": task.digest(items)}


def _print(
    options: argparse.Namespace, task: Task, plan: Plan, reports: list[EngineReport], digests: dict[str, str]
) -> None:
    from rich.console import Console

    from exactlm.bench.report import count_other_ids, make_score_table, make_spread_table

    others = [count_other_ids(report, reports[0]) for report in reports]
    told = {"bench": task.name, "template": task.template, **digests, "num_items": len(plan.items)}
    if options.json:
        engines = [{**r.to_json(), "other_token_ids": count} for r, count in zip(reports, others, strict=True)]
        print_json({**told, "threads": plan.threads, "engines": engines})
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    title = f"{task.name}, {len(plan.items)} items, {plan.conditions[0].name}, {plan.threads} threads"
    console.print(make_score_table(title, reports))
    console.print(
        f"template sha256 {told['template_sha256']}, all items sha256 {told['items_sha256']}", highlight=False
    )
    if any(r.spread is not None for r in reports):
        console.print(make_spread_table(reports))
    for report, count in zip(reports, others, strict=True):
        if count:
            told_ids = f"{report.engine} made other token ids than {reports[0].engine} of {count} items"
            console.print(f"{told_ids}: their tokenizers differ, so they were asked other questions", highlight=False)
        for condition, reason in report.not_varied.items():
            console.print(f"{report.engine}: {condition} was not varied: {reason}", highlight=False)
