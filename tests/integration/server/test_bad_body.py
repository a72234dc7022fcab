"""A hundred bad bodies: each a 400 that names the field, while somebody else's answer stays as it is."""

from __future__ import annotations

import pytest

from exactlm import LLM, SamplingParams
from tests.integration.server.bad_body import NOT_JSON, WRONG_FIELDS
from tests.integration.server.process import COMPLETION, ServerProcess

ALL = NOT_JSON + WRONG_FIELDS
BODY = {"prompt": "the other thing", "max_tokens": 450, "ignore_eos": True}


def name_of(case: tuple[str, bytes, str | None]) -> str:
    return case[1][:60].decode("latin-1")


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_each_is_refused_and_its_field_named(server: ServerProcess, case: tuple[str, bytes, str | None]) -> None:
    path, body, param = case
    reply = server.post(path, body)
    assert reply.status == 400, reply.data
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == param, reply.error
    assert reply.error["message"]


def test_others_are_unaffected(server: ServerProcess, llm: LLM) -> None:
    assert len(ALL) > 100
    expected = llm.generate([BODY["prompt"]], SamplingParams(max_tokens=450, ignore_eos=True))[0].outputs[0]
    with server.open_stream(COMPLETION, BODY) as lines:
        seen = [next(lines)]
        statuses = {server.post(path, body).status for path, body, _ in ALL[::4]}
        seen += list(lines)
    assert statuses == {400}
    assert expected.digest.encode() in b"".join(seen)
    assert server.get("/ready").status == 200


def test_too_long_prompts_are_told_both_sizes(server: ServerProcess, llm: LLM) -> None:
    for max_tokens, is_fitting in ((2, True), (3, False), (None, False)):
        body = {"prompt": [1] * (llm.context_tokens - 2), "max_tokens": max_tokens, "ignore_eos": True}
        reply = server.post(COMPLETION, body)
        assert (reply.status == 200) == is_fitting
        if not is_fitting:
            assert reply.error["code"] == "context_length_exceeded"
            assert str(llm.context_tokens) in reply.error["message"]
            assert str(llm.context_tokens - 2) in reply.error["message"]
