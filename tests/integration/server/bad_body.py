"""About a hundred bodies that no server should take, and the field that is to be named for each."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.server.process import CHAT, COMPLETION

USER = {"role": "user", "content": "the thing"}
LONG = "the " * 8000
CALL = {"type": "function", "id": "a"}
TOOL = {"type": "function"}
BAD_CALL = {"type": "function", "function": {"name": "f", "arguments": "["}}


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [USER], "max_tokens": 4, **fields}).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "the thing", "max_tokens": 4, **fields}).encode()


def message(**fields: Any) -> bytes:
    return chat(messages=[{**USER, **fields}])


def deep(opening: str, closing: str, depth: int) -> bytes:
    return b'{"prompt": "a", "metadata": ' + (opening * depth + "1" + closing * depth).encode() + b"}"


# (path, body, field named; None where no field is to blame)
NOT_JSON: list[tuple[str, bytes, str | None]] = [
    (COMPLETION, b"", None),
    (COMPLETION, b"\x00", None),
    (COMPLETION, b"null", None),
    (COMPLETION, b"[]", None),
    (COMPLETION, b'"the thing"', None),
    (COMPLETION, b'{"prompt": "a"', None),
    (COMPLETION, b'{"prompt": "a"}}', None),
    (COMPLETION, b'{"prompt": "a",}', None),
    (COMPLETION, b"{'prompt': 'a'}", None),
    (COMPLETION, b'{"prompt": "a", "temperature": NaN}', None),
    (COMPLETION, b'{"prompt": "a", "temperature": Infinity}', None),
    (COMPLETION, b'{"prompt": "a", "top_p": -Infinity}', None),
    (COMPLETION, b'{"prompt": "a", "temperature": 1e999}', None),
    (COMPLETION, b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}", None),
    (COMPLETION, b'{"prompt": "a", "seed": 1, "seed": 2}', "seed"),
    (COMPLETION, b'{"prompt": "a", "prompt": "a"}', "prompt"),
    (CHAT, b'{"messages": [{"role": "user", "role": "user", "content": "a"}]}', "role"),
    (COMPLETION, b'{"prompt": "\\ud800"}', "prompt"),
    (COMPLETION, b'{"prompt": ["a", "b \\udc00"]}', "prompt[1]"),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "messages[0].content"),
    (COMPLETION, b'{"prompt": "\xff\xfe"}', None),
    (COMPLETION, '{"prompt": "a"}'.encode("utf-16"), None),
    (COMPLETION, deep("[", "]", 100), None),
    (COMPLETION, deep("[", "]", 200_000), None),
    (COMPLETION, deep('{"a":', "}", 200_000), None),
    (COMPLETION, b"[" * 500_000, None),
]
WRONG_FIELDS: list[tuple[str, bytes, str | None]] = [
    (COMPLETION, b"{}", "prompt"),
    (COMPLETION, completion(prompt=None), "prompt"),
    (COMPLETION, completion(prompt=""), "prompt"),
    (COMPLETION, completion(prompt=7), "prompt"),
    (COMPLETION, completion(prompt=[]), "prompt"),
    (COMPLETION, completion(prompt=[[]]), "prompt"),
    (COMPLETION, completion(prompt=["a", 1]), "prompt"),
    (COMPLETION, completion(prompt=[1, "a"]), "prompt"),
    (COMPLETION, completion(prompt=[1, 1.5]), "prompt"),
    (COMPLETION, completion(prompt=[True]), "prompt"),
    (COMPLETION, completion(prompt=[[[1]]]), "prompt"),
    (COMPLETION, completion(prompt={"text": "a"}), "prompt"),
    (COMPLETION, completion(prompt=[1, 500]), "prompt[1]"),
    (COMPLETION, completion(prompt=[-1]), "prompt[0]"),
    (COMPLETION, completion(prompt=[2**40]), "prompt[0]"),
    (COMPLETION, completion(prompt=[[1], [10**9]]), "prompt[1][0]"),
    (COMPLETION, completion(prompt=[1] * 600), "prompt"),
    (COMPLETION, completion(prompt=[1] * 500, max_tokens=13), "prompt"),
    (COMPLETION, completion(prompt="the thing " * 5000), "prompt"),
    (COMPLETION, completion(max_tokens=-1), "max_tokens"),
    (COMPLETION, completion(max_tokens=1.5), "max_tokens"),
    (COMPLETION, completion(max_tokens="5"), "max_tokens"),
    (COMPLETION, completion(max_tokens=True), "max_tokens"),
    (COMPLETION, completion(max_tokens=10**6), "prompt"),
    (COMPLETION, completion(max_tokens=10**30), "max_tokens"),
    (COMPLETION, completion(n=0), "n"),
    (COMPLETION, completion(n=5_000_000), "n"),
    (COMPLETION, completion(n=-1), "n"),
    (COMPLETION, completion(n=True), "n"),
    (COMPLETION, completion(n="2"), "n"),
    (COMPLETION, completion(best_of=3), None),
    (COMPLETION, completion(prompt=["a"] * 50, n=128), "n"),
    (COMPLETION, completion(seed=-1), "seed"),
    (COMPLETION, completion(seed=2**64), "seed"),
    (COMPLETION, completion(seed="7"), "seed"),
    (COMPLETION, completion(seed=1.5), "seed"),
    (COMPLETION, completion(seed=True), "seed"),
    (COMPLETION, completion(seed=[1]), "seed"),
    (COMPLETION, completion(temperature=-0.1), "temperature"),
    (COMPLETION, completion(temperature=1e-9), "temperature"),
    (COMPLETION, completion(temperature=1e9), "temperature"),
    (COMPLETION, completion(temperature="1"), "temperature"),
    (COMPLETION, completion(temperature=True), "temperature"),
    (COMPLETION, completion(top_p=1.1), "top_p"),
    (COMPLETION, completion(top_p=-0.5), "top_p"),
    (COMPLETION, completion(top_k=-2), "top_k"),
    (COMPLETION, completion(top_k=0.5), "top_k"),
    (COMPLETION, completion(min_p=2), "min_p"),
    (COMPLETION, completion(repetition_penalty=0), "repetition_penalty"),
    (COMPLETION, completion(presence_penalty=2.1), "presence_penalty"),
    (COMPLETION, completion(frequency_penalty=-3), "frequency_penalty"),
    (COMPLETION, completion(logit_bias={"a": 1}), "logit_bias"),
    (COMPLETION, completion(logit_bias={"1": 101}), "logit_bias[1]"),
    (COMPLETION, completion(logit_bias={"01": 1}), "logit_bias"),
    (COMPLETION, completion(logit_bias={"-1": 1}), "logit_bias"),
    (COMPLETION, completion(logit_bias={"1": "x"}), "logit_bias[1]"),
    (COMPLETION, completion(logit_bias={"600": 1}), "logit_bias"),
    (COMPLETION, completion(logit_bias=[1]), "logit_bias"),
    (COMPLETION, completion(stop=""), "stop"),
    (COMPLETION, completion(stop=["a", ""]), "stop[1]"),
    (COMPLETION, completion(stop=[7]), "stop[0]"),
    (COMPLETION, completion(stop=["a"] * 65), "stop"),
    (COMPLETION, completion(stop_token_ids=[600]), "stop_token_ids"),
    (COMPLETION, completion(stop_token_ids=["a"]), "stop_token_ids[0]"),
    (COMPLETION, completion(ignore_eos=1), "ignore_eos"),
    (COMPLETION, completion(echo="yes"), "echo"),
    (COMPLETION, completion(logprobs=10**9), "logprobs"),
    (COMPLETION, completion(logprobs=-1), "logprobs"),
    (COMPLETION, completion(logprobs=True), "logprobs"),
    (COMPLETION, completion(suffix="b"), "suffix"),
    (COMPLETION, completion(stream="true"), "stream"),
    (COMPLETION, completion(stream_options={"include_usage": True}), None),
    (COMPLETION, completion(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (COMPLETION, completion(stream=True, stream_options={"usage": True}), "stream_options.usage"),
    (COMPLETION, completion(temprature=1), "temprature"),
    (COMPLETION, completion(messages=[USER]), "messages"),
    (COMPLETION, completion(use_beam_search=True), "use_beam_search"),
    (COMPLETION, completion(regex="("), "regex"),
    (COMPLETION, completion(regex="a", grammar="start: 'a'"), None),
    (COMPLETION, completion(grammar="start: ("), "grammar"),
    (COMPLETION, completion(regex=7), "regex"),
    (COMPLETION, completion(response_format={"type": "json_object"}, regex="a"), None),
    (COMPLETION, completion(model=7), "model"),
    (CHAT, chat(messages=[]), "messages"),
    (CHAT, chat(messages="hello"), "messages"),
    (CHAT, chat(messages=["hello"]), "messages[0]"),
    (CHAT, chat(messages=[{"content": "a"}]), "messages[0].role"),
    (CHAT, message(role="god"), "messages[0].role"),
    (CHAT, message(role=1), "messages[0].role"),
    (CHAT, message(content=None), "messages[0].content"),
    (CHAT, message(content=7), "messages[0].content"),
    (CHAT, message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0].type"),
    (CHAT, message(content=[{"type": "text"}]), "messages[0].content[0].text"),
    (CHAT, message(mood="good"), "messages[0].mood"),
    (CHAT, message(function_call={"name": "f"}), "messages[0].function_call"),
    (CHAT, message(tool_calls=[BAD_CALL]), "messages[0].tool_calls[0].function.arguments"),
    (CHAT, chat(messages=[{"role": "user", "content": "the " * 20_000}]), "messages"),
    (CHAT, message(reasoning_content=LONG), "messages"),
    (CHAT, message(tool_calls=[{**CALL, "function": {"name": LONG, "arguments": {}}}]), "messages"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": LONG[:15_000]}] * 2}]), "messages"),
    (CHAT, chat(tools=[{**TOOL, "function": {"name": "f", "description": LONG}}]), "tools"),
    (CHAT, chat(tools=[{**TOOL, "function": {"name": "f", "parameters": {LONG: 1}}}]), "tools"),
    (CHAT, chat(tools=[{**TOOL, "function": {"name": "f", "parameters": {"enum": [1] * 30_000}}}]), "tools"),
    (CHAT, chat(chat_template_kwargs={"mood": [LONG]}), "chat_template_kwargs"),
    (CHAT, chat(top_logprobs=3), None),
    (CHAT, chat(logprobs=True, top_logprobs=10**9), "top_logprobs"),
    (CHAT, chat(logprobs=2), "logprobs"),
    (CHAT, chat(max_completion_tokens=5), None),
    (CHAT, chat(max_tokens=10**7), "messages"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools[0].function"),
    (CHAT, chat(tools={"f": 1}), "tools"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice"),
    (CHAT, chat(functions=[]), "functions"),
    (CHAT, chat(modalities=["audio"]), "modalities[0]"),
    (CHAT, chat(reasoning_effort="low"), "reasoning_effort"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs=[]), "chat_template_kwargs"),
    (CHAT, chat(response_format="json"), "response_format"),
    (CHAT, chat(response_format={"type": "yaml"}), "response_format"),
    (CHAT, chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {"type": 7}}}), "response_format"),
    (CHAT, chat(prompt="a"), "prompt"),
]  # fmt: skip
