"""Chat completions: the conversation becomes token ids by the model's template, answers become messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar

from exactlm.llm import LLM, RequestOutput
from exactlm.prompt import ReadPrompt
from exactlm.server.answer_format import Asked, Piece
from exactlm.server.chat_schema import ChatRequest, list_messages
from exactlm.server.logprob import make_chat_logprobs
from exactlm.server.prompt import check_length, check_size, count_chars
from exactlm.server.sampling_schema import make_params
from exactlm.text.tokenizer import Tokenizer


class ChatFormat:
    """The format of POST /v1/chat/completions."""

    endpoint: ClassVar[str] = "/v1/chat/completions"
    id_prefix: ClassVar[str] = "chatcmpl-"
    object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, num_top: int | None, shows_ids: bool) -> None:
        self.is_whole = False
        self._tokenizer, self._num_top, self._shows_ids = tokenizer, num_top, shows_ids

    @classmethod
    def read(cls, body: dict[str, Any], llm: LLM) -> Asked:
        """The request in a body, the template rendered. ApiError, ExactlmError, ValidationError."""
        fields = ChatRequest.model_validate(body)
        max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        params = make_params(fields, max_tokens=max_tokens, logprobs=fields.num_top)
        prompt = render(llm, body)
        check_length(llm, len(prompt.token_ids), max_tokens, "messages")
        made = cls(llm.tokenizer, fields.num_top, bool(fields.return_token_ids))
        return Asked([prompt], params, bool(fields.stream), fields.wants_usage, fields.wants_receipts, made)

    def make_opening(self, index: int) -> str | None:
        """Who speaks."""
        choice = '{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return choice % index

    def make_chunk(self, index: int, piece: Piece) -> str | None:
        """The next piece of a message."""
        is_last = piece.finish_reason is not None
        if not (piece.text or piece.logprobs or is_last or (self._shows_ids and piece.token_ids)):
            return None
        delta = f'{{"content":{encode_basestring_ascii(piece.text)}}}' if piece.text or not is_last else "{}"
        logprobs, reason = "null", "null"
        if piece.logprobs:
            logprobs = json.dumps(self._make_logprobs(piece.token_ids, piece.logprobs))
        if is_last:
            reason = f'"{piece.finish_reason}","stop_reason":{json.dumps(piece.stop_reason)}'
        ids = f',"token_ids":{json.dumps(piece.token_ids)}' if self._shows_ids else ""
        return f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}{ids}}}'

    def make_choices(self, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """Whole messages."""
        choices = []
        for answer in outputs[0].outputs:
            choice: dict[str, Any] = {
                "index": answer.index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": None,
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
            }
            if answer.logprobs is not None:
                choice["logprobs"] = self._make_logprobs(answer.token_ids, answer.logprobs)
            if self._shows_ids:
                choice["token_ids"] = answer.token_ids
            choices.append(choice)
        return choices

    def _make_logprobs(self, token_ids: list[int], logprobs: list[dict[int, float]]) -> dict[str, Any]:
        return make_chat_logprobs(self._tokenizer, token_ids, logprobs, self._num_top or 0)


def render(llm: LLM, body: dict[str, Any], add_generation_prompt: bool = True) -> ReadPrompt:
    """A checked body's conversation and its token ids. Tools are told to the template unless tool_choice is "none"."""
    tools = body.get("tools") if body.get("tool_choice") != "none" else None
    kwargs = body.get("chat_template_kwargs")
    messages = list_messages(body)
    num_chars = 0
    for param, told in (("messages", messages), ("tools", tools), ("chat_template_kwargs", kwargs)):
        num_chars += count_chars(told)
        check_size(llm, num_chars, param)
    return llm.read_chat(messages, tools or None, add_generation_prompt, kwargs)
