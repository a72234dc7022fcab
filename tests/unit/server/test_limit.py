"""Room for answers, and limits that make sense."""

from __future__ import annotations

import math
from typing import Any

import pytest

from exactlm.errors import ConfigError
from exactlm.server.errors import ApiError
from exactlm.server.limit import Limits, Room


def test_room_is_taken_whole_or_not_at_all() -> None:
    room = Room(10)
    room.enter(6)
    with pytest.raises(ApiError) as caught:
        room.enter(5)
    assert caught.value.status == 429
    assert caught.value.headers["Retry-After"] == "1"
    room.enter(4)
    with pytest.raises(ApiError):
        room.check()
    room.leave(1)
    room.check()
    room.enter(1)


def test_what_never_fits_is_not_asked_to_come_again() -> None:
    with pytest.raises(ApiError) as caught:
        Room(10).enter(11)
    assert caught.value.status == 400
    assert "11" in str(caught.value)
    assert "10" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_body_bytes": 0},
        {"max_body_bytes": -1},
        {"read_seconds": 0},
        {"request_seconds": math.nan},
        {"request_seconds": math.inf},
        {"max_waiting": -1},
        {"max_waiting": True},
        {"grace_seconds": "30"},
    ],
)
def test_limits_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Limits(**wrong)
