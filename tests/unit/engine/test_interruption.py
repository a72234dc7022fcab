"""Whatever breaks into a step, no request goes on from half of it: an answer is whole, or an error."""

from __future__ import annotations

import gc
import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from exactlm import LLM, SamplingParams, convert_to_deterministic
from exactlm.errors import InterruptedStepError
from tests import tiny

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2)
# Not llm.py: a trace can raise where a lock is being released, which a signal cannot.
FILES = ("engine/engine.py", "engine/scheduler.py", "engine/kv_cache.py", "engine/sequence.py", "text/stream.py")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("interruption")
    source = tiny.write_checkpoint(folder / "source")
    return LLM(convert_to_deterministic(source).save_pretrained(folder / "model", progress=False), threads=1)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line executed in the engine, as a signal may."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_line_leaves_whole_answers_or_errors(llm: LLM) -> None:
    expected = llm.generate([[5, 6, 7]], PARAMS)[0]
    interrupted = lost = 0
    for at in range(1, 1200, 7):
        bystander = llm.stream([5, 6, 7], PARAMS)
        pieces = [next(bystander)]
        sys.settrace(Interrupt(at))
        try:
            llm.generate([[9, 8], [1, 2, 3]], PARAMS)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        try:
            pieces += list(bystander)
            assert "".join(p.text for p in pieces) == expected.outputs[0].text
            assert pieces[-1].digest == expected.outputs[0].digest
        except InterruptedStepError:
            lost += 1
        assert llm.generate([[5, 6, 7]], PARAMS)[0] == expected
        assert not llm._engine.scheduler.running
        llm._engine.pages.check_integrity()
    assert interrupted > 100
    assert lost > 10


def test_a_stream_collected_inside_a_step_does_not_wait_for_it(llm: LLM) -> None:
    """The collector may close an abandoned stream while this very thread holds the engine."""
    stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    with llm._lock:
        del stream
        gc.collect()
    llm.generate([[1, 2]], PARAMS)
    llm._engine.pages.check_integrity()


def test_an_error_of_one_requests_text_is_its_own(llm: LLM) -> None:
    expected = llm.generate([[5, 6, 7]], PARAMS)[0]
    good, bad = llm._engine.add([5, 6, 7], PARAMS), llm._engine.add([9, 8], PARAMS)

    def fail(token: int) -> bool:
        raise InterruptedStepError(f"no text for {token}")

    bad.is_ended_by = fail
    while not (good.is_finished and bad.is_finished):
        llm._engine.step()
    assert isinstance(bad.error, InterruptedStepError)
    assert good.digest.hexdigest() == expected.outputs[0].digest
    llm._engine.pages.check_integrity()


def test_scoring_waits_for_pages_that_others_hold(tmp_path: Path) -> None:
    source = tiny.write_checkpoint(tmp_path / "source")
    small = LLM(convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False), kv_tokens=128)
    ids = list(range(99))
    expected = small.score(ids)
    stream = small.stream([1, 2, 3], SamplingParams(max_tokens=40, ignore_eos=True))
    next(stream)
    assert small.score(ids) == expected
    assert sum(len(d.token_ids) for d in stream) == 39


def test_ids_may_come_from_the_model_itself(llm: LLM) -> None:
    ids = [i for d in llm.stream([1, 2], PARAMS) for i in d.token_ids]
    expected = llm.logits(ids)
    again = llm.logits(i for d in llm.stream([1, 2], PARAMS) for i in d.token_ids)  # type: ignore[arg-type]
    assert again.tobytes() == expected.tobytes()


class InterruptBefore:
    """Raises KeyboardInterrupt at the n-th time that a line of the scheduler with this text is about to run."""

    def __init__(self, text: str, times: int) -> None:
        self._text, self._left = text, times

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.endswith("engine/scheduler.py"):
            return None
        if event == "line" and self._text in linecache.getline(name, frame.f_lineno):
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("text", ["self.running.append(sequence)", "self.waiting.insert("])
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_between_two_lists_loses_no_request(tmp_path: Path, text: str, times: int) -> None:
    """A request that no list holds would never end, and keep its pages."""
    source = tiny.write_checkpoint(tmp_path / "source")
    path = convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False)
    llm = LLM(path, threads=1, kv_tokens=96, chunk_tokens=8)
    prompts = [[5, 6, 7] * 8, [5, 6, 7] * 9, [1, 2] * 15, [4] * 20, [8, 9] * 9]
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=3)
    expected = llm.generate(prompts, params)
    assert llm.stats().num_preemptions > 2
    tickets = [llm.submit(prompt, params) for prompt in prompts]
    sys.settrace(InterruptBefore(text, times))
    try:
        with pytest.raises(KeyboardInterrupt):
            step_on(llm)
    finally:
        sys.settrace(None)
    unfinished = [t for t in tickets if t.answers[0].sequence.finish_reason in (None, "error")]
    assert unfinished
    for ticket in unfinished:
        with pytest.raises(InterruptedStepError):
            ticket.poll()
        ticket.cancel()
    llm.check_integrity()
    assert llm.generate(prompts, params) == expected
    assert llm.stats().num_pages_used == llm.stats().num_waiting == 0


def step_on(llm: LLM) -> None:
    while llm.step():
        pass
