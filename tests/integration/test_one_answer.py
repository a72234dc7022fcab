"""The command line, the Python interface, the server and the plain loop have the same defaults: one prompt, one digest
everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM, SamplingParams, convert_to_deterministic
from tests import tiny
from tests.integration.server.process import ServerProcess

PROMPT = "the hand and the thing"
REQUESTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0, "max_tokens": 1},
    {"temperature": 1.0, "seed": 2**64 - 1},
    {"temperature": 0.7, "seed": 0, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5, "stop": ["th"]},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    return convert_to_deterministic(tiny.write_checkpoint(folder / "source")).save_pretrained(
        folder / "model", progress=False
    )


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(path) as running:
        yield running


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, threads=1)


def by_command(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    words = ["run", str(path), PROMPT, "--json", "--max-tokens", str(request.get("max_tokens", 16))]
    for name, value in request.items():
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", str(each)] if name != "max_tokens" else []
    done = subprocess.run([sys.executable, "-m", "exactlm", *words], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("request_", REQUESTS)
def test_everywhere_the_same(llm: LLM, path: Path, server: ServerProcess, request_: dict[str, Any]) -> None:
    params = SamplingParams(**request_)
    expected = llm.generate_plain(PROMPT, params).outputs[0]
    found = llm.generate(PROMPT, params)[0].outputs[0]
    streamed = list(llm.stream(PROMPT, params))
    told = by_command(path, request_)
    body = server.post("/v1/completions", {"prompt": PROMPT, **request_}).json
    assert found == expected
    assert ("".join(d.text for d in streamed), streamed[-1].digest) == (expected.text, expected.digest)
    assert (told["text"], told["digest"], told["seed"]) == (expected.text, expected.digest, params.seed)
    assert body["exactlm"]["digests"] == [expected.digest]
    assert (body["choices"][0]["text"], body["exactlm"]["seed"]) == (expected.text, params.seed)
