"""The body of a chat completion, as OpenAI defines it, with vLLM's extensions. Knows no template."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exactlm.server.errors import ApiError
from exactlm.server.json_body import parse_body
from exactlm.server.sampling_schema import Count, Ignored, Refused, SamplingFields, Strict, TopLogprobs


class Open(BaseModel):
    """An object that the chat template sees whole: fields that are not listed are kept."""

    model_config = ConfigDict(strict=True, extra="allow")


class TextPart(Strict):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class FunctionCall(Open):
    """The call that an assistant's message asked for; arguments is a JSON object, as a text or as it is."""

    name: str
    arguments: str | dict[str, Any]


class ToolCall(Open):
    """One of an assistant's calls."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Strict):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function", "ipython"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Refused = None
    audio: Refused = None
    function_call: Refused = None
    annotations: Ignored = None


class FunctionSpec(Open):
    """A function that the model may ask for."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Open):
    """A tool; the template decides how the model is told of it."""

    type: Literal["function"]
    function: FunctionSpec


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    parallel_tool_calls: Ignored = None
    functions: Refused = None
    function_call: Refused = None
    audio: Refused = None
    prediction: Refused = None
    reasoning_effort: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        self.check_combinations()
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is for log-probabilities: set logprobs to true")
        told = (self.max_tokens, self.max_completion_tokens)
        if None not in told and told[0] != told[1]:
            raise ValueError(f"max_tokens is {told[0]} but max_completion_tokens is {told[1]}: give one of them")
        return self

    @property
    def num_top(self) -> int | None:
        """Alternatives reported at each token; None where no log-probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None


def list_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a checked body as chat templates expect them: no nulls, and the arguments of calls as objects,
    as in transformers. ValueError names arguments that are no JSON object."""
    messages = []
    for index, given in enumerate(body["messages"]):
        message = {key: value for key, value in given.items() if value is not None and key != "annotations"}
        if "tool_calls" in message:
            place = f"messages[{index}].tool_calls"
            message["tool_calls"] = [_open_call(c, f"{place}[{i}]") for i, c in enumerate(message["tool_calls"])]
        messages.append(message)
    return messages


def _open_call(call: dict[str, Any], place: str) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = parse_body(arguments.encode("utf-8")) if arguments else {}
        except ApiError as error:
            param = f"{place}.function.arguments"
            raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value") from None
    return {"type": "function", **call, "function": {**call["function"], "arguments": arguments}}
