"""The endpoints /tokenize and /detokenize: what the model's tokenizer makes of a text, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from exactlm.llm import LLM
from exactlm.server.chat import render
from exactlm.server.errors import make_error, make_field_error
from exactlm.server.generate import check_model
from exactlm.server.json_body import parse_body
from exactlm.server.logprob import name_token
from exactlm.server.prompt import check_ids, check_size
from exactlm.server.reading import read_body
from exactlm.server.reply import send_json
from exactlm.server.service import Service
from exactlm.server.token_schema import DetokenizeRequest, TokenizeRequest

Body = TypeVar("Body", bound=BaseModel)


class TokenEndpoint:
    """An ASGI application for POST: a JSON body in, a JSON object out, made by `work` in a worker thread."""

    def __init__(self, service: Service, work: Callable[[LLM, dict[str, Any]], dict[str, Any]]) -> None:
        self._service, self._work = service, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request. ApiError."""
        self._service.check_ready()
        data = await read_body(scope, receive, self._service.limits)
        await send_json(send, 200, await self._service.run_aside(self._answer, data))

    def _answer(self, data: bytes) -> bytes:
        body = parse_body(data)
        check_model(body, self._service.config.model_name)
        try:
            return json.dumps(self._work(self._service.llm, body)).encode("ascii")
        except Exception as error:
            raise make_error(error) from error


def tokenize(llm: LLM, body: dict[str, Any]) -> dict[str, Any]:
    """The token ids of a text or a conversation, their number, and the context's length."""
    fields = _validate(TokenizeRequest, body)
    if fields.prompt is not None:
        check_size(llm, len(fields.prompt), "prompt")
        ids = llm.tokenizer.encode(fields.prompt, add_special_tokens=fields.add_special_tokens is not False)
    else:
        ids = render(llm, body, fields.add_generation_prompt is not False).token_ids
    result: dict[str, Any] = {"count": len(ids), "max_model_len": llm.context_tokens, "tokens": ids}
    if fields.return_token_strs:
        result["token_strs"] = [name_token(llm.tokenizer, token_id) for token_id in ids]
    return result


def detokenize(llm: LLM, body: dict[str, Any]) -> dict[str, Any]:
    """The text of token ids, control tokens included unless told otherwise."""
    fields = _validate(DetokenizeRequest, body)
    if fields.tokens:
        check_ids(llm, fields.tokens, "tokens")
    return {"prompt": llm.tokenizer.decode(fields.tokens, skip_special_tokens=bool(fields.skip_special_tokens))}


def _validate(schema: type[Body], body: dict[str, Any]) -> Body:
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise make_field_error(error, body) from None
