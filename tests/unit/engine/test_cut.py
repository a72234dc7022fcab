"""A request that is cut is one that had asked for no more: same receipt, same bytes, and nothing of it is left."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from exactlm import LLM, SamplingParams, convert_to_deterministic
from exactlm.errors import InterruptedStepError, NumericError, RequestError
from exactlm.llm import CompletionOutput, StreamDelta, Ticket
from exactlm.proof.verify import verify_receipts
from tests import tiny

PROMPT = np.random.Generator(np.random.Philox(key=4)).integers(0, 400, 70).tolist()
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
DRAWN = dataclasses.replace(GREEDY, temperature=1.3, top_p=0.95, seed=5)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
ENGINE_FILES = ("engine/engine.py", "engine/scheduler.py", "engine/kv_cache.py")
STEP_FILES = (*ENGINE_FILES, "engine/sequence.py", "engine/history.py", "exactlm/answer.py", "text/stream.py")
KINDS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "penalties": dataclasses.replace(GREEDY, repetition_penalty=1.3, frequency_penalty=0.4),
    "guided": dataclasses.replace(DRAWN, json_schema=SCHEMA),
    "logprobs": dataclasses.replace(GREEDY, logprobs=2, prompt_logprobs=1),
    "three": dataclasses.replace(DRAWN, n=3),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    source = tiny.write_checkpoint(folder / "source")
    return convert_to_deterministic(source).save_pretrained(folder / "model", progress=False)


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, threads=1)


def ask(llm: LLM, params: SamplingParams, num_tokens: int) -> Ticket:
    """A request under way whose first answer has at least so many tokens."""
    ticket = llm.submit(PROMPT, params, receipt=True)
    while len(ticket.answers[0].sequence.output_ids) < num_tokens:
        assert llm.step()
        ticket.poll()
    return ticket


def expect(llm: LLM, params: SamplingParams, num_tokens: int | None, choice: int = 0) -> CompletionOutput:
    """What a request for so many tokens answers."""
    asked = dataclasses.replace(params, max_tokens=num_tokens)
    return llm.generate([PROMPT], asked, receipt=True)[0].outputs[choice]


def check_cut(llm: LLM, judge: LLM, ticket: Ticket, params: SamplingParams) -> list[CompletionOutput]:
    """Cuts, and compares every answer with what the judge makes of a request for no more."""
    steps = llm.stats().num_steps
    ticket.cut()
    assert ticket.is_done
    assert llm.stats().num_steps == steps
    assert llm.stats().num_pages_used == llm.stats().num_running == llm.stats().num_waiting == 0
    llm.check_integrity()
    outputs = ticket.output().outputs
    for answer in outputs:
        if not answer.token_ids:
            assert (answer.finish_reason, answer.receipt) == ("cancelled", None)
            continue
        count = len(answer.token_ids) if answer.finish_reason == "length" else params.max_tokens
        assert answer == expect(judge, params, count, answer.index)
        assert answer.receipt is not None
    receipts = [a.receipt for a in outputs if a.receipt is not None]
    assert all(v.is_identical for v in verify_receipts(judge, receipts))
    return outputs


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 20])
def test_it_is_the_answer_to_a_request_for_so_many_tokens(llm: LLM, path: Path, kind: str, num_tokens: int) -> None:
    params = KINDS[kind]
    judge = LLM(path, threads=2, chunk_tokens=3, prefix_cache=False)
    answer = check_cut(llm, judge, ask(llm, params, num_tokens), params)[0]
    assert len(answer.token_ids) == num_tokens
    assert answer.receipt is not None
    assert answer.receipt["sampling"]["max_tokens"] == num_tokens
    assert answer.receipt["output"]["finish_reason"] == "length"


def test_what_is_left_of_half_a_character_is_told(llm: LLM) -> None:
    halves = 0
    for num_tokens in range(1, 40):
        ticket = ask(llm, DRAWN, num_tokens)
        told = ticket.answers[0].text
        text = check_cut(llm, llm, ticket, DRAWN)[0].text
        halves += text == told + "\ufffd"
        assert text.startswith(told)
    assert halves > 2


def test_text_that_was_held_back_for_a_stop_is_told(llm: LLM) -> None:
    text = expect(llm, GREEDY, 40).text
    params = dataclasses.replace(GREEDY, stop=(text[10:16] + "\0never",))
    held = 0
    for num_tokens in range(1, 40):
        ticket = ask(llm, params, num_tokens)
        told = ticket.answers[0].text
        cut = check_cut(llm, llm, ticket, params)[0].text
        held += len(cut) - len(told) > 1
    assert held > 1


def test_pieces_joined_are_the_text(llm: LLM) -> None:
    params = dataclasses.replace(DRAWN, n=2)
    ticket = llm.submit(PROMPT, params)
    pieces: list[StreamDelta] = []
    for _ in range(9):
        llm.step()
        pieces += ticket.poll()
    pieces += ticket.cut()
    assert ticket.poll() == ticket.cut() == []
    for answer in ticket.output().outputs:
        own = [p for p in pieces if p.index == answer.index]
        assert "".join(p.text for p in own) == answer.text
        assert [i for p in own for i in p.token_ids] == answer.token_ids
        assert (own[-1].finish_reason, own[-1].digest) == ("length", answer.digest)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_batch": 2},  # some choices have not begun
        {"kv_tokens": 160},  # some were sent back to wait
        {"speculation": "ngram", "chunk_tokens": 40},
        {"prefix_cache": False, "chunk_tokens": 16},
    ],
)
def test_choices_of_different_lengths(path: Path, llm: LLM, limits: dict[str, Any]) -> None:
    one = LLM(path, threads=1, **limits)
    lengths: set[int] = set()
    for number, params in enumerate((dataclasses.replace(DRAWN, n=4), dataclasses.replace(GREEDY, n=2))):
        for num_steps in (1, 6, 17, 30):
            ticket = one.submit([*PROMPT], params, receipt=True)
            later = one.submit([*PROMPT[:30], number, num_steps], DRAWN, receipt=True)
            for _ in range(num_steps):
                one.step()
            later.cut()
            outputs = check_cut(one, llm, ticket, params)
            lengths |= {len(a.token_ids) for a in outputs}
    assert len(lengths) > 3
    if "kv_tokens" in limits:
        assert one.stats().num_preemptions > 0


def test_an_answer_that_has_ended_stays_as_it_is(llm: LLM) -> None:
    end = expect(llm, DRAWN, 9).token_ids[-1]
    params = dataclasses.replace(DRAWN, n=2, stop_token_ids=(end,))
    expected = llm.generate([PROMPT], params, receipt=True)[0].outputs
    ticket = ask(llm, params, 9)
    first, second = check_cut(llm, llm, ticket, params)
    assert first == expected[0]
    assert (first.finish_reason, first.stop_reason, second.finish_reason) == ("stop", end, "length")
    whole = llm.submit(PROMPT, params, receipt=True)
    while llm.step():
        pass
    whole.cut()
    assert whole.output().outputs == expected


def test_without_a_token_it_is_cancelled(llm: LLM) -> None:
    ticket = llm.submit(PROMPT, GREEDY, receipt=True)
    (delta,) = ticket.cut()
    assert (delta.finish_reason, ticket.output().outputs[0].receipt) == ("cancelled", None)
    assert not llm.step()
    cancelled = ask(llm, GREEDY, 3)
    cancelled.cancel()
    cancelled.cut()
    assert cancelled.output().outputs[0].receipt is None
    llm.check_integrity()


def test_an_answer_that_nothing_could_follow_is_kept(tmp_path: Path) -> None:
    """A model without an end token has nothing to say after a complete text: that is an error, of a later token."""
    source = tiny.write_checkpoint(tmp_path / "source")
    for name in ("config.json", "tokenizer_config.json"):
        told = json.loads((source / name).read_text())
        tiny.write_json(source / name, {k: v for k, v in told.items() if not k.startswith("eos_token")})
    llm = LLM(convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False), threads=1)
    params = dataclasses.replace(DRAWN, regex="[a-f]{5}")
    ticket = llm.submit(PROMPT, params, receipt=True)
    while llm.step():
        pass
    with pytest.raises(RequestError, match="no token is allowed"):
        ticket.poll()
    (answer,) = check_cut(llm, llm, ticket, params)
    assert len(answer.text) == 5


def test_what_came_before_a_numeric_error_is_kept(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = dataclasses.replace(DRAWN, n=2)
    ticket = ask(llm, params, 5)
    failed = ticket.answers[0].sequence
    original = llm._engine.decoder.kernels.embed

    def poisoned(table: object, token_ids: np.ndarray, x: np.ndarray) -> None:
        original(table, token_ids, x)
        x[: len(token_ids)][token_ids == failed.output_ids[-1]] = np.nan

    assert failed.output_ids[-1] != ticket.answers[1].sequence.output_ids[-1]
    monkeypatch.setattr(llm._engine.decoder.kernels, "embed", poisoned)
    llm.step()
    monkeypatch.undo()
    with pytest.raises(NumericError):
        ticket.poll()
    first, second = check_cut(llm, llm, ticket, params)
    assert (len(first.token_ids), len(second.token_ids)) == (5, 5)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError])
def test_what_came_before_a_bug_is_kept(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception]
) -> None:
    def fail(*arguments: object) -> None:
        raise error("a bug")

    ticket = ask(llm, KINDS[kind], 5)
    monkeypatch.setattr(llm._engine.decoder, "forward", fail)
    with pytest.raises(error):
        llm.step()
    monkeypatch.undo()
    with pytest.raises(InterruptedStepError):
        ticket.poll()
    for answer in check_cut(llm, llm, ticket, KINDS[kind]):
        assert len(answer.token_ids) >= 4


def test_a_token_that_was_half_taken_in_leaves_no_receipt(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = ask(llm, dataclasses.replace(DRAWN, n=2), 5)
    first, second = (answer.sequence for answer in ticket.answers)
    add, other = first.digest.add, expect(llm, DRAWN, 6)

    def fail(*arguments: Any) -> None:
        add(*arguments)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(first.digest, "add", fail)
    with pytest.raises(ZeroDivisionError):
        llm.step()
    ticket.cut()
    outputs = ticket.output().outputs
    assert [a.receipt is None for a in outputs] == [True, False]
    assert isinstance(first.error, InterruptedStepError)
    assert outputs[1] == expect(llm, dataclasses.replace(DRAWN, n=2), len(second.output_ids), 1)
    assert expect(llm, DRAWN, 6) == other


def test_it_is_safe_while_another_thread_steps(llm: LLM) -> None:
    staying = SamplingParams(max_tokens=400, ignore_eos=True, temperature=1.0, seed=9)
    expected = llm.generate([[5, 6, 7]], staying)[0]
    bystander = llm.submit([5, 6, 7], staying)
    is_over = threading.Event()
    stepping = threading.Thread(target=lambda: step_until(llm, bystander, is_over))
    stepping.start()
    cut: list[CompletionOutput] = []
    for _ in range(8):
        ticket = llm.submit(PROMPT, DRAWN, receipt=True)
        while not ticket.answers[0].sequence.output_ids:
            assert stepping.is_alive()
            time.sleep(0.0001)
        ticket.cut()
        cut += ticket.output().outputs
    is_over.set()
    stepping.join()
    assert bystander.output() == expected
    for answer in cut:
        assert answer.receipt is not None
        assert answer == expect(llm, DRAWN, len(answer.token_ids))
    llm.check_integrity()


def step_until(llm: LLM, ticket: Ticket, is_over: threading.Event) -> None:
    """Until the ticket is done and nobody else needs steps."""
    while not (ticket.is_done and is_over.is_set()):
        llm.step()
        ticket.poll()


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line executed in some files of the engine, as a signal may."""

    def __init__(self, at: int, *files: str) -> None:
        self.left, self.files = at, files or ENGINE_FILES

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_line_of_a_cut_leaves_a_whole_answer(llm: LLM) -> None:
    expected = expect(llm, DRAWN, 6)
    interrupted = at = 0
    while interrupted == at:
        at += 1
        ticket, interrupt = ask(llm, DRAWN, 6), Interrupt(at)
        sys.settrace(interrupt)
        try:
            ticket.cut()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        ticket.cut()
        assert ticket.output().outputs[0] == expected
        assert not llm._engine.scheduler.running
        llm.check_integrity()
        assert expect(llm, DRAWN, 6) == expected
    assert interrupted > 15


