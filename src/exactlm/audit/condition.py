"""What an audit varies: conditions, each a list of waves of requests. Knows no engine; each target adds its own
conditions to these."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from exactlm.audit.prompt import AuditPrompt

Role = Literal["base", "load", "control", "other"]
FACTORS = (
    "repeat", "order", "cache", "concurrency", "copies", "neighbour", "arrival", "streaming", "logprobs", "seed",
    "padding", "threads", "isa", "chunk", "memory", "speculation", "attention", "dtype",
)  # fmt: skip
# Neighbours of other lengths and other limits: (words of the long text, tokens to generate).
NEIGHBOURS = ((1, 48), (3, 5), (9, 24), (33, 8), (70, 40), (150, 3), (17, 33))
FILLERS = (60, 100, 150)  # words
LONG_TEXT = (
    "In the harbour the boats lay side by side, and the men who owned them sat on the wall and talked about the "
    "weather, the price of fish, the new road and the old lighthouse, which had not been lit since the war. "
)


@dataclass(frozen=True)
class Shot:
    """A request. prompt: index of the prompt whose answer is compared; None: a neighbour, or one that fills a cache.
    delay: seconds after the wave's begin. logprobs: how many to ask for; None for none. is_new: sent behind a word
    that is drawn then, so that no cache has any of it."""

    text: str
    prompt: int | None
    max_tokens: int
    delay: float = 0.0
    temperature: float = 0.0
    seed: int | None = None
    is_streamed: bool = False
    logprobs: int | None = 1
    is_new: bool = False


Wave = tuple[Shot, ...]


@dataclass(frozen=True)
class Condition:
    """One thing varied. group: answers are compared with those of the base condition of their group. role: "base" gives
    the reference; "load" must change nothing; "control" must change the answers, or the audit could not see a change;
    "other" is another computation, reported apart. setup: how the engine is to be run, for targets that can choose:
    "empty", with nothing cached at the beginning; "prefix_cache", False for none; others are the target's own."""

    name: str
    factor: str
    text: str
    waves: tuple[Wave, ...]
    group: str = "greedy"
    role: Role = "load"
    setup: Mapping[str, object] = field(default_factory=dict)

    @property
    def num_observed(self) -> int:
        return sum(shot.prompt is not None for wave in self.waves for shot in wave)


@dataclass(frozen=True)
class Workload:
    """The prompts and how much to ask. repeats: of each prompt in most conditions. concurrency: requests at once."""

    prompts: Sequence[AuditPrompt]
    max_tokens: int = 32
    repeats: int = 3
    concurrency: Sequence[int] = (2, 4, 8, 16, 32, 64)
    temperature: float = 1.0
    seed: int = 7

    def shot(self, prompt: int) -> Shot:
        return Shot(self.prompts[prompt].text, prompt, self.max_tokens)

    def each(self, repeats: int | None = None) -> list[Shot]:
        """Every prompt, so many times over."""
        return [self.shot(i) for _ in range(repeats or self.repeats) for i in range(len(self.prompts))]

    def drawn(self, shot: Shot, seed: int | None = None) -> Shot:
        return replace(shot, temperature=self.temperature, seed=self.seed if seed is None else seed)


def alone(shots: Sequence[Shot]) -> tuple[Wave, ...]:
    """One request after another."""
    return tuple((shot,) for shot in shots)


def together(shots: Sequence[Shot], count: int) -> tuple[Wave, ...]:
    """So many at once, each prompt in as many waves; the last wave is filled up from the first shots."""
    filled = [*shots, *shots[: -len(shots) % count]]
    while len(filled) < count:
        filled += shots[: count - len(filled)]
    return tuple(tuple(filled[i : i + count]) for i in range(0, len(filled), count))


def shuffled(shots: Sequence[Shot], key: str) -> list[Shot]:
    """Another order, the same each time."""
    order = list(shots)
    random.Random(key).shuffle(order)
    return order


def neighbours(count: int, drawn: Workload | None = None) -> list[Shot]:
    """Requests of other lengths that nobody looks at; with `drawn`, sampled without a seed."""
    words = LONG_TEXT.split()
    made = []
    for i in range(count):
        length, max_tokens = NEIGHBOURS[i % len(NEIGHBOURS)]
        text = " ".join((words * 5)[i : i + length])
        made.append(Shot(text, None, max_tokens, temperature=drawn.temperature if drawn else 0.0))
    return made


def fillers(key: int) -> list[Shot]:
    """Requests that nobody looks at that begin like no other, in any run: what is cached must make room for them."""
    words = (LONG_TEXT * 5).split()
    texts = [f"{key}.{i} {' '.join(words[i : i + length])}" for i, length in enumerate(FILLERS, 1)]
    return [Shot(text, None, 1, is_new=True) for text in texts]


