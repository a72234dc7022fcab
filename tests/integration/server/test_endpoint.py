"""Every endpoint beside the two that generate, and what stands at no endpoint."""

from __future__ import annotations

import pytest

from exactlm import LLM
from tests.integration.server.process import CHAT, COMPLETION, ServerProcess

TEXT = "the caf\u00e9 and <|end|>"


def test_the_model_is_listed_with_its_fingerprint(server: ServerProcess, llm: LLM) -> None:
    listed = server.get("/v1/models").json
    (card,) = listed["data"]
    assert listed["object"] == "list"
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", llm.context_tokens)
    assert card["exactlm"]["fingerprint"] == llm.fingerprint
    assert server.get("/v1/models/tiny").json == card
    missing = server.get("/v1/models/some/other")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


def test_health_and_readiness(server: ServerProcess) -> None:
    assert (server.get("/health").status, server.get("/ready").status) == (200, 200)
    head = server.get("/health", method="HEAD")
    assert (head.status, head.data) == (200, b"")


def test_texts_become_ids_and_back(server: ServerProcess, llm: LLM) -> None:
    made = server.post("/tokenize", {"prompt": TEXT, "return_token_strs": True}).json
    assert made["tokens"] == llm.tokenizer.encode(TEXT)
    assert (made["count"], made["max_model_len"]) == (len(made["tokens"]), llm.context_tokens)
    assert len(made["token_strs"]) == made["count"]
    assert server.post("/detokenize", {"tokens": made["tokens"]}).json == {"prompt": TEXT}
    assert server.post("/tokenize", {"prompt": ""}).json["tokens"] == []
    assert server.post("/detokenize", {"tokens": []}).json == {"prompt": ""}


def test_conversations_become_ids(server: ServerProcess, llm: LLM) -> None:
    messages = [{"role": "user", "content": TEXT}]
    for is_open in (True, False):
        made = server.post("/tokenize", {"messages": messages, "add_generation_prompt": is_open}).json
        assert made["tokens"] == llm.chat_ids(messages, add_generation_prompt=is_open)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, None),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, None),
        ("/tokenize", {"prompt": "a", "strict": True}, "strict"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [500_000]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
    ],
)
def test_wrong_token_requests_are_named(
    server: ServerProcess, path: str, body: dict[str, object], param: str | None
) -> None:
    reply = server.post(path, body)
    assert (reply.status, reply.error["param"]) == (400, param)


def test_metrics_count_what_happens(server: ServerProcess) -> None:
    names = ("exactlm_generated_tokens_total", "exactlm_prompt_tokens_total", "exactlm_request_seconds_count")
    before = [server.metric(name) for name in names]
    server.post(COMPLETION, {"prompt": "the thing", "max_tokens": 7, "ignore_eos": True})
    after = [server.metric(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [7, 6, 1]
    told = server.get("/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in ("queue_length", "batch_sequences", "preemptions_total", "cached_tokens_total", "kv_pages_used"):
        assert server.metric(f"exactlm_{name}") >= 0
    for name in ("time_to_first_token_seconds", "time_per_token_seconds", "queue_seconds"):
        assert server.metric(f"exactlm_{name}_count") >= 1


def test_the_document_lists_every_endpoint(server: ServerProcess) -> None:
    document = server.get("/openapi.json").json
    for path, operations in document["paths"].items():
        for method in operations:
            sound = path.replace("{model}", "tiny")
            reply = server.get(sound) if method == "get" else server.post(sound, {})
            assert reply.status in (200, 400), path
            assert str(reply.status) in operations[method]["responses"]


def test_what_stands_nowhere_is_told_so(server: ServerProcess) -> None:
    for path in ("/", "/v1", "/v1/chat/completions/", "/docs", "/v1/completions/%2e%2e", "/%ff%00"):
        assert server.get(path).status == 404
    assert server.get("/v2/embeddings").error["type"] == "not_found_error"
    wrong = server.get(CHAT)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert server.post("/health", {}).status == 405


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
def test_bodies_that_are_not_json_are_refused(server: ServerProcess, kind: str | None) -> None:
    reply = server.post(COMPLETION, {"prompt": "a"}, {"Content-Type": kind} if kind else {"Content-Type": ""})
    assert reply.status == 415
    assert "Content-Type: application/json" in reply.error["message"]


def test_compressed_bodies_are_refused(server: ServerProcess) -> None:
    assert server.post(COMPLETION, b"x", {"Content-Encoding": "gzip"}).status == 415
    kinds = ("application/json;charset=UTF-8", "Application/JSON", "application/vnd.api+json")
    for kind in kinds:
        assert server.post(COMPLETION, {"prompt": "a", "max_tokens": 1}, {"Content-Type": kind}).status == 200
