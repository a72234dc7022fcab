"""Prefix cache, preemption, drafts, neighbours, chunks: whatever requests share, each answer is the one that the plain
loop gives alone - text, ids, log-probabilities and digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from exactlm import LLM, RequestOutput, SamplingParams, convert_to_deterministic
from exactlm.engine.kv_cache import PageStore
from tests import tiny

NUM_REQUESTS = 36
PREFIX_CACHE, SPECULATION = (True, False), ("none", "ngram")


@pytest.fixture(scope="module", params=["base", "window", "tied_rows"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharing")
    source = tiny.write_checkpoint(folder / "source", request.param)
    return convert_to_deterministic(source).save_pretrained(folder / "model", progress=False)


def requests() -> Iterator[tuple[list[int], SamplingParams]]:
    """Prompts that share prefixes of every length around page boundaries, and every kind of parameter."""
    rng = np.random.Generator(np.random.Philox(key=5))
    stem = rng.integers(0, 400, 200).tolist()
    for i in range(NUM_REQUESTS):
        shared = [0, 1, 31, 32, 33, 63, 64, 65, 96, 128][i % 10]
        phrase = rng.integers(0, 400, 4).tolist()
        own = phrase * 5 if i % 3 == 0 else rng.integers(0, 400, int(rng.integers(1, 60))).tolist()
        params = SamplingParams(max_tokens=int(rng.integers(1, 40)), ignore_eos=True)
        if i % 4:
            params = replace(params, temperature=[0.3, 1.0, 5.0][i % 3], seed=i, top_k=[0, 7][i % 2])
        if i % 5 == 1:
            params = replace(params, top_p=0.8, min_p=0.01, n=3)
        if i % 5 == 2:
            params = replace(params, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.2)
        if i % 5 == 3:
            params = replace(params, logit_bias={3: 5.0, 4: -100.0}, stop=("e", "the"))
        if i % 3 == 2:
            params = replace(params, logprobs=4)
        if i % 7 == 5:
            params = replace(params, stop_token_ids=tuple(range(40)))
        if i % 9 == 4:
            params = replace(params, regex="(a|b|[e-q ]){3,9}")
        yield stem[:shared] + own, params


def answer_all(llm: LLM) -> list[RequestOutput]:
    prompts, params = zip(*requests(), strict=True)
    return llm.generate(list(prompts), list(params))


@pytest.fixture(scope="module")
def expected(path: Path) -> list[RequestOutput]:
    llm = LLM(path, threads=1, isa="scalar")
    return [llm.generate_plain(prompt, params) for prompt, params in requests()]


@pytest.mark.parametrize(("prefix_cache", "speculation"), list(product(PREFIX_CACHE, SPECULATION)))
def test_shared_steps_give_the_answers_of_the_plain_loop(
    path: Path, expected: list[RequestOutput], prefix_cache: bool, speculation: str
) -> None:
    sizes = {"kv_tokens": 320, "chunk_tokens": 48, "max_batch": 16}
    llm = LLM(path, threads=2, prefix_cache=prefix_cache, speculation=speculation, **sizes)
    for _ in range(2):  # the second time with a warm cache
        assert answer_all(llm) == expected
    stats = llm.stats()
    llm.check_integrity()
    assert stats.num_preemptions > 3
    assert (stats.num_cached_tokens > 500) is prefix_cache
    assert (stats.num_accepted_tokens > 10) is (speculation == "ngram")
    assert stats.num_pages_used == 0


def test_many_co_resident(path: Path, expected: list[RequestOutput]) -> None:
    llm = LLM(path, threads=3, max_batch=128, chunk_tokens=512)
    assert answer_all(llm) == expected
    assert llm.stats().num_preemptions == 0


def test_the_answers_are_alive(expected: list[RequestOutput]) -> None:
    digests = [o.digest for e in expected for o in e.outputs]
    ids = [i for e in expected for o in e.outputs for i in o.token_ids]
    assert len(set(digests)) > 0.9 * len(digests)
    assert len(set(ids)) > 100
    assert {o.finish_reason for e in expected for o in e.outputs} == {"stop", "length"}


def test_another_seed_is_seen(path: Path, expected: list[RequestOutput]) -> None:
    llm = LLM(path, threads=1)
    prompts, params = zip(*requests(), strict=True)
    changed = [replace(p, seed=1000) if p.temperature else p for p in params]
    found = llm.generate(list(prompts), changed)
    differing = [a.outputs != b.outputs for a, b in zip(found, expected, strict=True)]
    assert all(not d for d, p in zip(differing, params, strict=True) if p.is_greedy)
    assert sum(differing) > len(differing) // 2


def test_a_prefix_taken_for_another_is_seen(path: Path, expected: list[RequestOutput]) -> None:
    """The negative control: a cache that looks at a page's first id only gives wrong answers, and they are seen."""

    class Careless(dict[tuple[int, ...], object]):
        def __setitem__(self, key: tuple[int, ...], value: object) -> None:
            super().__setitem__(key[:1], value)

        def get(self, key: tuple[int, ...], default: object = None) -> object:
            return super().get(key[:1], default)

    llm = LLM(path, threads=1)
    original = PageStore.publish

    def publish(self: PageStore, parent, key, page):
        if not isinstance(parent.children, Careless):
            parent.children = Careless(parent.children)
        return original(self, parent, key, page)

    llm._engine.pages.publish = publish.__get__(llm._engine.pages)
    prompt = next(requests())[0] * 4
    other = [i + (at % 32 > 0) for at, i in enumerate(prompt)]
    params = SamplingParams(max_tokens=4)
    right = llm.generate_plain(other, params)
    llm.generate([prompt], params)
    (wrong,) = llm.generate([other], params)
    assert wrong.num_cached_tokens == 64
    assert wrong != right
    careful = LLM(path, threads=1)
    careful.generate([prompt], params)
    assert careful.generate([other], params) == [right]