def common_conditions(load: Workload, can_empty: bool = False) -> list[Condition]:
    """What can be varied at every engine that takes requests: the base first. can_empty: whether the target heeds the
    setup "empty"; the conditions say so."""
    again = (
        f"each prompt {load.repeats} times in a row, alone" if load.repeats > 1 else "each prompt again, alone, in turn"
    )
    return [
        Condition("base", "repeat", "each prompt once, alone", alone(load.each(1)), role="base"),
        Condition("repeated", "repeat", again, alone(_in_a_row(load))),
        Condition("other order", "order", "one at a time, in another order", alone(shuffled(load.each(), "order"))),
        *_cache_conditions(load, can_empty),
        *_load_conditions(load),
    ]


def request_conditions(load: Workload) -> list[Condition]:
    """What a request can ask for without asking for another answer."""
    streamed = [replace(shot, is_streamed=True) for shot in load.each()]
    without = [replace(shot, logprobs=None) for shot in load.each(1)]
    several = [replace(shot, logprobs=5) for shot in load.each(1)]
    return [
        Condition("streamed", "streaming", "answers streamed, alone", alone(streamed)),
        Condition("streamed, 8 at once", "streaming", "8 streams at once", together(shuffled(streamed, "stream"), 8)),
        Condition("without logprobs", "logprobs", "no log-probabilities asked for", alone(without)),
        Condition("5 logprobs", "logprobs", "five log-probabilities asked for", alone(several)),
    ]


def seed_conditions(load: Workload) -> list[Condition]:
    """Drawn answers: the same seed must give the same, another seed another."""
    once = [load.drawn(shot) for shot in load.each(1)]
    again = [load.drawn(shot) for shot in _in_a_row(load)]
    crowd = tuple((*neighbours(3, load), shot, *neighbours(4, load)) for shot in once)
    other = [load.drawn(shot, load.seed + 1) for shot in load.each(1)]
    mixed = together(shuffled([load.drawn(shot) for shot in load.each()], "seed"), 8)
    return [
        Condition("seed base", "seed", "drawn with a seed, alone", alone(once), "sampled", "base"),
        Condition("same seed", "seed", "the same seed again, alone", alone(again), "sampled"),
        Condition("same seed, 8 at once", "seed", "8 requests with that seed at once", mixed, "sampled"),
        Condition("same seed, unseeded neighbours", "seed", "beside 7 drawn without a seed", crowd, "sampled"),
        Condition("other seed", "seed", "another seed: must differ", alone(other), "sampled", "control"),
    ]


def _in_a_row(load: Workload) -> list[Shot]:
    return [load.shot(i) for i in range(len(load.prompts)) for _ in range(load.repeats)]


def cold_condition(load: Workload, how: str) -> Condition:
    """For targets that can leave their cache out: each prompt alone, all of it computed. how: what makes it so."""
    return Condition("cold", "cache", f"alone, {how}", alone(load.each(1)), setup={"prefix_cache": False})


def _cache_conditions(load: Workload, can_empty: bool) -> list[Condition]:
    def warmed(cut: float) -> tuple[Wave, ...]:
        waves: list[Wave] = []
        for shot in load.each(1):
            keep = int(len(shot.text) * cut) if cut < 1 else len(shot.text.rstrip()) - 1
            prefix = shot.text[:keep]
            waves += [(replace(shot, text=prefix or shot.text, prompt=None, max_tokens=1),), (shot,)]
        return tuple(waves)

    before = ", nothing cached before that" if can_empty else ""
    told = (
        ("after its first half", f"after a request that is the prompt's first half{before}", warmed(0.5)),
        ("after nearly all of it", f"after one that lacks only the last character{before}", warmed(1.0)),
    )
    others = tuple(wave for i, shot in enumerate(load.each(1)) for wave in alone([*fillers(i), shot]))
    text = "alone, after three requests that share nothing with it"
    return [
        *(Condition(name, "cache", what, waves, setup={"empty": True}) for name, what, waves in told),
        Condition("after other requests", "cache", text, others),
    ]


def _load_conditions(load: Workload) -> list[Condition]:
    made = []
    for count in load.concurrency:
        waves = together(shuffled(load.each(), f"concurrency {count}"), count)
        made.append(Condition(f"{count} at once", "concurrency", f"{count} requests at once, prompts mixed", waves))
    copies = tuple((shot,) * 8 for shot in load.each(1))
    beside = tuple((*neighbours(3), shot, *neighbours(7)[3:]) for shot in load.each(1))
    clock = random.Random("arrival")
    late = [replace(shot, delay=clock.random() * 0.2) for shot in shuffled(load.each(), "arrival")]
    return [
        *made,
        Condition("8 copies at once", "copies", "the same prompt eight times at once", copies),
        Condition("neighbours", "neighbour", "beside 7 requests of other lengths", beside),
        Condition("staggered, 16", "arrival", "16 requests that arrive within 0.2 s", together(late, 16)),
    ]
