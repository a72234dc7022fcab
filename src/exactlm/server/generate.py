"""The endpoint that generates, for either format: reads, submits, waits or streams, and cleans up however it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import Any

from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from exactlm.errors import FormatError
from exactlm.server.answer_format import AnswerFormat, Asked
from exactlm.server.errors import ApiError, make_error, make_field_error
from exactlm.server.exchange import GONE_STATUS, Exchange
from exactlm.server.json_body import parse_body
from exactlm.server.reading import ClientGoneError, read_body, wait_for_disconnect
from exactlm.server.reply import send_json
from exactlm.server.service import Service
from exactlm.server.stream import StreamWriter
from exactlm.server.summary import make_response_extension, make_usage

_LOG = logging.getLogger("exactlm.server")
# How long the record of what was sent is waited for, before a stream's last words, an error, and before its end.
_RECORD_SECONDS, _CLOSE_SECONDS = 2.0, 10.0


class GenerateEndpoint:
    """An ASGI application for POST, for one format."""

    def __init__(self, service: Service, kind: type[AnswerFormat]) -> None:
        self._service, self._kind = service, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        service = self._service
        exchange = Exchange(self._kind.endpoint, self._kind.id_prefix)
        exchange.abort = scope.get("state", {}).get("abort")
        service.open(exchange)
        try:
            await self._answer(exchange, scope, receive, send)
        except ClientGoneError:
            exchange.status = GONE_STATUS
        finally:
            try:
                await self._record_rest(exchange, _CLOSE_SECONDS)
            finally:
                if exchange.recording is not None and not exchange.recording.done():
                    _LOG.warning("request %s: what was sent of the stream is not yet recorded", exchange.id)
                service.close(exchange)

    async def _answer(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        service, writer = self._service, None
        watch: asyncio.Task[None] | None = None
        expiry = asyncio.get_running_loop().call_later(service.limits.request_seconds, self._expire, exchange)
        try:
            service.check_ready()
            service.room.check()
            data = await read_body(scope, receive, service.limits)
            watch = asyncio.create_task(_watch(exchange, receive))
            asked = await service.run_aside(self._submit, exchange, data)
            envelope = self._make_envelope(exchange)
            if asked.is_streaming:
                finish = partial(self._finish, exchange, asked)
                writer = StreamWriter(send, exchange, asked, envelope, finish)
                await writer.run()
            else:
                body = await self._make_whole(exchange, asked, envelope)
                await send_json(send, 200, body, [(b"x-request-id", exchange.id.encode("ascii"))])
            exchange.status = 200
        except ClientGoneError:
            raise
        except Exception as problem:
            error = exchange.error = make_error(problem)
            exchange.status = error.status
            if error.status == 500:
                _LOG.error("request %s failed", exchange.id, exc_info=problem)
            if writer is not None and writer.is_started:
                await self._record_rest(exchange, _RECORD_SECONDS)
                await writer.send_error(error)
            else:
                headers = {**error.headers, "x-request-id": exchange.id}
                await send_json(send, error.status, error.body, headers=headers)
        finally:
            expiry.cancel()
            if watch is not None:
                watch.cancel()

    def _submit(self, exchange: Exchange, data: bytes) -> Asked:
        """In a worker thread: from bytes to queued tickets."""
        service = self._service
        exchange.body = body = parse_body(data)
        check_model(body, service.config.model_name)
        try:
            asked = self._kind.read(body, service.llm)
        except ValidationError as error:
            raise make_field_error(error, body) from None
        has_receipts = self._has_receipts(asked)
        if has_receipts:
            service.config.recorder.check(asked.prompts, asked.params)
        exchange.params = asked.params
        exchange.is_streaming = asked.is_streaming
        exchange.wants_deltas = asked.is_streaming and not asked.format.is_whole
        exchange.check()
        exchange.reserve(service.room, asked.num_answers)
        exchange.expect(len(asked.prompts))
        try:
            tickets = service.loop.submit(asked.prompts, asked.params, exchange, has_receipts)
        except FormatError as error:
            _LOG.error("request %s: no receipt can be made: %s", exchange.id, error)
            problem = str(error).rpartition(": ")[2]  # the path before it is the server's own
            raise ApiError(503, f"no receipt can be made of this model: {problem}", code="damaged_model") from None
        exchange.attach(service.loop, tickets)
        return asked

    def _has_receipts(self, asked: Asked) -> bool:
        return asked.wants_receipts or self._service.config.recorder.has_ledger

    async def _finish(self, exchange: Exchange, asked: Asked, is_begun: bool) -> None:
        """Gives the exchange its outputs; where receipts are due, they are made and durable before anyone sees the
        end. is_begun: something was sent."""
        service, recorder = self._service, self._service.config.recorder
        if not self._has_receipts(asked):
            exchange.outputs = [ticket.output() for ticket in exchange.tickets]
            return
        outputs = await service.run_aside(recorder.collect, exchange.tickets)
        exchange.is_recorded = True
        await recorder.record(exchange.id, outputs, is_begun)
        exchange.outputs = outputs

    async def _record_rest(self, exchange: Exchange, seconds: float) -> None:
        """Where there is a ledger, and a stream ended early: puts into it what the answers had come to. Returns when
        that is done, or after so many seconds; then it goes on."""
        if exchange.recording is None:
            is_due = exchange.wants_deltas and exchange.tickets and not exchange.is_recorded
            if not is_due or not self._service.config.recorder.has_ledger:
                return
            exchange.recording = asyncio.create_task(self._cut(exchange))
        await asyncio.wait({exchange.recording}, timeout=seconds)

    async def _cut(self, exchange: Exchange) -> None:
        service, recorder = self._service, self._service.config.recorder
        try:
            try:
                await asyncio.wrap_future(service.loop.cut(exchange.tickets))
            except Exception:  # of one answer: the others are recorded
                _LOG.exception("request %s: an answer could not be cut", exchange.id)
            exchange.leave(service.room)  # the engine has ended it; only the ledger is waited for
            outputs = await service.run_aside(recorder.collect, exchange.tickets)
            await recorder.record_rest(exchange.id, outputs)
        except Exception:
            _LOG.exception("request %s: the stream ended early, and what was sent of it is not recorded", exchange.id)

    async def _make_whole(self, exchange: Exchange, asked: Asked, envelope: dict[str, Any]) -> bytes:
        exchange.check()
        while not exchange.is_done:
            await exchange.wait()
        await self._finish(exchange, asked, False)
        return await self._service.run_aside(_dump_whole, exchange, asked, envelope)

    def _expire(self, exchange: Exchange) -> None:
        message = f"the request was not finished within {self._service.limits.request_seconds:g} seconds"
        exchange.end(ApiError(408, message, code="request_timeout", headers={"Connection": "close"}))

    def _make_envelope(self, exchange: Exchange) -> dict[str, Any]:
        service = self._service
        return {
            "id": exchange.id,
            "object": self._kind.object,
            "created": exchange.created,
            "model": service.config.model_name,
            "system_fingerprint": service.llm.fingerprint,
        }


def _dump_whole(exchange: Exchange, asked: Asked, envelope: dict[str, Any]) -> bytes:
    whole = {
        **envelope,
        "choices": asked.format.make_choices(exchange.outputs),
        "usage": make_usage(exchange),
        "exactlm": make_response_extension(exchange, asked.wants_receipts),
    }
    return json.dumps(whole, allow_nan=False).encode("ascii")


def check_model(body: dict[str, Any], name: str) -> None:
    """ApiError 404 if the request names another model than the one served."""
    asked = body.get("model")
    if isinstance(asked, str) and asked != name:
        message = f"the model {asked!r:.100} is not served here; this server has {name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


async def _watch(exchange: Exchange, receive: Receive) -> None:
    await wait_for_disconnect(receive)
    exchange.fail(ClientGoneError())
