"""Findings from observations whose differences are known."""

from __future__ import annotations

import pytest

from exactlm.audit.analysis import Analysis, Scorer
from exactlm.audit.condition import Condition
from exactlm.audit.observation import Observation

BASE = Condition("base", "repeat", "", (), role="base")
LOAD = Condition("load", "concurrency", "", ())
OTHER = Condition("other", "seed", "", (), role="control")


def seen(condition: str, prompt: int, text: str, **more: object) -> Observation:
    return Observation(condition, prompt, text, text.split(), **more)  # type: ignore[arg-type]


def test_counts() -> None:
    observations = [
        seen("base", 0, "a b c", logprobs=[-1.0, -2.0, -3.0]),
        seen("base", 1, "x y z", logprobs=[-1.0, -2.0, -3.0]),
        seen("load", 0, "a b c", logprobs=[-1.0, -2.5, -3.0]),
        seen("load", 0, "a b d", logprobs=[-1.25, -2.0, -9.0]),
        seen("load", 0, "a q", logprobs=[-1.0, -7.0]),
        seen("load", 1, "x y z", logprobs=[-1.0, -2.0, -3.0]),
        Observation("load", 1, error="status 500"),
        Observation("load", -1, error="neighbour: status 500"),
        seen("other", 0, "b"),
        seen("other", 1, "b"),
    ]
    analysis = Analysis([BASE, LOAD, OTHER], observations)
    base, load, other = analysis.findings
    assert (base.texts.count, base.texts.total, base.numbers.count) == (0, 2, 0)
    assert (load.texts.count, load.texts.total) == (1, 2)
    assert (load.numbers.count, load.numbers.total) == (1, 2)
    assert (load.answers.count, load.answers.total) == (2, 4)
    assert load.failures == {"status 500": 1, "neighbour: status 500": 1}
    assert load.num_failed == 2
    assert (load.max_unique, load.first, load.unit) == (3, 1, "token")
    assert load.unique.mean == 2.0
    assert load.max_spread == 0.5  # position 1 of "a b ...": -2.5 to -2.0; "a q" tells another token there
    assert load.prompts[1].spread == 0.0
    assert other.texts.count == 2
    (summary,) = analysis.summaries
    assert (summary.texts.count, summary.max_unique, summary.num_answers) == (1, 3, 6)
    changed = analysis.changed_of(LOAD, 0)
    assert changed is not None
    assert changed.text == "a b d"


def test_only_numbers_change() -> None:
    observations = [seen("base", 0, "a", logprobs=[-1.0]), seen("load", 0, "a", logprobs=[-1.0000000000000002])]
    load = Analysis([BASE, LOAD], observations).findings[1]
    assert (load.texts.count, load.numbers.count) == (0, 1)
    assert load.max_spread is not None
    assert 0 < load.max_spread < 1e-15


def test_a_prompt_without_base_is_not_counted() -> None:
    observations = [Observation("base", 0, error="status 500"), seen("base", 1, "a"), seen("load", 0, "b")]
    analysis = Analysis([BASE, LOAD], [*observations, seen("load", 1, "a")])
    assert [p.prompt for p in analysis.findings[1].prompts] == [1]
    assert analysis.findings[0].num_failed == 1


def test_scores() -> None:
    texts = ["Score: 4", "Score: 8", "Score: none"]
    observations = [seen("base", 0, "Score: 6"), *(seen("load", 0, text) for text in texts)]
    found = Analysis([BASE, LOAD], observations, Scorer(r"Score: (\d+)")).findings
    assert (found[0].max_deviation, found[0].num_unscored) == (None, 0)  # one answer deviates from nothing
    assert (found[1].max_deviation, found[1].num_unscored) == (2.0, 1)  # of 6, 4 and 8


def test_scores_that_are_missing_are_no_agreement() -> None:
    texts = {"base": ["no score"], "load": ["no score", "Score: 4"]}
    observations = [seen(name, 0, text) for name, answers in texts.items() for text in answers]
    analysis = Analysis([BASE, LOAD], observations, Scorer(r"Score: (\d+)"))
    load = analysis.findings[1]
    assert (load.max_deviation, load.num_unscored, load.answers.total) == (None, 1, 2)
    assert analysis.summaries[0].deviation.total == 0


def test_tokens_and_characters_do_not_compare() -> None:
    """Answers that tell no tokens are compared by characters; their positions are of another kind."""
    bare = [Observation("load", prompt, "a b X") for prompt in (0, 1)]
    observations = [seen("base", 0, "a b c"), seen("base", 1, "a b c"), *bare, seen("load", 0, "a b c d e f g h")]
    load = Analysis([BASE, LOAD], observations).findings[1]
    assert [(p.first, p.unit) for p in load.prompts] == [(3, "token"), (4, "character")]
    assert (load.first, load.unit) == (3, "token")
    only = Analysis([BASE, LOAD], observations[:-1]).findings[1]
    assert (only.first, only.unit) == (4, "character")


def test_scorer() -> None:
    assert Scorer(r"\d+").score("a 12 b") == 12
    assert Scorer(r"x(\d+)?").score("x") is None
    assert Scorer(r"(\w+)").score("abc") is None
    assert Scorer(r"[\d.]+").score("3.5") == 3.5


@pytest.mark.parametrize(
    ("answers", "worst", "differences", "cosines", "firsts"),
    [
        ([(0, "a b c", 0.0, 1.0), (0, "a b c", 0.25, 0.99)], (0.25, 0.99, 1), (0.25, None, None), (0.99, None, None),
         (None, None, 0)),  # of two answers of one prompt the worse; no interval of one prompt
        ([(0, "a b x", 0.5, 0.5), (1, "x b c", 0.25, 0.75), (2, "a b c", 0.0, 1.0)], (0.5, 0.5, 2), (0.25, 0.0, 0.5),
         (0.75, 0.5, 1.0), (0, 1.0, 2)),  # over prompts, with intervals; firsts are of the two that part
    ],
)  # fmt: skip
def test_logits_are_the_worst_of_a_prompt_and_means_are_over_prompts(
    answers: list[tuple[int, str, float, float]],
    worst: tuple[float, float, int],
    differences: tuple[float | None, ...],
    cosines: tuple[float | None, ...],
    firsts: tuple[float | None, ...],
) -> None:
    observations = [
        *(seen("base", i, "a b c", digest="0.0", max_difference=0.0, cosine=1.0) for i in {p for p, *_ in answers}),
        *(seen("load", p, text, digest=str(d), max_difference=d, cosine=c) for p, text, d, c in answers),
    ]
    load = Analysis([BASE, LOAD], observations).findings[1]
    assert (load.max_difference, load.cosine, load.numbers.count) == worst
    assert (load.difference.mean, load.difference.low, load.difference.high) == differences
    assert (load.cosines.mean, load.cosines.low, load.cosines.high) == cosines
    assert (load.first, load.firsts.mean, load.firsts.total) == firsts
