"""Streams that end early, and a ledger that fails or stalls: what was sent is recorded, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM
from exactlm.proof.ledger import Ledger
from exactlm.proof.verify import verify_receipts
from exactlm.receipt import Receipt
from exactlm.server import generate
from exactlm.server.completion import CompletionFormat
from exactlm.server.generate import GenerateEndpoint
from exactlm.server.recorder import Recorder
from exactlm.server.service import ServerConfig, Service

WAIT_S = 20.0
BODY = {"prompt": "the thing", "max_tokens": 450, "ignore_eos": True, "stream": True, "return_token_ids": True}


class Client:
    """Asks for a stream, hears it, and leaves when it is told to."""

    def __init__(self, service: Service) -> None:
        self.data, self.status, self.is_over = b"", 0, False
        self.leaves = asyncio.Event()
        self._body: list[bytes] = [json.dumps(BODY).encode()]
        scope = {"type": "http", "headers": [(b"content-type", b"application/json")], "state": {}}
        endpoint = GenerateEndpoint(service, CompletionFormat)
        self.task = asyncio.create_task(endpoint(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.data += message["body"]
            self.is_over = not message.get("more_body", False)

    @property
    def events(self) -> list[Any]:
        lines = self.data.decode("ascii").split("\n\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]

    @property
    def token_ids(self) -> list[int]:
        return [i for event in self.events for choice in event.get("choices", []) for i in choice["token_ids"]]


async def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


class Served:
    """A service with a ledger whose next append can be held up."""

    def __init__(self, llm: LLM, path: Path) -> None:
        self.ledger = Ledger.open(path)
        self.service = Service(llm, ServerConfig("tiny", recorder=Recorder(self.ledger)), 8)
        self.may_append = threading.Event()
        self.may_append.set()
        append = self.ledger._writer._append

        def wait_and_append(items: Any) -> Any:
            assert self.may_append.wait(WAIT_S)
            return append(items)

        self.ledger._writer._append = wait_and_append

    @property
    def num_open(self) -> float:
        """The gauge of requests under way."""
        lines = self.service.metrics.render().decode().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith("exactlm_open_requests ")]
        return float(value)

    def receipts(self) -> list[Receipt]:
        return [receipt for entry in self.ledger.entries() if (receipt := entry.receipt) is not None]

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        await self.service.start()
        try:
            yield
        finally:
            self.may_append.set()
            self.service.stop()


@pytest.fixture
def slow(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The model, with steps so slow that a client can leave in between."""
    step = llm.step

    def wait_and_step() -> bool:
        time.sleep(0.01)
        return step()

    monkeypatch.setattr(llm, "step", wait_and_step)
    return llm


@pytest.fixture
def served(slow: LLM, tmp_path: Path) -> Served:
    return Served(slow, tmp_path / "a.db")


def check(llm: LLM, receipts: list[Receipt], client: Client) -> None:
    """That the one receipt begins with what the client heard."""
    (verdict,) = verify_receipts(llm, receipts)
    assert verdict.is_identical
    (receipt,) = receipts
    assert client.token_ids
    assert receipt["output"]["token_ids"][: len(client.token_ids)] == client.token_ids
    assert receipt["output"]["finish_reason"] == "length"
    assert receipt["sampling"]["max_tokens"] == len(receipt["output"]["token_ids"])


@pytest.mark.parametrize("kind", ["bug in forward", "NaN", "MemoryError in step"])
def test_what_was_sent_before_the_engine_failed_is_recorded(
    slow: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def fail(*arguments: Any) -> Any:
        raise MemoryError if "Memory" in kind else ZeroDivisionError

    embed = slow._engine.decoder.kernels.embed

    def poison(table: Any, token_ids: Any, x: Any) -> None:
        embed(table, token_ids, x)
        x[: len(token_ids)] = float("nan")

    async def run() -> list[Receipt]:
        served = Served(slow, tmp_path / "a.db")
        async with served.run():
            client = Client(served.service)
            await wait_for(lambda: len(client.token_ids) > 3)
            with monkeypatch.context() as patch:
                if kind == "NaN":
                    patch.setattr(slow._engine.decoder.kernels, "embed", poison)
                else:
                    patch.setattr(slow if "step" in kind else slow._engine.decoder, kind.split()[-1], fail)
                await wait_for(lambda: client.is_over)
            receipts = served.receipts()  # before the error was told
            assert client.events[-1]["error"]["type"] == "server_error"
            await asyncio.wait_for(client.task, WAIT_S)
            check(slow, receipts, client)
            assert (served.num_open, served.service.room._num_answers) == (0, 0)
        return receipts

    assert len(asyncio.run(run())) == 1
    slow.check_integrity()
    assert slow.stats().num_pages_used == 0


def test_a_ledger_that_stalls_holds_up_neither_room_nor_request(
    served: Served, slow: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(generate, "_CLOSE_SECONDS", 2.0)

    async def run() -> None:
        async with served.run():
            client = Client(served.service)
            await wait_for(lambda: len(client.token_ids) > 3)
            served.may_append.clear()
            client.leaves.set()
            await wait_for(lambda: served.service.room._num_answers == 0)
            assert not client.task.done()  # the room is free while the ledger is waited for
            assert served.num_open == 1
            await asyncio.wait_for(client.task, WAIT_S)
            assert (served.num_open, served.service.room._num_answers, served.receipts()) == (0, 0, [])
            served.may_append.set()
            await wait_for(lambda: len(served.receipts()) == 1)
            check(slow, served.receipts(), client)

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "what was sent of the stream is not yet recorded" in line


def test_a_cancellation_while_a_ledger_stalls_leaves_nothing_behind(served: Served, slow: LLM) -> None:
    async def run() -> None:
        async with served.run():
            client = Client(served.service)
            await wait_for(lambda: len(client.token_ids) > 3)
            served.may_append.clear()
            client.leaves.set()
            await wait_for(lambda: slow.stats().num_running == 0)
            client.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(client.task, WAIT_S)
            assert (served.num_open, served.service.room._num_answers) == (0, 0)
            assert not served.service._exchanges
            served.may_append.set()
            await wait_for(lambda: len(served.receipts()) == 1)
            check(slow, served.receipts(), client)

    asyncio.run(run())


def test_an_answer_that_cannot_be_cut_is_named_and_ended(
    served: Served, slow: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with served.run():
            client = Client(served.service)
            await wait_for(lambda: len(client.token_ids) > 3)
            (exchange,) = served.service._exchanges

            def fail() -> None:
                raise ZeroDivisionError("a bug")

            monkeypatch.setattr(exchange.tickets[0], "cut", fail)
            client.leaves.set()
            await asyncio.wait_for(client.task, WAIT_S)
            await wait_for(lambda: slow.stats().num_pages_used == 0)
            assert (served.num_open, served.service.room._num_answers, served.receipts()) == (0, 0, [])

    asyncio.run(run())
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert any("what was sent of it is not recorded: choice 0" in line for line in lines)
    assert all(line.startswith("request cmpl-") for line in lines)
