"""The OpenAPI document: it stands on its own, and says what the schemas check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from exactlm.server.openapi import OPEN_PATHS, make_document

DOCUMENT = make_document("tiny", needs_key=True)


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def test_every_reference_leads_somewhere() -> None:
    found = [node["$ref"] for node in walk(DOCUMENT) if "$ref" in node]
    assert len(found) > 40
    for reference in found:
        target = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_it_is_plain_json() -> None:
    assert json.loads(json.dumps(DOCUMENT, allow_nan=False)) == DOCUMENT


@pytest.mark.parametrize("name", ["ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"])
def test_requests_are_closed_and_name_the_model(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["model"]["anyOf"][0]["const"] == "tiny"


def test_keys_are_asked_for_everywhere_else() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            assert ("401" in operation["responses"]) == (path not in OPEN_PATHS)
            assert operation.get("security", DOCUMENT["security"]) == ([] if path in OPEN_PATHS else [{"key": []}])
    assert "security" not in make_document("tiny", needs_key=False)
