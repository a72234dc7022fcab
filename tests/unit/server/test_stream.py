"""The bytes of a stream: pieces that wait for a reader are joined, silence is filled, errors end it in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from exactlm import LLM, SamplingParams
from exactlm.llm import Ticket
from exactlm.server.answer_format import Asked
from exactlm.server.chat import ChatFormat
from exactlm.server.errors import ApiError
from exactlm.server.exchange import Exchange
from exactlm.server.loop import News
from exactlm.server.stream import StreamWriter

BODY = {"messages": [{"role": "user", "content": "the"}], "max_tokens": 9, "ignore_eos": True, "stream": True}


class Reader:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.status = 0
        self.is_over = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            assert self.status == 0
            self.status = message["status"]
        else:
            assert self.status == 200
            assert not self.is_over
            self.parts.append(message["body"])
            self.is_over = not message["more_body"]

    @property
    def events(self) -> list[Any]:
        lines = b"".join(self.parts).decode("ascii").split("\n\n")[:-1]
        return [line if line.startswith(":") else line.removeprefix("data: ") for line in lines]


async def open_stream(llm: LLM, **fields: Any) -> tuple[StreamWriter, Exchange, Reader, Ticket]:
    asked: Asked = ChatFormat.read({**BODY, **fields}, llm)
    exchange, reader = Exchange("/v1/chat/completions", "x-"), Reader()
    exchange.expect(1)
    ticket = llm.submit(asked.prompts[0], asked.params)
    exchange.tickets = [ticket]

    async def finish(is_begun: bool) -> None:
        exchange.outputs = [ticket.output()]

    return StreamWriter(reader, exchange, asked, {"id": exchange.id}, finish), exchange, reader, ticket


def give(exchange: Exchange, ticket: Ticket) -> None:
    """What the engine has brought since the last time."""
    exchange.take(News(exchange, 0, ticket.poll(), ticket.is_done, None))


@pytest.mark.parametrize("num_steps", [1, 3, 100])
def test_pieces_that_wait_are_one_chunk(llm: LLM, num_steps: int) -> None:
    async def run() -> Reader:
        writer, exchange, reader, ticket = await open_stream(llm, logprobs=True, return_token_ids=True)
        task = asyncio.create_task(writer.run())
        while not ticket.is_done:
            for _ in range(num_steps):  # the reader is away meanwhile
                llm.step()
                give(exchange, ticket)
                if ticket.is_done:
                    break
            for _ in range(3):
                await asyncio.sleep(0)
        await task
        return reader

    reader = asyncio.run(run())
    expected = llm.chat(BODY["messages"], SamplingParams(max_tokens=9, ignore_eos=True))[0].outputs[0]
    chunks = [json.loads(event) for event in reader.events[:-1]]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert reader.events[-1] == "[DONE]"
    assert reader.is_over
    assert "".join(choice["delta"].get("content", "") for choice in choices) == expected.text
    assert [i for choice in choices for i in choice.get("token_ids", [])] == expected.token_ids
    assert sum(len((choice["logprobs"] or {}).get("content", [])) for choice in choices) == len(expected.token_ids)
    assert chunks[-1]["exactlm"]["digests"] == [expected.digest]
    assert len(chunks) <= 2 + -(-9 // num_steps)


def test_silence_is_filled_with_comments(llm: LLM) -> None:
    async def run() -> Reader:
        writer, exchange, reader, ticket = await open_stream(llm)
        task = asyncio.create_task(writer.run())
        for _ in range(2):  # what the service's clock does
            exchange.is_quiet = True
            exchange.changed.set()
            await asyncio.sleep(0.01)
        while not ticket.is_done:
            llm.step()
            give(exchange, ticket)
        await task
        return reader

    events = asyncio.run(run()).events
    assert events.count(": waiting") == 2
    assert events[1:3] == [": waiting"] * 2
    assert json.loads(events[0])["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1] == "[DONE]"


def test_a_failure_before_the_first_byte_is_raised_and_after_it_told(llm: LLM) -> None:
    async def run(is_begun: bool) -> Reader:
        writer, exchange, reader, ticket = await open_stream(llm)
        task = asyncio.create_task(writer.run())
        if is_begun:
            llm.step()
            give(exchange, ticket)
            await asyncio.sleep(0.01)
        exchange.fail(ApiError(408, "too late", code="request_timeout"))
        ticket.cancel()
        with pytest.raises(ApiError) as caught:
            await task
        assert writer.is_started == is_begun
        if is_begun:
            await writer.send_error(caught.value)
        return reader

    assert asyncio.run(run(False)).status == 0
    events = asyncio.run(run(True)).events
    assert json.loads(events[-2])["error"]["code"] == "request_timeout"
    assert events[-1] == "[DONE]"
    while llm.step():
        pass
    llm.check_integrity()
