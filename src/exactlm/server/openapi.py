"""The OpenAPI document of the endpoints, from the models that read requests. Knows no handler."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from exactlm import __version__
from exactlm.server import response_schema as answer
from exactlm.server.chat_schema import ChatRequest
from exactlm.server.completion_schema import CompletionRequest
from exactlm.server.token_schema import DetokenizeRequest, TokenizeRequest

Schema = dict[str, Any]

_REFUSALS = {
    400: "the body is not strict JSON, a field is wrong, or prompt and answer do not fit the context",
    401: "no key, or a wrong one",
    404: "no such model",
    405: "another method is needed; the header Allow names it",
    408: "the body or the answer took too long",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "the queue is full; the header Retry-After says when to try again",
    500: "the server failed",
    503: "the server is shutting down, or not ready",
}
_POSTS: tuple[tuple[str, str, type[BaseModel], type[BaseModel], bool], ...] = (
    ("/v1/chat/completions", "Answer a conversation", ChatRequest, answer.ChatResponse, True),
    ("/v1/completions", "Continue texts", CompletionRequest, answer.CompletionResponse, True),
    ("/tokenize", "Token ids of a text or conversation", TokenizeRequest, answer.TokenizeResponse, False),
    ("/detokenize", "Text of token ids", DetokenizeRequest, answer.DetokenizeResponse, False),
)
_GETS: tuple[tuple[str, str, type[BaseModel] | None, tuple[int, ...]], ...] = (
    ("/v1/models", "The models served", answer.ModelList, (401, 405, 500)),
    ("/v1/models/{model}", "One model", answer.ModelCard, (401, 404, 405, 500)),
    ("/health", "Whether the process lives", answer.StatusResponse, (405, 500)),
    ("/ready", "Whether requests are taken", answer.StatusResponse, (405, 500, 503)),
    ("/metrics", "Prometheus metrics", None, (401, 405, 500)),
    ("/openapi.json", "This document", None, (405, 500)),
)
OPEN_PATHS = frozenset(("/health", "/ready", "/openapi.json"))  # no key is asked for


def make_document(model_name: str, needs_key: bool) -> Schema:
    """The document for a server of one model."""
    models: list[type[BaseModel]] = [m for post in _POSTS for m in post[2:4]]
    models += [get[2] for get in _GETS if get[2] is not None] + [answer.ErrorResponse]
    template = "#/components/schemas/{model}"
    references, definitions = models_json_schema([(m, "validation") for m in models], ref_template=template)
    schemas: dict[str, Schema] = definitions["$defs"]
    for post in _POSTS:  # another name is a 404
        names = {"anyOf": [{"type": "string", "const": model_name}, {"type": "null"}], "default": None}
        schemas[post[2].__name__]["properties"]["model"] = names
    paths: dict[str, Schema] = {}
    for path, summary, asked, answered, can_stream in _POSTS:
        body = {"required": True, "content": _content(references[(asked, "validation")])}
        told = _content(references[(answered, "validation")])
        if can_stream:
            told["text/event-stream"] = {"schema": {"type": "string"}}
        statuses = tuple(s for s in _REFUSALS if can_stream or s != 429)
        paths[path] = {"post": {**_operation(path, summary, told, statuses), "requestBody": body}}
    for path, summary, shape, statuses in _GETS:
        told = _content(references[(shape, "validation")]) if shape is not None else _plain(path)
        operation = _operation(path, summary, told, statuses)
        if "{model}" in path:
            schema = {"type": "string", "enum": [model_name]}
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": schema}]
        paths[path] = {"get": operation}
    info = {
        "title": "exactlm",
        "version": __version__,
        "description": "Deterministic LLM inference: same prompt, same bytes.",
    }
    document: Schema = {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for path in OPEN_PATHS:
            paths[path]["get"]["security"] = []
    return document


def _content(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _plain(path: str) -> Schema:
    return {"text/plain": {"schema": {"type": "string"}}} if path == "/metrics" else _content({"type": "object"})


def _operation(path: str, summary: str, told: Schema, statuses: tuple[int, ...]) -> Schema:
    error = _content({"$ref": "#/components/schemas/ErrorResponse"})
    responses: Schema = {"200": {"description": "the answer", "content": told}}
    for status in statuses:
        responses[str(status)] = {"description": _REFUSALS[status], "content": error}
    name = path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_")
    return {"operationId": name, "summary": summary, "responses": responses}
