"""Receipts that cannot be made are refused before anything is computed; what was sent is recorded, or the log says."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from exactlm import LLM, RequestOutput, SamplingParams
from exactlm.prompt import ReadPrompt
from exactlm.proof.ledger import Ledger
from exactlm.server.errors import ApiError
from exactlm.server.recorder import Recorder


def test_without_the_extra_who_asks_for_a_receipt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [ReadPrompt([1, 2], "a")]
    Recorder().check(asked, SamplingParams())
    monkeypatch.setitem(sys.modules, "rfc8785", None)
    with pytest.raises(ApiError, match=r"exactlm\[proof\]") as caught:
        Recorder().check(asked, SamplingParams())
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "exactlm.receipt", "not_available")


@pytest.fixture
def outputs(llm: LLM) -> list[RequestOutput]:
    """Of two requests that were cut: one with two answers, one that had not begun."""
    begun = llm.submit([1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True, n=2), receipt=True)
    llm.step()
    llm.step()
    waiting = llm.submit([4], SamplingParams(max_tokens=50), receipt=True)
    begun.cut()
    waiting.cut()
    return [begun.output(), waiting.output()]


def test_what_has_tokens_is_recorded(outputs: list[RequestOutput], tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.db") as ledger:
        recorder = Recorder(ledger)
        asyncio.run(recorder.record_rest("cmpl-1", outputs[1:]))
        assert ledger.head()[0] == 0
        asyncio.run(recorder.record_rest("cmpl-1", outputs))
        assert [entry.receipt for entry in ledger.entries()] == [a.receipt for a in outputs[0].outputs]
        assert ledger.head()[0] == 2
    asyncio.run(Recorder().record_rest("cmpl-1", outputs))


def test_a_ledger_that_fails_is_named_in_the_log(
    outputs: list[RequestOutput], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.db"
    with Ledger.open(path) as ledger:
        with ledger._store._engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TRIGGER full BEFORE INSERT ON exactlm_ledger BEGIN SELECT RAISE(ABORT, 'full'); END"
            )
        asyncio.run(Recorder(ledger).record_rest("cmpl-1", outputs))
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert f"cmpl-1: the stream ended early, and what was sent of it is not recorded: {path}: full" in line


def test_a_choice_without_a_receipt_is_named_in_the_log(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails while a token is taken in leaves half of it: of that choice there can be no receipt."""
    ticket = llm.submit([1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True, n=2), receipt=True)
    for _ in range(3):
        llm.step()
        ticket.poll()

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ticket.answers[1].sequence.digest, "add", fail)
    with pytest.raises(ZeroDivisionError):
        llm.step()
    ticket.cut()
    with Ledger.open(tmp_path / "a.db") as ledger:
        asyncio.run(Recorder(ledger).record_rest("cmpl-1", [ticket.output()]))
        (entry,) = ledger.entries()
    assert entry.receipt == ticket.output().outputs[0].receipt is not None
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert line.startswith("request cmpl-1: the stream ended early, and what was sent of it is not recorded: choice 1 ")


@pytest.mark.parametrize("is_begun", [False, True])
def test_whether_an_answer_is_withheld_or_was_sent_is_told(
    outputs: list[RequestOutput], tmp_path: Path, caplog: pytest.LogCaptureFixture, is_begun: bool
) -> None:
    ledger = Ledger.open(tmp_path / "a.db")
    ledger.close()
    with pytest.raises(ApiError) as caught:
        asyncio.run(Recorder(ledger).record("cmpl-1", outputs, is_begun))
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    for told in (line, str(caught.value)):
        assert ("and so is withheld" in told) != is_begun
        assert ("what was sent of the answer is not recorded" in told) == is_begun
    assert line.startswith("request cmpl-1: ")
    assert (caught.value.status, caught.value.code) == (503, "not_recorded")
