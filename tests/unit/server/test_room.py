"""Room for answers is taken whole or not at all."""

from __future__ import annotations

import pytest

from exactlm.server.errors import ApiError
from exactlm.server.room import Room


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
