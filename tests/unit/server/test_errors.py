"""Errors in OpenAI's shape: what the asker can mend is a 400 with the field, what is ours a 500 without secrets."""

from __future__ import annotations

import json

import pytest

from exactlm.errors import (
    CapacityError,
    InterruptedStepError,
    NumericError,
    RequestError,
    TemplateError,
    TokenizerError,
)
from exactlm.server.errors import ApiError, make_error


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (RequestError("temperature=-1: use a number"), 400, "temperature"),
        (RequestError("messages[2].role = 'x': use one of"), 400, "messages[2].role"),
        (RequestError("stop_token_ids: id 9 is not one"), 400, "stop_token_ids"),
        (RequestError("the prompt has 9 tokens"), 400, None),
        (CapacityError("the request needs 9 pages"), 400, None),
        (TemplateError("the chat template fails: no system role"), 400, None),
        (TokenizerError("the text has an unpaired surrogate"), 400, None),
        (NumericError("step 3: a logit is NaN"), 500, None),
        (InterruptedStepError("interrupted"), 500, None),
        (ZeroDivisionError("secret/path"), 500, None),
        (ApiError(429, "full", code="queue_full"), 429, None),
    ],
)
def test_what_is_told(error: Exception, status: int, param: str | None) -> None:
    told = make_error(error)
    assert told.status == status
    detail = json.loads(told.body)["error"]
    assert set(detail) == {"message", "type", "param", "code"}
    assert detail["param"] == param
    assert "secret" not in detail["message"]
    assert detail["type"] == ("server_error" if status == 500 else detail["type"])


def test_messages_are_bounded_and_always_encodable() -> None:
    detail = ApiError(400, "\ud800" + "x" * 10**6).detail
    assert len(detail["message"]) <= 1000
    assert detail["message"].encode("utf-8")
