"""Server-sent events: a stream's bytes around its choices. Everything that is the same in each chunk is made once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.types import Send

from exactlm.llm import StreamDelta
from exactlm.server.answer_format import AnswerFormat, Asked, Piece
from exactlm.server.errors import ApiError
from exactlm.server.exchange import Exchange
from exactlm.server.summary import make_response_extension, make_usage

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx would hold the stream back
]
_COMMENT = b": waiting\n\n"
_DONE = b"data: [DONE]\n\n"


class StreamWriter:
    """Writes one streamed response. Pieces that wait for a slow reader are joined into one chunk."""

    def __init__(
        self,
        send: Send,
        exchange: Exchange,
        asked: Asked,
        envelope: dict[str, Any],
        finish: Callable[[bool], Awaitable[None]],
    ) -> None:
        """finish: gives the exchange its outputs, once it is done; told whether something was sent."""
        self._send, self._exchange, self._asked, self._finish = send, exchange, asked, finish
        self._format: AnswerFormat = asked.format
        head = json.dumps({**envelope, "object": self._format.chunk_object}, separators=(",", ":"))
        self._head = f'data: {head[:-1]},"choices":['
        self._tail = '],"usage":null}\n\n' if asked.wants_usage else "]}\n\n"
        self.is_started = False

    async def run(self) -> None:
        """The whole stream, until the answers are done. Raises what the request fails with; send_error() tells it."""
        exchange = self._exchange
        while True:
            await exchange.wait()
            deltas = exchange.take_deltas()
            if exchange.is_done:
                await self._finish(self.is_started)
                await self._write(self._make_last(self._list_chunks(deltas)), more_body=False)
                return
            if chunks := self._list_chunks(deltas):
                await self._write("".join(self._head + chunk + self._tail for chunk in chunks).encode("ascii"))
            elif exchange.is_quiet:
                await self._write(_COMMENT)

    async def send_error(self, error: ApiError) -> None:
        """Ends a stream that has begun."""
        event = b"data: " + error.body + b"\n\n" + _DONE
        await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def _write(self, body: bytes, more_body: bool = True) -> None:
        if not self.is_started:
            self.is_started = True
            headers = [*HEADERS, (b"x-request-id", self._exchange.id.encode("ascii"))]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            body = self._make_opening() + body
        self._exchange.is_quiet = False
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    def _make_opening(self) -> bytes:
        if self._format.is_whole:
            return b""
        openings = [self._format.make_opening(index) for index in range(self._asked.num_answers)]
        return "".join(self._head + text + self._tail for text in openings if text is not None).encode("ascii")

    def _list_chunks(self, deltas: Sequence[tuple[int, StreamDelta]]) -> list[str]:
        """Choice objects, one for each choice that has something to show."""
        if self._format.is_whole:
            return [json.dumps(choice) for choice in self._format.make_choices(self._exchange.outputs)]
        chunks = []
        for index, piece in self._join(deltas).items():
            chunk = self._format.make_chunk(index, piece)
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _join(self, deltas: Sequence[tuple[int, StreamDelta]]) -> dict[int, Piece]:
        pieces: dict[int, Piece] = {}
        for prompt, delta in deltas:
            index = prompt * self._asked.params.n + delta.index
            piece = pieces.get(index)
            if piece is None:
                pieces[index] = Piece(
                    delta.text, delta.token_ids, delta.logprobs, delta.finish_reason, delta.stop_reason
                )
                continue
            piece.text += delta.text
            piece.token_ids = piece.token_ids + delta.token_ids
            if piece.logprobs is not None and delta.logprobs is not None:
                piece.logprobs = piece.logprobs + delta.logprobs
            piece.finish_reason, piece.stop_reason = delta.finish_reason, delta.stop_reason
        return pieces

    def _make_last(self, chunks: list[str]) -> bytes:
        """The last chunks: the very last one carries the extension, and the counts if they are asked for."""
        extension = (
            f',"exactlm":{json.dumps(make_response_extension(self._exchange, self._asked.wants_receipts))}}}\n\n'
        )
        if self._asked.wants_usage:
            parts = [self._head + chunk + self._tail for chunk in chunks]
            parts.append(f'{self._head}],"usage":{json.dumps(make_usage(self._exchange))}{extension}')
        else:
            parts = [self._head + chunk + self._tail for chunk in chunks[:-1]]
            parts.append(f"{self._head}{chunks[-1]}]{extension}")
        return "".join(parts).encode("ascii") + _DONE
