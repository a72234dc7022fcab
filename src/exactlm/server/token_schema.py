"""The bodies of /tokenize and /detokenize, as vLLM defines them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from exactlm.server.chat_schema import Message, Tool
from exactlm.server.sampling_schema import Strict, TokenId


class TokenizeRequest(Strict):
    """POST /tokenize: a text, or a conversation to be rendered by the chat template."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        for name in ("add_generation_prompt", "tools", "chat_template_kwargs"):
            if self.messages is None and getattr(self, name) is not None:
                raise ValueError(f"{name} is for messages")
        if self.messages is not None and self.add_special_tokens is not None:
            raise ValueError("add_special_tokens is for a prompt: the chat template writes its own")
        return self


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool | None = None
