"""Limits make sense, and the command's are those of the library, told without the extra too."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from typing import Any

import pytest

from exactlm.cli import serve
from exactlm.engine.config import EngineConfig
from exactlm.errors import ConfigError
from exactlm.server.limit import Limits


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_body_bytes": 0},
        {"max_body_bytes": -1},
        {"read_seconds": 0},
        {"request_seconds": math.nan},
        {"request_seconds": math.inf},
        {"max_waiting": -1},
        {"max_waiting": True},
        {"grace_seconds": "30"},
    ],
)
def test_limits_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Limits(**wrong)


def test_the_defaults_of_the_command_are_those_of_the_library() -> None:
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    told = vars(parser.parse_args(["serve", "model"]))
    for defaults in (vars(Limits()), vars(EngineConfig())):
        shared = {name: value for name, value in defaults.items() if name in told}
        assert len(shared) >= 5
        assert {name: told[name] for name in shared} == shared


def test_the_command_explains_itself_without_the_extra() -> None:
    hidden = "for name in ('pydantic', 'starlette', 'uvicorn'): sys.modules[name] = None"
    code = f"import sys\n{hidden}\nfrom exactlm.cli import main\nmain(['serve', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "bytes of a request at most (default: 4194304)" in done.stdout
    assert "(default: 600)" in done.stdout
