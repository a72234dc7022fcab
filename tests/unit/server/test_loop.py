"""The engine's thread: it tells what comes, sleeps when there is nothing to do, and outlives every failure."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from exactlm import LLM, SamplingParams
from exactlm.errors import InterruptedStepError, RequestError
from exactlm.llm import StreamDelta
from exactlm.server.loop import EngineLoop, News

WAIT_S = 20.0


@dataclass(eq=False)
class Asker:
    wants_deltas: bool


class Inbox:
    """What the loop delivers, as it comes."""

    def __init__(self) -> None:
        self.batches: queue.Queue[list[News]] = queue.Queue()

    def collect(self, owner: Asker, count: int = 1) -> tuple[list[StreamDelta], list[News]]:
        """Everything of an owner until `count` of its requests are done, and the news."""
        deltas, news, done = list[StreamDelta](), list[News](), 0
        while done < count:
            for item in self.batches.get(timeout=WAIT_S):
                assert item.owner is owner
                deltas += item.deltas
                news.append(item)
                done += item.is_done
        return deltas, news


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def loop(llm: LLM, inbox: Inbox) -> Iterator[EngineLoop]:
    made = EngineLoop(llm, inbox.batches.put)
    made.start()
    yield made
    made.stop()
    assert not made.is_alive


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def ids_of(llm: LLM, text: str = "the thing") -> list[int]:
    return llm.tokenizer.encode(text)


@pytest.mark.parametrize("wants_deltas", [False, True])
def test_what_is_told_is_the_answer(llm: LLM, loop: EngineLoop, inbox: Inbox, wants_deltas: bool) -> None:
    params = SamplingParams(max_tokens=12, n=2, temperature=1.0, seed=4)
    expected = llm.generate(["the thing"], params)[0]
    owner = Asker(wants_deltas)
    (ticket,) = loop.submit([ids_of(llm)], params, owner)
    deltas, news = inbox.collect(owner)
    assert ticket.output().outputs == expected.outputs
    for choice in (0, 1):
        assert "".join(d.text for d in deltas if d.index == choice) == expected.outputs[choice].text
    assert len(news) > 3 if wants_deltas else len(news) == 1


def test_several_prompts_keep_their_places(llm: LLM, loop: EngineLoop, inbox: Inbox) -> None:
    owner = Asker(True)
    params = SamplingParams(max_tokens=5)
    tickets = loop.submit([ids_of(llm, t) for t in ("a", "be", "the")], params, owner)
    _, news = inbox.collect(owner, 3)
    for place, ticket in enumerate(tickets):
        text = "".join(d.text for item in news if item.place == place for d in item.deltas)
        assert text == ticket.output().outputs[0].text


def test_all_prompts_are_taken_or_none(llm: LLM, loop: EngineLoop, inbox: Inbox) -> None:
    with pytest.raises(RequestError):
        loop.submit([ids_of(llm), [10**6]], SamplingParams(max_tokens=400, ignore_eos=True), Asker(True))
    end = time.monotonic() + WAIT_S
    while llm.stats().num_running or llm.stats().num_waiting:
        assert time.monotonic() < end
        time.sleep(0.005)
    llm.check_integrity()


def test_a_cancelled_request_frees_its_pages(llm: LLM, inbox: Inbox) -> None:
    is_cancelled = threading.Event()

    def deliver(news: list[News]) -> None:
        inbox.batches.put(news)
        assert is_cancelled.wait(WAIT_S)  # however fast the engine is: it has more to do when the request is cancelled

    loop, owner = EngineLoop(llm, deliver), Asker(True)
    loop.start()
    tickets = loop.submit([ids_of(llm)], SamplingParams(max_tokens=450, ignore_eos=True), owner)
    inbox.batches.get(timeout=WAIT_S)
    loop.cancel(tickets)
    is_cancelled.set()
    deltas, _ = inbox.collect(owner)
    loop.stop()
    assert deltas[-1].finish_reason == "cancelled"
    assert llm.stats().num_pages_used == 0
    llm.check_integrity()


def test_a_cut_request_has_ended_when_that_is_told(llm: LLM, loop: EngineLoop, inbox: Inbox) -> None:
    params = SamplingParams(max_tokens=450, ignore_eos=True)
    staying, leaving = Asker(True), Asker(True)
    (stays,) = loop.submit([ids_of(llm, "and")], SamplingParams(max_tokens=200, ignore_eos=True), staying)
    for number in range(20):
        tickets = loop.submit([ids_of(llm), ids_of(llm, "be")], params, leaving)
        while number and not tickets[1].answers[0].sequence.output_ids:
            time.sleep(0.001)
        loop.cut(tickets).result(WAIT_S)
        for ticket in tickets:
            (answer,) = ticket.output().outputs
            assert ticket.is_done
            assert answer.finish_reason == ("length" if answer.token_ids else "cancelled")
    end = time.monotonic() + WAIT_S
    while loop._watched:  # what was cut is forgotten, though its last pieces were not told
        assert time.monotonic() < end
        time.sleep(0.005)
    assert stays.output().outputs == llm.generate(["and"], SamplingParams(max_tokens=200, ignore_eos=True))[0].outputs
    assert llm.stats().num_pages_used == 0
    llm.check_integrity()


def test_nothing_is_cut_after_the_end(llm: LLM, inbox: Inbox) -> None:
    loop = EngineLoop(llm, inbox.batches.put)
    loop.start()
    tickets = loop.submit([ids_of(llm)], SamplingParams(max_tokens=2), Asker(True))
    loop.stop()
    with pytest.raises(RuntimeError, match="has ended"):
        loop.cut(tickets).result(WAIT_S)
    loop.cancel(tickets)
    llm.check_integrity()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_cut_is_refused_when_the_thread_dies(llm: LLM, inbox: Inbox) -> None:
    is_asked = threading.Event()

    def deliver(news: list[News]) -> None:
        assert is_asked.wait(WAIT_S)
        raise ZeroDivisionError("a bug")

    loop = EngineLoop(llm, deliver)
    loop.start()
    tickets = loop.submit([ids_of(llm)], SamplingParams(max_tokens=450, ignore_eos=True), Asker(True))
    wait_for(lambda: bool(tickets[0].answers[0].sequence.output_ids))
    asked = loop.cut(tickets)
    is_asked.set()
    for result in (asked, loop.cut(tickets)):
        with pytest.raises(RuntimeError, match="has ended"):
            result.result(WAIT_S)
    wait_for(lambda: not loop.is_alive)
    loop.stop()
    loop.cancel(tickets)
    llm.check_integrity()


def test_a_ticket_that_cannot_be_cut_keeps_none_of_the_others(
    llm: LLM, loop: EngineLoop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=450, ignore_eos=True)
    tickets = loop.submit([[number + 1] for number in range(3)], params, Asker(True))

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(tickets[0], "cut", fail)
    wait_for(lambda: all(t.answers[0].sequence.output_ids for t in tickets))
    with pytest.raises(ZeroDivisionError):
        loop.cut(tickets).result(WAIT_S)
    wait_for(lambda: tickets[0].answers[0].sequence.is_finished)
    assert [t.answers[0].sequence.finish_reason for t in tickets] == ["cancelled", "length", "length"]
    assert [t.is_done for t in tickets[1:]] == [True, True]
    wait_for(lambda: llm.stats().num_pages_used == 0)
    llm.check_integrity()


def test_it_sleeps_when_there_is_nothing_to_do(
    llm: LLM, loop: EngineLoop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    step = llm.step
    monkeypatch.setattr(llm, "step", lambda: calls.append(1) or step())
    time.sleep(0.1)
    assert len(calls) <= 1
    assert loop.is_alive
    owner = Asker(False)
    (ticket,) = loop.submit([ids_of(llm)], SamplingParams(max_tokens=6), owner)
    inbox.collect(owner)
    assert len(ticket.output().outputs[0].token_ids) == 6
    assert len(calls) >= 6


def test_a_failing_step_ends_its_requests_and_nothing_else(
    llm: LLM, loop: EngineLoop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate(["the thing"], SamplingParams(max_tokens=6))[0]
    forward = llm._engine.decoder.forward
    is_broken = threading.Event()
    is_broken.set()

    def fail(*arguments: Any) -> Any:
        if is_broken.is_set():
            raise ZeroDivisionError("a bug")
        return forward(*arguments)

    monkeypatch.setattr(llm._engine.decoder, "forward", fail)
    owner = Asker(True)
    loop.submit([ids_of(llm), ids_of(llm, "and")], SamplingParams(max_tokens=6), owner)
    _, news = inbox.collect(owner, 2)
    assert all(isinstance(item.error, InterruptedStepError) for item in news)
    assert loop.num_failed_steps == 1
    is_broken.clear()
    owner = Asker(False)
    (ticket,) = loop.submit([ids_of(llm)], SamplingParams(max_tokens=6), owner)
    inbox.collect(owner)
    assert ticket.output().outputs == expected.outputs
    llm.check_integrity()


def test_a_step_that_fails_before_it_knows_its_requests_ends_them_too(
    llm: LLM, loop: EngineLoop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise MemoryError

    monkeypatch.setattr(llm, "step", fail)
    owner = Asker(True)
    loop.submit([ids_of(llm)], SamplingParams(max_tokens=6), owner)
    _, news = inbox.collect(owner)
    assert isinstance(news[0].error, MemoryError)
    monkeypatch.undo()
    owner = Asker(True)
    (ticket,) = loop.submit([ids_of(llm)], SamplingParams(max_tokens=450, ignore_eos=True), owner, has_receipts=True)
    wait_for(lambda: bool(ticket.output().outputs[0].token_ids))
    monkeypatch.setattr(llm, "step", fail)
    _, news = inbox.collect(owner)
    assert isinstance(news[-1].error, MemoryError)
    monkeypatch.undo()
    loop.cut([ticket]).result(WAIT_S)
    (answer,) = ticket.output().outputs  # what was told of it can be recorded
    params = SamplingParams(max_tokens=len(answer.token_ids), ignore_eos=True)
    assert answer == llm.generate([ids_of(llm)], params, receipt=True)[0].outputs[0]
    owner = Asker(True)
    loop.submit([ids_of(llm)], SamplingParams(max_tokens=6), owner)
    deltas, _ = inbox.collect(owner)
    assert deltas[-1].finish_reason == "length"
    assert llm.stats().num_pages_used == 0
