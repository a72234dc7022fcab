"""Stop strings: found however the text is cut, and no part of one is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlm.errors import RequestError
from exactlm.text.stop import StopMatcher

TEXTS = st.text(alphabet="ab<|é", max_size=40)
STOPS = st.lists(st.text(alphabet="ab<|é", min_size=1, max_size=6), max_size=4)


def run(stops: list[str], deltas: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for delta in deltas:
        emitted, hit = matcher.push(delta)
        shown += emitted
        if hit is not None:
            assert matcher.push("more") == ("", None)
            assert matcher.finish() == ""
            return shown, hit
    return shown + matcher.finish(), None


def find_first_complete(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition, one character at a time."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(STOPS, TEXTS, st.data())
def test_any_cut_gives_the_definition(stops, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    deltas = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(stops, deltas) == find_first_complete(stops, text)


def test_every_two_cuts_of_a_stop_leak_nothing():
    text, stop = "The answer.<|im_end|>user: more", "<|im_end|>"
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert run([stop], [text[:first], text[first:second], text[second:]]) == ("The answer.", stop)


def test_false_prefix_is_shown_as_soon_as_it_is_false():
    matcher = StopMatcher(["<|im_end|>"])
    assert matcher.push("a <|im") == ("a ", None)
    assert matcher.push("age") == ("<|image", None)
    assert matcher.push("<|im_end|") == ("", None)
    assert matcher.finish() == "<|im_end|"


def test_first_complete_stop_wins_then_the_longest():
    assert run(["abcd", "bc"], ["abcd"]) == ("a", "bc")
    assert run(["c", "bc", "abc"], ["xabc"]) == ("x", "abc")


def test_no_stops_hold_nothing_back():
    assert StopMatcher(None).push("anything") == ("anything", None)
    assert StopMatcher("x").push("axb") == ("a", "x")


@pytest.mark.parametrize("stops", [[""], ["a", ""], [3], [None]])
def test_bad_stop_is_refused(stops):
    with pytest.raises(RequestError, match=r"stop\["):
        StopMatcher(stops)
