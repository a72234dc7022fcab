"""Receipts that cannot be made are refused before anything is computed."""

from __future__ import annotations

import sys

import pytest

from exactlm import SamplingParams
from exactlm.prompt import ReadPrompt
from exactlm.server.errors import ApiError
from exactlm.server.recorder import Recorder


def test_without_the_extra_who_asks_for_a_receipt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [ReadPrompt([1, 2], "a")]
    Recorder().check(asked, SamplingParams())
    monkeypatch.setitem(sys.modules, "rfc8785", None)
    with pytest.raises(ApiError, match=r"exactlm\[proof\]") as caught:
        Recorder().check(asked, SamplingParams())
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "exactlm.receipt", "not_available")
