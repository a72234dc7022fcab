"""The Markdown files say what is true: links lead somewhere, examples run, names and options are those of the code.

A block ```python model runs with the real model as `smollm2`; a ```text block right after it is what it prints.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import exactlm
from exactlm import errors
from exactlm.cli.program import build_parser
from tests.conftest import ROOT, model_directory

FILES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("spec/*.md")])
FENCE = re.compile(r"^```(\w+)(.*)\n((?:.*\n)*?)```\n", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CLI_PAGE, PYTHON_PAGE = ROOT / "docs/reference/cli.md", ROOT / "docs/reference/python.md"


class Block(NamedTuple):
    """A fenced block; `printed` is the ```text block that follows it directly."""

    place: str
    language: str
    mark: str
    source: str
    printed: str | None


def list_blocks(language: str) -> list[Block]:
    """All blocks of a language, in all files."""
    blocks = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        found = list(FENCE.finditer(text))
        for i, match in enumerate(found):
            after = found[i + 1] if i + 1 < len(found) and found[i + 1].start() == match.end() else None
            printed = after[3] if after is not None and after[1] == "text" else None
            place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            if match[1] == language:
                blocks.append(Block(place, match[1], match[2].strip(), match[3], printed))
    return blocks


PYTHON = list_blocks("python")
MODEL = [block for block in PYTHON if block.mark == "model"]
COMMANDS = [
    (block.place, part)
    for block in list_blocks("bash")
    for line in block.source.splitlines()
    for part in re.split(r"[|>]", line)
    if re.match(r"\s*(\w+=\S* )*exactlm ", part)
]


def name_of(block: Block) -> str:
    return block.place


def list_anchors(path: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    actions = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(actions[0].choices)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path: Path) -> None:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        resolved = (path.parent / file).resolve() if file else path
        assert resolved.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in list_anchors(resolved), f"{path.name}: {target}"


def test_every_page_is_listed() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / t).resolve() for t in LINK.findall(index.read_text(encoding="utf-8"))}
    assert {p for p in FILES if ROOT / "docs" in p.parents and p != index} <= linked


@pytest.mark.parametrize("block", PYTHON, ids=name_of)
def test_python_compiles(block: Block) -> None:
    assert block.mark in ("", "model")
    compile(block.source, block.place, "exec")


@pytest.mark.model
@pytest.mark.parametrize("block", MODEL, ids=name_of)
def test_python_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "smollm2").symlink_to(model_directory("fp16"))
    monkeypatch.chdir(tmp_path)
    exec(compile(block.source, block.place, "exec"), {"__name__": "__example__"})
    assert capsys.readouterr().out == block.printed


@pytest.mark.parametrize(("place", "line"), COMMANDS)
def test_commands_parse(place: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    arguments = words[words.index("exactlm") + 1 :]
    assert build_parser().parse_args(arguments).command == arguments[0], place


@pytest.mark.parametrize("command", sorted(command_parsers()))
def test_options_are_those_of_the_parser(command: str) -> None:
    section = CLI_PAGE.read_text(encoding="utf-8").split(f"## exactlm {command}\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", section))
    parser = command_parsers()[command]
    options = {o for action in parser._actions for o in action.option_strings} - {"-h", "--help"}
    assert documented == options
    assert all(option in parser.format_help() for option in documented)


@pytest.mark.parametrize("made", [exactlm.LLM, exactlm.SamplingParams, exactlm.convert_to_deterministic])
def test_signatures_are_those_of_the_code(made: Callable[..., object]) -> None:
    parts = []
    for parameter in inspect.signature(made).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}".replace("'", '"')
        parts.append(parameter.name + default)
    assert f"`{made.__name__}({', '.join(parts)})`" in PYTHON_PAGE.read_text(encoding="utf-8")


def test_errors_are_those_of_the_code() -> None:
    section = PYTHON_PAGE.read_text(encoding="utf-8").split("## Errors\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)} - {"ExactlmError"}
    assert documented == defined


def test_something_is_checked() -> None:
    assert len(MODEL) >= 8
    assert all(block.printed for block in MODEL)
    assert len(COMMANDS) >= 15
