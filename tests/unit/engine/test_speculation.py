"""Drafts come from the last earlier place with the same ending."""

from __future__ import annotations

from exactlm.engine.speculation import MAX_DRAFT, Drafter


def test_what_followed_the_same_ending_is_proposed() -> None:
    assert Drafter().propose([1, 2, 3, 4, 5, 9, 2, 3], 8) == [4, 5, 9, 2]
    assert Drafter().propose([1, 2, 3, 7, 8, 1, 2, 3, 4, 4, 1, 2, 3], 2) == [4, 4]  # the last earlier place
    assert Drafter().propose([7, 2, 3, 5, 8, 2, 3, 6, 7, 2, 3], 1) == [5]  # three tokens say more than two
    assert Drafter().propose([1, 2, 3], 8) == []
    assert Drafter().propose([1], 8) == []
    assert Drafter().propose([4, 4, 4], 3) == [4, 4, 4]


def test_reading_on_equals_reading_at_once() -> None:
    ids = [i * i % 7 for i in range(200)]
    going = Drafter()
    for end in range(1, len(ids)):
        assert going.propose(ids[:end], 5) == Drafter().propose(ids[:end], 5)


def test_drafts_grow_while_they_are_right() -> None:
    drafter, ids = Drafter(), [1, 2, 3] * 30
    sizes = []
    for right in (True, True, True, False, True):
        drafts = drafter.propose(ids, 99)
        sizes.append(len(drafts))
        drafter.learn(len(drafts), len(drafts) if right else 1)
    assert sizes == [4, 8, MAX_DRAFT, MAX_DRAFT, 2]
