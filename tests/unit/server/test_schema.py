"""From request fields to SamplingParams: every field arrives, defaults are those of the library."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from exactlm import SamplingParams
from exactlm.server.chat_schema import ChatRequest, list_messages
from exactlm.server.completion_schema import CompletionRequest
from exactlm.server.errors import ApiError, make_field_error
from exactlm.server.sampling_schema import make_params

MESSAGES = [{"role": "user", "content": "hello"}]
FIELDS: dict[str, Any] = {
    "n": 3,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "presence_penalty": -1,
    "frequency_penalty": 2,
    "seed": 2**64 - 1,
    "ignore_eos": True,
    "stop_token_ids": [3, 4],
    "stop": ["a", "b"],
    "regex": "a+",
}


def params_of(**fields: Any) -> SamplingParams:
    return make_params(CompletionRequest(prompt="x", **fields), max_tokens=16, logprobs=None)


def test_absent_and_null_are_the_defaults_of_the_library() -> None:
    assert params_of() == SamplingParams()
    assert params_of(**dict.fromkeys([*FIELDS, "logit_bias", "response_format", "grammar"])) == SamplingParams()


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_arrives_alone(name: str) -> None:
    given = {name: FIELDS[name]}
    seed = {} if name != "temperature" else {"seed": 1}
    assert params_of(**given, **seed) == SamplingParams(**given, **seed) != SamplingParams(**seed)


def test_fields_in_another_form() -> None:
    assert params_of(stop="end") == SamplingParams(stop=("end",))
    assert params_of(logit_bias={"7": -100, "0": 1.5}) == SamplingParams(logit_bias={0: 1.5, 7: -100.0})
    assert params_of(response_format={"type": "text"}) == SamplingParams()
    assert params_of(response_format={"type": "json_object"}) == SamplingParams(json_schema={"type": "object"})
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    assert params_of(response_format=named) == SamplingParams(json_schema=schema)


def test_a_seed_is_drawn_only_where_something_is_drawn() -> None:
    assert params_of().seed is None
    drawn = {params_of(temperature=1).seed for _ in range(8)}
    assert None not in drawn
    assert len(drawn) == 8
    assert params_of(temperature=1, seed=0).seed == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 7}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [[1], [2, 1.0]]}, "prompt"),
        ({"prompt": "a", "best_of": 2}, None),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, None),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({}, "prompt"),
    ],
)
def test_completions_name_the_wrong_field(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate(fields)
    assert make_field_error(caught.value, fields).param == param


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "god", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"messages": [{"role": "assistant", "content": "x", "function_call": {}}]}, "messages[0].function_call"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 3}, None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, None),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_chats_name_the_wrong_field(changed: dict[str, Any], param: str | None) -> None:
    body = {"messages": MESSAGES, **changed}
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(body)
    error = make_field_error(caught.value, body)
    assert (error.status, error.param) == (400, param)


def test_harmless_fields_are_taken() -> None:
    harmless = {
        "user": "x",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": False,
    }
    ChatRequest.model_validate({"messages": MESSAGES, **harmless, "modalities": ["text"], "functions": None})


def test_messages_reach_the_template_without_nulls_and_with_open_arguments() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    body = {
        "messages": [
            {"role": "user", "content": "x", "name": None},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
    }
    ChatRequest.model_validate(body)
    opened = {**call, "function": {"name": "f", "arguments": {"a": [1]}}}
    assert list_messages(body) == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [opened]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


@pytest.mark.parametrize("arguments", ["[1]", "{", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1, "a": 1}'])
def test_arguments_that_are_no_object_are_named(arguments: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    with pytest.raises(ApiError) as caught:
        list_messages({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"
