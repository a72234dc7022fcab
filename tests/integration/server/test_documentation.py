"""The page on serving names every field, status and metric that there is, and none that there is not."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from exactlm.server.chat_schema import ChatRequest, Message
from exactlm.server.completion_schema import CompletionRequest
from exactlm.server.token_schema import DetokenizeRequest, TokenizeRequest
from tests.conftest import ROOT
from tests.integration.server.process import ServerProcess

PAGE = (ROOT / "docs/howto/serving.md").read_text(encoding="utf-8")
NAMED = {part for name in re.findall(r"`([\w.]+)`", PAGE) for part in (name, name.split(".")[0])}


@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest, Message, TokenizeRequest, DetokenizeRequest])
def test_every_field_is_described(schema: type[BaseModel]) -> None:
    assert set(schema.model_fields) - NAMED == set()


def test_metrics_are_those_of_the_server(server: ServerProcess) -> None:
    text = server.get("/metrics").data.decode()
    there = set(re.findall(r"^# TYPE (exactlm_\w+)", text, re.MULTILINE))
    there = {name for name in there if not name.endswith("_created")}
    assert {name for name in NAMED if name.startswith("exactlm_")} == there


def test_statuses_are_those_of_the_document(server: ServerProcess) -> None:
    table = PAGE.split("## Errors\n")[1].split("\n## ")[0]
    described = set(re.findall(r"\b[45]\d\d\b", table))
    paths = server.get("/openapi.json").json["paths"].values()
    told = {status for path in paths for operation in path.values() for status in operation["responses"]}
    assert described == (told - {"200"}) | {"431"}  # of the connection, before any path is known
