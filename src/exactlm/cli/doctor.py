"""exactlm doctor: what this machine can and cannot promise."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from exactlm.cli.option import print_json
from exactlm.doctor.environment import make_exports
from exactlm.doctor.finding import FAIL, Finding
from exactlm.doctor.report import examine

EPILOG = """examples:
  exactlm doctor
  exactlm doctor smollm2
  exactlm doctor --json
  eval "$(exactlm doctor --env float)"

Exit status 0: what exactlm promises holds here. 1: something that exactlm needs fails. A float engine's needs are
told, and never a failure."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "doctor",
        help="show what this machine can promise, and test it",
        description="Show what this machine can promise, what float engines would need, and run a self-test.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="DIR", nargs="?", help="a model directory that should run here")
    parser.add_argument("--env", choices=("float",), help="only print the shell's exports for a float baseline")
    parser.add_argument("--torch", action="store_true", help="import torch, if it is installed, and show its flags")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    if options.env == "float":
        print(make_exports())
        return 0
    findings: list[Finding] = []
    for finding in examine(options.model, options.torch):
        if not options.json:
            _print(finding, findings[-1] if findings else None)
        findings.append(finding)
    failed = [finding.name for finding in findings if finding.state == FAIL]
    if options.json:
        print_json({"sound": not failed, "failed": failed, "findings": [f.to_dict() for f in findings]})
    else:
        print("\nwhat exactlm promises holds here" if not failed else f"\nFAILS: {', '.join(failed)}")
    return 1 if failed else 0


def _print(finding: Finding, before: Finding | None) -> None:
    """Name and value on one line, what it is good for below; a reason that the last one had is not repeated."""
    if before is None or finding.topic != before.topic:
        print(f"{finding.topic}" if before is None else f"\n{finding.topic}")
    print(f"  {finding.state:<4}  {finding.name}: {finding.value}")
    lines = []
    if before is None or finding.why != before.why:
        lines.append(f"needed by {finding.needed_by}: {finding.why}")
    if finding.why_not and (before is None or finding.why_not != before.why_not):
        lines.append(f"exactlm does not: {finding.why_not}")
    width = max(60, shutil.get_terminal_size().columns)
    for line in lines:
        print(textwrap.fill(line, width, initial_indent=" " * 8, subsequent_indent=" " * 10))
