"""One server on a tiny model for the whole folder, and the same model in this process to compare with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactlm import LLM, convert_to_deterministic
from tests import tiny
from tests.integration.server.process import ServerProcess

# Shows everything a template can be told: tools, calls, results, extra variables.
TEMPLATE = (
    "{% if tools %}<|pad|>{{ tools | tojson }}{% endif %}{% if mood is defined %}[{{ mood }}]{% endif %}"
    "{% for message in messages %}<|{{ message['role'] if message['role'] in ('user', 'assistant') else 'begin' }}|>"
    "{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments.x }}{% endfor %}"
    "{{ message.tool_call_id or '' }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    source = tiny.write_checkpoint(folder / "source")
    edit_json(source / "tokenizer_config.json", chat_template=TEMPLATE)
    return convert_to_deterministic(source).save_pretrained(folder / "tiny", progress=False)


@pytest.fixture(scope="session")
def lasting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with room for process.LASTING, which no machine finishes within the limits that are tested."""
    folder = tmp_path_factory.mktemp("lasting")
    source = tiny.write_checkpoint(folder / "source")
    edit_json(source / "config.json", max_position_embeddings=8192)
    return convert_to_deterministic(source).save_pretrained(folder / "tiny", progress=False)


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="session")
def llm(served_model: Path) -> LLM:
    return LLM(served_model, threads=1)


@pytest.fixture(scope="session")
def request_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "requests.jsonl"


@pytest.fixture(scope="session")
def server(served_model: Path, request_log: Path) -> Iterator[ServerProcess]:
    with ServerProcess(served_model, "--request-log", str(request_log)) as running:
        yield running
