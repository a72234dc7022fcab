"""Plain completions: each form of prompt, echo and log-probabilities, and streams that join to the whole answer."""

from __future__ import annotations

from typing import Any

import pytest

from exactlm import LLM, SamplingParams
from tests.integration.server.process import COMPLETION, ServerProcess

TEXT = "the caf\u00e9 and"
# What streams and whole answers are compared under.
SETTINGS: list[dict[str, Any]] = [
    {"max_tokens": 24},
    {"max_tokens": 24, "temperature": 1.0, "seed": 3, "n": 3},
    {"max_tokens": 40, "stop": ["e", "qi"], "logprobs": 3},
    {"max_tokens": 24, "logprobs": 0, "return_token_ids": True},
    {"max_tokens": 12, "echo": True},
    {"max_tokens": 12, "echo": True, "logprobs": 2},
    {"max_tokens": 0, "echo": True, "logprobs": 1},
    {"max_tokens": 0},
    {"max_tokens": 1},
    {"max_tokens": 30, "ignore_eos": True, "stop_token_ids": [101, 102, 103, 104]},
    {"max_tokens": 20, "regex": "[a-z ]{4,12}\\."},
    {"max_tokens": 20, "logit_bias": {"496": 100}},
]


def test_each_form_of_prompt_is_the_same_request(server: ServerProcess, llm: LLM) -> None:
    ids = llm.tokenizer.encode(TEXT)
    expected = llm.generate([TEXT], SamplingParams(max_tokens=9))[0].outputs[0]
    for prompt in (TEXT, [TEXT], ids, [ids]):
        body = server.post(COMPLETION, {"prompt": prompt, "max_tokens": 9}).json
        assert [c["text"] for c in body["choices"]] == [expected.text]
        assert body["exactlm"]["digests"] == [expected.digest]
        assert (body["object"], body["model"], body["system_fingerprint"]) == (
            "text_completion",
            "tiny",
            llm.fingerprint,
        )
        assert body["usage"]["prompt_tokens"] == len(ids)


def test_sixteen_tokens_greedy_are_the_default(server: ServerProcess, llm: LLM) -> None:
    expected = llm.generate([TEXT])[0].outputs[0]
    for body in ({"prompt": TEXT}, {"prompt": TEXT, "max_tokens": None, "temperature": None, "seed": None, "n": None}):
        made = server.post(COMPLETION, body).json
        assert made["exactlm"] | {"timings": 0} == {"digests": [expected.digest], "seed": None, "timings": 0}
        assert made["choices"][0]["text"] == expected.text


def test_choices_stand_prompt_by_prompt(server: ServerProcess, llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, n=2, temperature=1.0, seed=8)
    expected = [a for out in llm.generate(["a", "the"], params) for a in out.outputs]
    body = {"prompt": ["a", "the"], "max_tokens": 6, "n": 2, "temperature": 1.0, "seed": 8}
    made = server.post(COMPLETION, body).json
    assert [c["index"] for c in made["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in made["choices"]] == [a.text for a in expected]
    assert made["exactlm"]["digests"] == [a.digest for a in expected]
    assert made["usage"]["completion_tokens"] == sum(len(a.token_ids) for a in expected)


def test_echo_scores_the_prompt_as_lm_eval_reads_it(server: ServerProcess, llm: LLM) -> None:
    ids = llm.tokenizer.encode(TEXT)
    for max_tokens in (0, 1):
        body = {"prompt": [ids, ids[:3]], "max_tokens": max_tokens, "echo": True, "logprobs": 1}
        choices = server.post(COMPLETION, body).json["choices"]
        for choice, given in zip(choices, (ids, ids[:3]), strict=True):
            told = choice["logprobs"]
            assert {len(values) for values in told.values()} == {len(given) + max_tokens}
            assert told["token_logprobs"][: len(given)] == llm.score(given)
            assert told["top_logprobs"][0] is None
            pairs = list(zip(told["token_logprobs"], told["top_logprobs"], strict=True))
            assert all(max(top.values()) >= value for value, top in pairs[1:])
            assert choice["text"].startswith(llm.tokenizer.decode(given))
            assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s))
def test_streams_join_to_the_whole(server: ServerProcess, settings: dict[str, Any]) -> None:
    body = {"prompt": [TEXT, "and so"], **settings}
    whole = server.post(COMPLETION, body).json
    events = server.stream(COMPLETION, body).events
    choices = [{"text": "", "ids": [], "logprobs": {}, "finish": None} for _ in whole["choices"]]
    for event in events:
        assert event["object"] == "text_completion"
        for piece in event["choices"]:
            choice = choices[piece["index"]]
            assert choice["finish"] is None
            choice["text"] += piece["text"]
            choice["ids"] += piece.get("token_ids", [])
            choice["finish"] = piece["finish_reason"]
            for name, values in (piece["logprobs"] or {}).items():
                choice["logprobs"].setdefault(name, []).extend(values)
    for told, choice in zip(whole["choices"], choices, strict=True):
        assert choice["text"] == told["text"]
        assert choice["finish"] == told["finish_reason"]
        assert choice["ids"] == told.get("token_ids", [])
        assert {n: v for n, v in (choice["logprobs"] or {}).items() if v} == {
            n: v for n, v in (told["logprobs"] or {}).items() if v
        }
    assert [i for i, event in enumerate(events) if "exactlm" in event] == [len(events) - 1]
    assert events[-1]["exactlm"]["digests"] == whole["exactlm"]["digests"]
    assert events[-1]["choices"]
    assert all("usage" not in event for event in events)


def test_usage_comes_last_when_asked_for(server: ServerProcess) -> None:
    body = {"prompt": TEXT, "max_tokens": 5, "ignore_eos": True}
    whole = server.post(COMPLETION, body).json
    events = server.stream(COMPLETION, {**body, "stream_options": {"include_usage": True}}).events
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] | {"prompt_tokens_details": 0} == whole["usage"] | {"prompt_tokens_details": 0}
    assert events[-1]["exactlm"]["digests"] == whole["exactlm"]["digests"]


def test_headers_of_streams_keep_proxies_from_holding_them(server: ServerProcess) -> None:
    reply = server.stream(COMPLETION, {"prompt": TEXT, "max_tokens": 2})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert reply.headers["x-request-id"] == reply.events[0]["id"]


def test_timings_are_in_order(server: ServerProcess) -> None:
    body = {"prompt": ["the", "and"], "max_tokens": 12, "n": 2, "ignore_eos": True}
    for told in (server.post(COMPLETION, body).json["exactlm"], server.stream(COMPLETION, body).events[-1]["exactlm"]):
        moments = [told["timings"][name] for name in ("queued", "prefill", "first_token", "done")]
        assert moments == sorted(moments)
        assert 0 <= moments[0] < moments[-1] < 60
