"""Scheduling, pages, cancellation and failure, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exactlm import convert_to_deterministic
from exactlm.engine.config import EngineConfig
from exactlm.engine.engine import Engine
from exactlm.engine.kv_cache import PageStore, pages_for
from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.sequence import Sequence
from exactlm.errors import CapacityError, ConfigError, NumericError, RequestError
from exactlm.format.reader import open_model
from exactlm.kernels.select import select_kernels
from exactlm.models.config import ModelConfig
from exactlm.models.decoder import Decoder
from exactlm.models.weights import load_weights
from tests import tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    return convert_to_deterministic(tiny.write_checkpoint(folder / "source")).save_pretrained(
        folder / "model", progress=False
    )


def make(
    path: Path, eos: frozenset[int] = frozenset(), excluded: frozenset[int] = frozenset(), **limits: int
) -> Engine:
    directory = open_model(path)
    config = ModelConfig.from_dict(directory.config)
    kernels = select_kernels(None, 2)
    engine_config = EngineConfig(**limits)
    decoder = Decoder(config, load_weights(directory.tensors, config, kernels), kernels, engine_config.step_tokens)
    return Engine(decoder, eos, excluded, engine_config)


def finish(engine: Engine, *sequences: Sequence, steps: int = 500) -> None:
    for _ in range(steps):
        if all(s.is_finished for s in sequences):
            engine.pages.check_integrity()
            return
        engine.step()
    raise AssertionError("not finished")


def ids(count: int, key: int = 0) -> list[int]:
    return np.random.Generator(np.random.Philox(key=key)).integers(0, 400, count).tolist()


GREEDY = SamplingParams(max_tokens=5)


def test_more_requests_than_fit_wait_and_get_the_same_answers(path: Path) -> None:
    roomy, tight = make(path), make(path, max_batch=3, kv_tokens=160, chunk_tokens=9)
    prompts = [ids(n, n) for n in (1, 40, 64, 3, 90, 31, 32, 33)]
    expected = [roomy.add(p, GREEDY) for p in prompts]
    found = [tight.add(p, GREEDY) for p in prompts]
    finish(roomy, *expected)
    finish(tight, *found)
    assert [s.output_ids for s in found] == [s.output_ids for s in expected]
    assert [s.digest.hexdigest() for s in found] == [s.digest.hexdigest() for s in expected]


def test_a_step_never_takes_more_tokens_than_its_budget(path: Path) -> None:
    engine = make(path, chunk_tokens=16, max_batch=4)
    sequences = [engine.add(ids(50, i), GREEDY) for i in range(6)]
    seen = 0
    while not all(s.is_finished for s in sequences):
        slices = engine.scheduler.schedule()
        assert sum(s.count for s in slices) <= 16
        assert len(engine.scheduler.running) <= 4
        engine.step()
        seen += 1
    assert seen > 10


def test_cancelling_frees_the_pages_at_once_and_disturbs_nobody(path: Path) -> None:
    alone = make(path)
    expected = alone.add(ids(20), GREEDY)
    finish(alone, expected)
    engine = make(path, chunk_tokens=8)
    bystander = engine.add(ids(20), GREEDY)
    others = [engine.add(ids(60, i + 1), SamplingParams(max_tokens=50)) for i in range(5)]
    for other in others:
        engine.step()
        engine.cancel(other)
        assert other.pages == []
        assert other.finish_reason == "cancelled"
    finish(engine, bystander)
    assert bystander.digest.hexdigest() == expected.digest.hexdigest()


def test_a_nan_fails_its_own_request_only(path: Path) -> None:
    alone = make(path)
    expected = alone.add(ids(20), GREEDY)
    finish(alone, expected)
    engine = make(path)
    original = engine.decoder.kernels.embed

    def poisoned(table: object, token_ids: np.ndarray, x: np.ndarray) -> None:
        original(table, token_ids, x)
        x[: len(token_ids)][token_ids == 499] = np.nan

    engine.decoder.kernels.embed = poisoned
    good, bad = engine.add(ids(20), GREEDY), engine.add([5, 499, 7], GREEDY)
    finish(engine, good, bad)
    assert isinstance(bad.error, NumericError)
    assert "layer 0" in str(bad.error)
    assert good.error is None
    assert good.digest.hexdigest() == expected.digest.hexdigest()


def test_an_infinite_logit_fails_its_positions(path: Path) -> None:
    engine = make(path)
    original = engine.decoder.logits

    def poisoned(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        logits = original(codes, scales)
        logits[1, 3] = np.inf
        return logits

    engine.decoder.logits = poisoned
    with pytest.raises(NumericError, match="positions 0 to 19"):
        list(engine.prompt_logits(ids(20)))
    engine.pages.check_integrity()


def test_end_tokens_stop_unless_ignored(path: Path) -> None:
    engine = make(path)
    free = engine.add(ids(20), GREEDY)
    finish(engine, free)
    third = free.output_ids[2]
    first_seen = free.output_ids.index(third)
    ended = make(path, eos=frozenset({third}))
    stopped = ended.add(ids(20), GREEDY)
    ignoring = ended.add(ids(20), SamplingParams(max_tokens=5, ignore_eos=True))
    finish(ended, stopped, ignoring)
    assert (stopped.output_ids, stopped.finish_reason) == (free.output_ids[: first_seen + 1], "stop")
    assert (ignoring.output_ids, ignoring.finish_reason) == (free.output_ids, "length")
    by_id = engine.add(ids(20), SamplingParams(max_tokens=5, stop_token_ids=(third,)))
    finish(engine, by_id)
    assert by_id.output_ids == stopped.output_ids


def test_excluded_ids_are_never_chosen(path: Path) -> None:
    engine = make(path)
    free = engine.add(ids(20), GREEDY)
    finish(engine, free)
    banned = make(path, excluded=frozenset(free.output_ids))
    other = banned.add(ids(20), GREEDY)
    finish(banned, other)
    assert not set(other.output_ids) & set(free.output_ids)


def test_exact_ties_go_to_the_lowest_id(tmp_path: Path) -> None:
    source = tiny.write_checkpoint(tmp_path / "source", "tied_rows")
    model = convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False)
    engine = make(model)
    (logits,) = engine.prompt_logits(ids(6))
    row = logits[-1]
    assert (row == row.max()).sum() > 1
    sequence = engine.add(ids(6), SamplingParams(max_tokens=1))
    finish(engine, sequence)
    assert sequence.output_ids == [int(np.flatnonzero(row == row.max())[0])]


def test_logprobs_do_not_change_the_answer_and_hold_the_choice(path: Path) -> None:
    engine = make(path)
    plain, asked = engine.add(ids(20), GREEDY), engine.add(ids(20), SamplingParams(max_tokens=5, logprobs=3))
    finish(engine, plain, asked)
    assert plain.digest.hexdigest() == asked.digest.hexdigest()
    for token, entry in zip(asked.output_ids, asked.logprobs, strict=True):
        assert next(iter(entry)) == token
        assert len(entry) == 3
        assert max(entry.values()) == entry[token] <= 0


@pytest.mark.parametrize("bad", [[], [-1], [500], [517], [True], ["a"], [1.0], [2**70]])
def test_bad_prompts_are_named(path: Path, bad: list[object]) -> None:
    engine = make(path)
    with pytest.raises(RequestError, match=r"token|tokens"):
        engine.add(bad, GREEDY)  # type: ignore[arg-type]
    engine.pages.check_integrity()


def test_too_long_a_prompt_is_refused_with_both_sizes(path: Path) -> None:
    engine = make(path)
    with pytest.raises(RequestError, match=r"510 tokens.*512"):
        engine.add(ids(510), GREEDY)
    rest = engine.add(ids(510), SamplingParams(max_tokens=None))
    finish(engine, rest)
    assert (len(rest.output_ids), rest.finish_reason) == (2, "length")


def test_a_request_that_can_never_fit_is_refused(path: Path) -> None:
    engine = make(path, kv_tokens=64)
    with pytest.raises(CapacityError, match="kv_tokens"):
        engine.add(ids(70), GREEDY)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": 1e-9},
        {"temperature": float("nan")},
        {"top_p": 1.1},
        {"top_k": -2},
        {"min_p": -1},
        {"n": 0},
        {"repetition_penalty": 0},
        {"presence_penalty": 3},
        {"logit_bias": {"5": 1}},
        {"logit_bias": {5: 101}},
        {"prompt_logprobs": 1.5},
        {"regex": 5},
        {"temperature": True},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"logprobs": -1},
        {"logprobs": 10**9},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": "7"},
        {"seed": True},
        {"stop": ("",)},
        {"stop": (5,)},
        {"stop_token_ids": (-1,)},
        {"ignore_eos": 1},
    ],
)
def test_parameters_are_refused_not_ignored(values: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(values))):
        SamplingParams(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{"max_batch": 0}, {"chunk_tokens": 0}, {"kv_tokens": 1}, {"max_batch": 2.0}])
def test_capacity_settings_are_checked(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        EngineConfig(**values)


def test_pages() -> None:
    assert [pages_for(n) for n in (0, 1, 32, 33)] == [0, 1, 1, 2]
    pages = PageStore(4)
    taken = pages.allocate(3)
    with pytest.raises(CapacityError):
        pages.allocate(2)
    with pytest.raises(CapacityError, match="3 KV pages are lost"):
        pages.check_integrity()
    pages.release(taken)
    pages.check_integrity()
