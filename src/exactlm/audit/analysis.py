"""From observations to findings: per condition what changed, how far, how surely. Knows no engine and no report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from exactlm.audit.comparison import Difference, common_length, compare
from exactlm.audit.condition import Condition
from exactlm.audit.observation import Observation
from exactlm.audit.statistic import Mean, Share, deviation_of, mean_of, share_of


@dataclass
class PromptFinding:
    """One prompt under one condition. num_unique: different answers under this condition. is_text, is_number: any
    answer differs from the base answer. first: the first position that does, in `unit`. spread: largest minus smallest
    log-probability of a chosen token, over answers equal so far, the base answer among them. deviation: of the scores,
    that of the base answer among them; None for fewer than two. num_unscored: answers without a score.
    max_difference, cosine: the worst of the logits."""

    prompt: int
    num_answers: int
    num_unique: int
    num_changed: int
    is_text: bool
    is_number: bool | None
    first: int | None = None
    unit: str = "token"
    spread: float | None = None
    deviation: float | None = None
    num_unscored: int | None = None
    max_difference: float | None = None
    cosine: float | None = None


@dataclass
class Finding:
    """One condition. failures: messages of requests without an answer, with their numbers. texts, numbers: prompts any
    of whose answers differ in text, or in a number, from the base; answers: single answers that differ in text. The
    means are over prompts, of what PromptFinding has; firsts: where the changed ones part, of those told in `unit`."""

    condition: Condition
    prompts: list[PromptFinding]
    num_failed: int
    failures: dict[str, int]
    texts: Share
    numbers: Share
    answers: Share
    unique: Mean
    max_unique: int
    first: int | None
    unit: str
    firsts: Mean
    spread: Mean
    max_spread: float | None
    difference: Mean
    max_difference: float | None
    cosines: Mean
    cosine: float | None
    deviation: Mean
    max_deviation: float | None
    num_unscored: int | None
    note: dict[str, int] = field(default_factory=dict)


@dataclass
class Summary:
    """All "load" and "base" conditions of a group together. texts, numbers: prompts that changed under any; unique:
    different answers per prompt over all of them."""

    group: str
    num_answers: int
    texts: Share
    numbers: Share
    unique: Mean
    max_unique: int
    deviation: Mean


class Scorer:
    """Reads a number from an answer. pattern: a regular expression whose first group, or whole match, is the number."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def score(self, text: str) -> float | None:
        """The first match as a number; None if there is none."""
        match = self._pattern.search(text)
        if match is None:
            return None
        try:
            return float(match[1] if self._pattern.groups else match[0])
        except (TypeError, ValueError):
            return None


class Analysis:
    """The findings of all conditions that were observed, and a summary for each group."""

    def __init__(
        self, conditions: Sequence[Condition], observations: Sequence[Observation], scorer: Scorer | None = None
    ) -> None:
        self._scorer = scorer
        self._seen: dict[str, list[Observation]] = {}
        for observation in observations:
            self._seen.setdefault(observation.condition, []).append(observation)
        self._base: dict[tuple[str, int], Observation] = {}
        for condition in conditions:
            if condition.role == "base":
                for seen in self._sound(condition):
                    self._base.setdefault((condition.group, seen.prompt), seen)
        self.findings = [self._find(c) for c in conditions if c.name in self._seen]
        groups = list(dict.fromkeys(c.group for c in conditions if c.name in self._seen))
        self.summaries = [self._summarise(group) for group in groups]

    def base_of(self, group: str, prompt: int) -> Observation | None:
        """The answer that others are compared with."""
        return self._base.get((group, prompt))

    def changed_of(self, condition: Condition, prompt: int) -> Observation | None:
        """The first answer under a condition that differs in text from the base."""
        base = self.base_of(condition.group, prompt)
        seen = [o for o in self._sound(condition) if o.prompt == prompt]
        return next((o for o in seen if base is not None and compare(base, o).is_text), None)

    def _sound(self, condition: Condition) -> list[Observation]:
        return [o for o in self._seen.get(condition.name, []) if o.error is None]

    def _find(self, condition: Condition) -> Finding:
        by_prompt: dict[int, list[Observation]] = {}
        for seen in self._sound(condition):
            by_prompt.setdefault(seen.prompt, []).append(seen)
        prompts = [
            self._find_prompt(prompt, base, seen)
            for prompt, seen in sorted(by_prompt.items())
            if (base := self._base.get((condition.group, prompt))) is not None
        ]
        failures: dict[str, int] = {}
        for seen in self._seen[condition.name]:
            if seen.error is not None:
                failures[seen.error] = failures.get(seen.error, 0) + 1
        return _gather(condition, prompts, failures)

    def _find_prompt(self, prompt: int, base: Observation, seen: list[Observation]) -> PromptFinding:
        differences = [compare(base, o) for o in seen]
        found = PromptFinding(prompt, len(seen), *_unique(seen, differences))
        found.first, found.unit = _first((d.position, d.unit) for d in differences)
        found.spread = _spread(base, seen)
        if self._scorer is not None:
            found.num_unscored = sum(self._scorer.score(o.text) is None for o in seen)
            found.deviation = self._deviate(o.text for o in (base, *(o for o in seen if o is not base)))
        found.max_difference = max((o.max_difference for o in seen if o.max_difference is not None), default=None)
        found.cosine = min((o.cosine for o in seen if o.cosine is not None), default=None)
        return found

    def _deviate(self, texts: Iterable[str]) -> float | None:
        """Standard deviation of the scores of these answers; None for fewer than two."""
        if self._scorer is None:
            return None
        known = [score for text in texts if (score := self._scorer.score(text)) is not None]
        return deviation_of(known) if len(known) > 1 else None

    def _summarise(self, group: str) -> Summary:
        found = [f for f in self.findings if f.condition.group == group and f.condition.role in ("base", "load")]
        by_prompt: dict[int, list[PromptFinding]] = {}
        for finding in found:
            for one in finding.prompts:
                by_prompt.setdefault(one.prompt, []).append(one)
        seen = [o for f in found for o in self._sound(f.condition)]
        texts: dict[int, list[str]] = {}
        for o in seen:
            texts.setdefault(o.prompt, []).append(o.text)
        unique = [len(set(texts[p])) for p in by_prompt]
        numbers = [[f.is_number for f in many if f.is_number is not None] for many in by_prompt.values()]
        known = [any(n) for n in numbers if n]
        deviations = [d for p in by_prompt if (d := self._deviate(texts[p])) is not None]
        return Summary(
            group,
            len(seen),
            share_of(sum(any(f.is_text for f in many) for many in by_prompt.values()), len(by_prompt)),
            share_of(sum(known), len(known)),
            mean_of(unique),
            max(unique, default=0),
            mean_of(deviations),
        )


