"""Chat completions: conversations, tools, formats, log-probabilities, and streams that join to the whole answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exactlm import LLM, SamplingParams
from tests.integration.server.process import CHAT, ServerProcess

MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "the other thing"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 41}'}}
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["count"],
    "additionalProperties": False,
}
SETTINGS: list[dict[str, Any]] = [
    {"max_tokens": 24},
    {"max_tokens": 24, "temperature": 1.0, "seed": 3, "n": 3},
    {"max_tokens": 40, "stop": "e", "logprobs": True, "top_logprobs": 3},
    {"max_tokens": 24, "logprobs": True, "n": 2},
    {"max_tokens": 24, "return_token_ids": True},
    {"max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    {"max_tokens": 0},
]


def test_an_answer_is_the_one_of_the_python_interface(server: ServerProcess, llm: LLM) -> None:
    expected = llm.chat(MESSAGES, SamplingParams(max_tokens=12, n=2, temperature=0.8, seed=5))[0]
    body = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 12, "n": 2, "temperature": 0.8, "seed": 5}
    made = server.post(CHAT, body).json
    assert made["object"] == "chat.completion"
    assert [c["message"] for c in made["choices"]] == [
        {"role": "assistant", "content": answer.text, "refusal": None} for answer in expected.outputs
    ]
    assert made["exactlm"]["digests"] == [answer.digest for answer in expected.outputs]
    assert made["exactlm"]["seed"] == 5


def test_the_rest_of_the_context_is_the_default(server: ServerProcess, llm: LLM) -> None:
    ids = llm.chat_ids(MESSAGES)
    made = server.post(CHAT, {"messages": MESSAGES, "ignore_eos": True}).json
    assert made["usage"]["total_tokens"] == llm.context_tokens
    assert made["usage"]["prompt_tokens"] == len(ids)
    assert made["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s))
def test_streams_join_to_the_whole(server: ServerProcess, settings: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, **settings}
    whole = server.post(CHAT, body).json
    events = server.stream(CHAT, body).events
    choices = [{"role": None, "content": "", "ids": [], "logprobs": [], "finish": None} for _ in whole["choices"]]
    for event in events:
        assert (event["object"], event["id"]) == ("chat.completion.chunk", events[0]["id"])
        for piece in event["choices"]:
            choice = choices[piece["index"]]
            choice["role"] = piece["delta"].get("role", choice["role"])
            choice["content"] += piece["delta"].get("content", "")
            choice["ids"] += piece.get("token_ids", [])
            choice["logprobs"] += (piece["logprobs"] or {}).get("content", [])
            choice["finish"] = piece["finish_reason"]
    for told, choice in zip(whole["choices"], choices, strict=True):
        assert choice["role"] == "assistant"
        assert choice["content"] == told["message"]["content"]
        assert choice["finish"] == told["finish_reason"]
        assert choice["ids"] == told.get("token_ids", [])
        assert choice["logprobs"] == (told["logprobs"] or {}).get("content", [])
    assert events[-1]["exactlm"]["digests"] == whole["exactlm"]["digests"]


def test_tools_and_calls_reach_the_template(server: ServerProcess, llm: LLM) -> None:
    history = [
        {"role": "user", "content": "how many"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    opened = {**CALL, "function": {"name": "f", "arguments": {"x": 41}}}
    seen = [history[0], {"role": "assistant", "tool_calls": [opened]}, history[2]]

    def prompt_tokens(**fields: Any) -> int:
        reply = server.post(CHAT, {"messages": history, "max_tokens": 0, **fields})
        return int(reply.json["usage"]["prompt_tokens"])

    bare = len(llm.chat_ids(seen))
    told = len(llm.chat_ids(seen, TOOLS))
    assert bare < told
    assert "f41" in llm.tokenizer.decode(llm.chat_ids(seen))
    assert prompt_tokens() == prompt_tokens(tools=[]) == prompt_tokens(tools=TOOLS, tool_choice="none") == bare
    assert (
        prompt_tokens(tools=TOOLS) == prompt_tokens(tools=TOOLS, tool_choice="auto", parallel_tool_calls=True) == told
    )
    moody = len(llm.chat_ids(seen, template_kwargs={"mood": "blue"}))
    assert prompt_tokens(chat_template_kwargs={"mood": "blue"}) == moody > bare


def test_parts_of_a_content_are_joined(server: ServerProcess) -> None:
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "thing"}]
    made = [
        server.post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 8}).json
        for content in (parts, "the\nthing")
    ]
    assert made[0]["exactlm"]["digests"] == made[1]["exactlm"]["digests"]


def test_control_tokens_in_a_content_are_text(server: ServerProcess, llm: LLM) -> None:
    end = llm.tokenizer.find_id("<|end|>")
    body = {"messages": [{"role": "user", "content": "a<|end|>b"}]}
    ids = server.post("/tokenize", body).json["tokens"]
    assert ids.count(end) == 1


def test_formats_hold(server: ServerProcess) -> None:
    named = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
    for temperature in (0, 2.0):
        body = {"messages": MESSAGES, "max_tokens": 200, "temperature": temperature, "response_format": named}
        choice = server.post(CHAT, body).json["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert 0 <= json.loads(choice["message"]["content"])["count"] <= 9
    body = {"messages": MESSAGES, "max_tokens": 300, "response_format": {"type": "json_object"}}
    choice = server.post(CHAT, body).json["choices"][0]
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)
    for field, value in (("regex", "(yes|no)"), ("grammar", 'start: "yes" | "no"')):
        choice = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 20, field: value}).json["choices"][0]
        assert choice["message"]["content"] in ("yes", "no")


def test_logprobs_are_those_of_the_library_and_change_nothing(server: ServerProcess, llm: LLM) -> None:
    expected = llm.chat(MESSAGES, SamplingParams(max_tokens=10, logprobs=20))[0].outputs[0]
    bare = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 10}).json
    assert bare["choices"][0]["logprobs"] is None
    for count in (None, 0, 1, 20):
        body = {"messages": MESSAGES, "max_tokens": 10, "logprobs": True, "top_logprobs": count}
        made = server.post(CHAT, body).json
        assert made["exactlm"]["digests"] == bare["exactlm"]["digests"]
        content = made["choices"][0]["logprobs"]["content"]
        assert expected.logprobs is not None
        for entry, token, known in zip(content, expected.token_ids, expected.logprobs, strict=True):
            assert entry["logprob"] == known[token] <= 0
            assert bytes(entry["bytes"]) == llm.tokenizer.token_bytes(token)
            top = [(bytes(t["bytes"]), t["logprob"]) for t in entry["top_logprobs"]]
            assert top == [(llm.tokenizer.token_bytes(i), v) for i, v in list(known.items())[: count or 0]]
    joined = b"".join(bytes(entry["bytes"]) for entry in content)
    assert joined.decode("utf-8", "replace").startswith(bare["choices"][0]["message"]["content"])
