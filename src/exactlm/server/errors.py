"""Errors as OpenAI's clients expect them. Knows the error tree of exactlm; knows nothing of requests."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import ValidationError

from exactlm.errors import CapacityError, ExactlmError, RequestError, TemplateError, TokenizerError, UnsupportedError

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
# What the asker can mend. Everything else that goes wrong inside is ours: 500.
_REFUSALS = (RequestError, CapacityError, TemplateError, TokenizerError, UnsupportedError)
# Arguments of the library that requests know under another name.
_NAMES = {"json_schema": "response_format", "template_kwargs": "chat_template_kwargs"}
_MAX_MESSAGE_CHARS = 1000
# Fields of other servers, and what says the same here.
_ELSEWHERE = {
    "guided_json": "response_format with a json_schema",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "structured_outputs": "response_format, regex or grammar",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}


class ApiError(Exception):
    """A refusal or failure with its HTTP status, and the field and code of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = headers or {}

    @property
    def detail(self) -> dict[str, Any]:
        """The error object: message, type, param, code."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        message = str(self)[:_MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode("utf-8")
        return {"message": message, "type": kind, "param": self.param, "code": self.code}

    @property
    def body(self) -> bytes:
        """The whole response body."""
        return json.dumps({"error": self.detail}).encode("ascii")


def make_error(error: BaseException) -> ApiError:
    """What the asker is told of an error. The reasons of errors that are not exactlm's own stay inside."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, _REFUSALS):
        message = re.sub(r"^\w+", lambda found: _NAMES.get(found[0], found[0]), str(error))
        named = re.match(r"([a-z_]+(?:\[\d+\]|\.[a-z_]+)*)(?:=|:| =| is | has )", message)
        return ApiError(400, message, param=named[1] if named else None)
    if isinstance(error, ExactlmError):
        return ApiError(500, str(error), code=type(error).__name__)
    return ApiError(500, "the server failed to answer this request; its log says why", code="internal_error")


def make_field_error(error: ValidationError, body: dict[str, Any]) -> ApiError:
    """The first complaint of a schema, with the field as the asker wrote it."""
    # Of the complaints of a union's members, the one that came furthest is about what the asker meant.
    all_errors = error.errors(include_url=False, include_context=False)
    first = max(all_errors, key=lambda e: len(_follow(body, e["loc"])[0]))
    names, value = _follow(body, first["loc"])
    path = names[0] + "".join(f"[{n}]" if n.isdigit() else f".{n}" for n in names[1:]) if names else ""
    if first["type"] == "missing":
        missing = ".".join(filter(None, (path, str(first["loc"][-1]))))
        return ApiError(400, f"{missing} is missing", param=missing, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        message = (
            f"{path} is not a field of this request; unknown fields are refused, since they could change the answer"
        )
        if path in _ELSEWHERE:
            message += f"; here it is called {_ELSEWHERE[path]}"
        return ApiError(400, message, param=path, code="unknown_parameter")
    if first["type"] == "none_required":
        return ApiError(400, f"{path} is not supported; leave it out", param=path, code="unsupported_parameter")
    told = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path} = {value!r:.80}: {told}" if path else told, param=path or None, code="invalid_value")


def _follow(body: Any, location: tuple[int | str, ...]) -> tuple[list[str], Any]:
    """The part of a pydantic location that exists in the body (the rest names members of unions), and its value."""
    names: list[str] = []
    for step in location:
        is_index = isinstance(body, list) and isinstance(step, int) and step < len(body)
        if is_index or (isinstance(body, dict) and step in body):
            body = body[step]
            names.append(str(step))
    return names, body