def _unique(seen: list[Observation], differences: list[Difference]) -> tuple[int, int, bool, bool | None]:
    numbers = [d.is_number for d in differences if d.is_number is not None]
    changed = sum(d.is_text for d in differences)
    return len({o.text for o in seen}), changed, changed > 0, any(numbers) if numbers else None


def _first(places: Iterable[tuple[int | None, str]]) -> tuple[int | None, str]:
    """The first of some positions with their units. Tokens before characters: the two do not compare."""
    known = [(unit != "token", position, unit) for position, unit in places if position is not None]
    _, first, unit = min(known, default=(False, None, "token"))
    return first, unit


def _spread(base: Observation, seen: list[Observation]) -> float | None:
    """Over the positions whose tokens, up to and with them, are the base answer's."""
    if base.logprobs is None or base.tokens is None:
        return None
    steps: list[list[float]] = [[v] if v is not None else [] for v in base.logprobs]
    is_told = False
    for o in seen:
        if o.logprobs is None or o.tokens is None:
            continue
        is_told = True
        for i in range(min(common_length(base.tokens, o.tokens), len(o.logprobs), len(steps))):
            value = o.logprobs[i]
            if value is not None:
                steps[i].append(value)
    return max((max(s) - min(s) for s in steps if s), default=0.0) if is_told else None


def _gather(condition: Condition, prompts: list[PromptFinding], failures: dict[str, int]) -> Finding:
    numbers = [p.is_number for p in prompts if p.is_number is not None]
    first, unit = _first((p.first, p.unit) for p in prompts)
    spreads = [p.spread for p in prompts if p.spread is not None]
    differences = [p.max_difference for p in prompts if p.max_difference is not None]
    cosines = [p.cosine for p in prompts if p.cosine is not None]
    deviations = [p.deviation for p in prompts if p.deviation is not None]
    unscored = [p.num_unscored for p in prompts if p.num_unscored is not None]
    return Finding(
        condition,
        prompts,
        sum(failures.values()),
        failures,
        share_of(sum(p.is_text for p in prompts), len(prompts)),
        share_of(sum(numbers), len(numbers)),
        share_of(sum(p.num_changed for p in prompts), sum(p.num_answers for p in prompts)),
        mean_of([p.num_unique for p in prompts]),
        max((p.num_unique for p in prompts), default=0),
        first,
        unit,
        mean_of([p.first for p in prompts if p.first is not None and p.unit == unit]),
        mean_of(spreads),
        max(spreads, default=None),
        mean_of(differences),
        max(differences, default=None),
        mean_of(cosines),
        min(cosines, default=None),
        mean_of(deviations),
        max(deviations, default=None),
        sum(unscored) if unscored else None,
    )
