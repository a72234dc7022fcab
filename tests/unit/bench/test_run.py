"""A run asks everything once, goes on after an interruption, and its spread is measured: noise shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from exactlm.bench.condition import CONDITIONS, read_conditions
from exactlm.bench.journal import Journal
from exactlm.bench.question import Choice
from exactlm.bench.run import WHOLE, Plan, make_batches, run_engine
from exactlm.bench.spread import Spread, measure_spread
from exactlm.errors import ConfigError
from tests.unit.bench.conftest import OPTIONS, Letters, LocalEngine

NAMES = ("alone", "batch-4", "batch-32", "shuffled", "threads-1", "threads-2", "neighbours", "cached")
HEADER = {"bench": "letters"}


def run(engine: LocalEngine, task: Letters, path: Path, names: tuple[str, ...] = NAMES) -> dict[tuple[str, str], dict]:
    plan = Plan(task.load(), [CONDITIONS[name] for name in names], threads=1)
    with Journal(path, HEADER) as journal:
        run_engine(engine, task, plan, journal, lambda count: None)
        return dict(journal.records)


def spread_of(engine: LocalEngine, task: Letters, path: Path) -> Spread:
    spread = measure_spread(run(engine, task, path), NAMES)
    assert spread is not None
    return spread


def test_exact_engine_has_no_spread_and_answers(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    records = run(LocalEngine(tiny_model), letters, tmp_path / "exact.jsonl")
    spread = measure_spread(records, NAMES)
    assert spread is not None
    assert (spread.num_items, len(spread.conditions)) == (12, 8)
    assert (spread.num_changed, spread.num_flipped, spread.sd_mean, spread.sd_max) == (0, 0, 0, 0)
    alone = [records["alone", item.id] for item in letters.load()]
    assert len({r["label"] for r in alone}) > 1  # the engine is alive
    assert len({tuple(r["scores"]) for r in alone}) == 12
    assert all(score < 0 for r in alone for score in r["scores"])


def test_noisy_engine_has_a_spread(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    little = spread_of(LocalEngine(tiny_model, noise=1e-12), letters, tmp_path / "little.jsonl")
    assert little.num_changed == 12
    assert little.num_flipped == 0
    assert 0 < little.sd_mean <= little.sd_max < 1e-11
    much = spread_of(LocalEngine(tiny_model, noise=10.0), letters, tmp_path / "much.jsonl")
    assert much.num_flipped > 6
    assert 5 < much.sd_mean < 20
    low, high, deviation = much.metrics["says a"]
    assert low < high
    assert deviation > 0


def test_noise_under_one_condition_only_is_found(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    run(LocalEngine(tiny_model), letters, path, ("alone", "batch-4"))
    records = run(LocalEngine(tiny_model, noise=1e-12), letters, path, ("alone", "batch-4", "cached"))
    together = measure_spread(records, ("alone", "batch-4", "cached"))
    without = measure_spread(records, ("alone", "batch-4"))
    assert together is not None
    assert without is not None
    assert (together.num_changed, without.num_changed) == (12, 0)


def test_interrupted_run_goes_on(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    whole, path = run(LocalEngine(tiny_model), letters, tmp_path / "whole.jsonl"), tmp_path / "cut.jsonl"
    first = LocalEngine(tiny_model, patience=14)  # 12 alone, 2 of 3 batches of 4
    with pytest.raises(KeyboardInterrupt):
        run(first, letters, path)
    second = LocalEngine(tiny_model)
    records = run(second, letters, path)
    assert records.keys() == whole.keys()
    assert all(records[key].get("scores") == whole[key].get("scores") for key in whole)
    assert len(first.asked) + len(second.asked) == sum(
        len(list(make_batches(letters.load(), CONDITIONS[name]))) for name in NAMES
    )
    third = LocalEngine(tiny_model)
    assert run(third, letters, path) == records
    assert third.asked == []


def test_the_record_of_a_condition_is_made_up_for(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    """A run that dies after its last answer has all answers, and not yet what the engine was."""
    path = tmp_path / "records.jsonl"
    records = run(LocalEngine(tiny_model), letters, path, ("alone",))
    *rest, last = path.read_bytes().splitlines(keepends=True)
    assert b'"facts"' in last
    path.write_bytes(b"".join(rest) + last[:20])
    engine = LocalEngine(tiny_model)
    again = run(engine, letters, path, ("alone",))
    assert engine.asked == []
    assert again[("alone", WHOLE)] == {**records[("alone", WHOLE)], "memory": None}
    before = path.read_bytes()
    run(LocalEngine(tiny_model), letters, path, ("alone",))
    assert path.read_bytes() == before


def test_a_record_that_lacks_a_member_is_refused(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for record, lacking in (
        ('{"condition": "alone", "item": "0"}', "item_sha256"),
        ('{"condition": "a", "item": ""}', "facts"),
    ):
        path.unlink(missing_ok=True)
        with Journal(path, HEADER):
            pass
        path.write_text(path.read_text() + record + "\n")
        with pytest.raises(ConfigError, match=rf"records\.jsonl: the record of item .* has no {lacking}: .*--out"):
            run(LocalEngine(tiny_model), letters, path, ("alone",))


def test_spread_items_bound_all_but_the_first_condition(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    plan = Plan(letters.load(), read_conditions("batch-4,alone"), threads=1, spread_items=3)
    with Journal(tmp_path / "records.jsonl", HEADER) as journal:
        run_engine(LocalEngine(tiny_model), letters, plan, journal, lambda count: None)
        asked = {name: {i for c, i in journal.records if c == name and i != WHOLE} for name in ("batch-4", "alone")}
    assert asked == {"batch-4": {str(i) for i in range(12)}, "alone": {"0", "1", "2"}}


def test_more_items_go_on_with_what_is_there(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    """Under every condition, whatever the batches are then; fewer items ask nothing."""
    items, conditions = letters.load(), [CONDITIONS[name] for name in NAMES]
    whole = run(LocalEngine(tiny_model), letters, tmp_path / "whole.jsonl")
    for count, asked in ((5, [1] * 5), (7, [1] * 2), (6, []), (12, [1] * 5)):
        engine = LocalEngine(tiny_model)
        with Journal(tmp_path / "records.jsonl", HEADER) as journal:
            run_engine(engine, letters, Plan(items[:count], conditions, 1), journal, lambda number: None)
            records = dict(journal.records)
        assert engine.asked[: len(asked)] == asked
        assert bool(engine.asked) == bool(asked)
    assert records.keys() == whole.keys()
    assert all(records[key].get("scores") == whole[key].get("scores") for key in whole)


def test_answers_to_another_question_are_refused(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    path, engine = tmp_path / "records.jsonl", LocalEngine(tiny_model)
    run(engine, letters, path, ("alone",))
    before, items = path.read_bytes(), letters.load()
    others = [Choice("the other", OPTIONS), Choice("the thing", OPTIONS[:2])]
    for other in [*(replace(items[0], question=o) for o in others), replace(items[0], reference="a")]:
        plan = Plan([other, *items[1:]], [CONDITIONS["alone"]], 1)
        with (
            Journal(path, HEADER) as journal,
            pytest.raises(ConfigError, match=r"records\.jsonl: item 0 was another one .*--out"),
        ):
            run_engine(engine, letters, plan, journal, lambda number: None)
    assert path.read_bytes() == before
    run(engine, letters, path, ("alone",))
    assert len(engine.asked) == len(items)


def test_an_answer_to_no_stated_question_is_refused(tiny_model: Path, letters: Letters, tmp_path: Path) -> None:
    path, engine = tmp_path / "records.jsonl", LocalEngine(tiny_model)
    run(engine, letters, path, ("alone",))
    header, first, *rest = path.read_text().splitlines(keepends=True)
    record = json.loads(first)
    del record["item_sha256"]
    path.write_text("".join([header, json.dumps(record) + "\n", *rest]))
    with pytest.raises(ConfigError, match=r"records\.jsonl: the record of item '0' has no item_sha256: .*--out"):
        run(engine, letters, path, ("alone",))


@pytest.mark.parametrize("name", CONDITIONS)
def test_batches_hold_every_item_once(letters: Letters, name: str) -> None:
    items = letters.load()
    batches = list(make_batches(items, CONDITIONS[name]))
    own = [item.id for batch in batches for item, is_own in batch if is_own]
    assert sorted(own) == sorted(item.id for item in items)
    assert (own == [item.id for item in items]) != CONDITIONS[name].is_shuffled
    assert all(len(batch) <= CONDITIONS[name].num_streams for batch in batches)
    assert all(len({item.id for item, _ in batch}) == len(batch) for batch in batches)
    assert [[i.id for i, _ in b] for b in batches] == [
        [i.id for i, _ in b] for b in make_batches(items, CONDITIONS[name])
    ]
