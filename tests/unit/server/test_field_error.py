"""What a client reads when a field is wrong: the field, and what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from exactlm.server.completion_schema import CompletionRequest
from exactlm.server.errors import make_field_error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"guided_regex": "a+"}, "guided_regex is not a field of this request.*here it is called regex"),
        ({"repeat_penalty": 1.1}, "here it is called repetition_penalty"),
        ({"suffix": "b"}, "suffix is not supported; leave it out"),
        ({"best": 2}, "best is not a field of this request.*could change the answer$"),
    ],
)
def test_the_message_says_what_to_do(body: dict[str, Any], words: str) -> None:
    whole = {"prompt": "x", **body}
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate(whole)
    error = make_field_error(caught.value, whole)
    assert error.status == 400
    assert error.param == next(iter(body))
    assert re.search(words, str(error))