def test_an_interrupt_while_the_end_is_taken_loses_none_of_it(llm: LLM) -> None:
    expected = expect(llm, DRAWN, 6)
    for name in ("_decoder", "_matcher"):
        ticket = ask(llm, DRAWN, 6)
        answer = ticket.answers[0]
        inner = getattr(answer, name)

        def interrupted(answer: Any = answer, name: str = name, inner: Any = inner) -> str:
            setattr(answer, name, inner)
            raise KeyboardInterrupt

        setattr(answer, name, SimpleNamespace(finish=interrupted))
        with pytest.raises(KeyboardInterrupt):
            ticket.cut()
        assert [delta.finish_reason for delta in ticket.cut()] == ["length"]
        assert ticket.output().outputs[0] == expected


def test_an_interrupt_of_a_cancel_leaves_no_lock(llm: LLM) -> None:
    """By signals, as Ctrl-C is one: a trace could raise where a signal cannot."""
    draw, before = random.Random(1), signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupts = 0
    try:
        for _ in range(400):
            ticket = llm.submit(PROMPT, SamplingParams(max_tokens=2))
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + 2e-5 * draw.random())
                ticket.cancel()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert not llm._lock.locked()
            llm.step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 0
    while llm.step():
        pass
    llm.check_integrity()


@pytest.mark.parametrize("kind", ["drawn", "guided", "penalties", "logprobs"])
@pytest.mark.parametrize("is_last", [False, True])
def test_after_an_interrupt_at_any_line_of_a_step_no_receipt_is_wrong(llm: LLM, kind: str, is_last: bool) -> None:
    """is_last: the step's token ends the answer."""
    params = KINDS[kind]
    if is_last:
        ids = expect(llm, params, 40).token_ids
        params = dataclasses.replace(params, stop_token_ids=(ids[6],) if ids[6] not in ids[:6] else (), max_tokens=7)
    expected = {6: expect(llm, params, 6), 7: expect(llm, params, 7)}
    left: dict[int | None, int] = {None: 0, 6: 0, 7: 0}
    at = interrupted = 0
    while interrupted * 3 == at:
        at += 3
        ticket, interrupt = ask(llm, params, 6), Interrupt(at, *STEP_FILES)
        assert len(ticket.answers[0].sequence.output_ids) == 6
        sys.settrace(interrupt)
        try:
            llm.step()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        ticket.cut()
        (answer,) = ticket.output().outputs
        count = len(answer.token_ids) if answer.receipt is not None else None
        left[count] += 1
        assert count is None or answer == expected[count]
        llm.check_integrity()
    assert interrupted > 30
    assert all(left.values())
