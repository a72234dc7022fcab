"""Two stages on a tiny model and on the real one: reproducible from the seed, whatever the engine is told to do."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM, RequestOutput, SamplingParams, TwoStageOutput, convert_to_deterministic, write_in_two_stages
from exactlm.errors import RequestError
from exactlm.two_stage import combine_digests, derive_seed, read_points
from tests import tiny
from tests.conftest import model_directory

pytest.importorskip("llguidance")

TASK = "Tell me of the sea."
DETAIL = SamplingParams(temperature=0.9, max_tokens=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for the prompts of the second stage, which hold the first."""
    folder = tiny.write_checkpoint(tmp_path_factory.mktemp("two_stage") / "source")
    config = json.loads((folder / "config.json").read_text())
    tiny.write_json(folder / "config.json", {**config, "max_position_embeddings": 8192})
    return convert_to_deterministic(folder).save_pretrained(folder.parent / "model", progress=False)


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model)


@pytest.fixture(scope="module")
def written(llm: LLM) -> TwoStageOutput:
    return write_in_two_stages(llm, TASK, points=3, seed=7, detail_params=DETAIL)


def test_every_part_is_there(written: TwoStageOutput, llm: LLM) -> None:
    assert len(written.points) == len(written.details) == 3
    assert written.outline.text.startswith("1. ")
    assert read_points(written.outline.text) == written.points
    assert written.outline.seed is None
    assert [part.seed for part in written.details] == [derive_seed(7, i) for i in (1, 2, 3)]
    assert written.fingerprint == llm.fingerprint
    assert all(point in written.text for point in written.points)
    assert json.loads(json.dumps(written.to_dict()))["details"][2]["digest"] == written.details[2].digest


@pytest.mark.parametrize(
    "capacity",
    [{"max_batch": 1}, {"chunk_tokens": 7}, {"prefix_cache": False}, {"speculation": "ngram"}, {"threads": 1}],
    ids=str,
)
def test_capacity_changes_nothing(model: Path, written: TwoStageOutput, capacity: dict[str, Any]) -> None:
    assert write_in_two_stages(LLM(model, **capacity), TASK, points=3, seed=7, detail_params=DETAIL) == written


def test_another_seed_gives_other_words_to_the_same_outline(llm: LLM, written: TwoStageOutput) -> None:
    other = write_in_two_stages(llm, TASK, points=3, seed=8, detail_params=DETAIL)
    assert other.outline == written.outline
    assert all(a.text != b.text for a, b in zip(other.details, written.details, strict=True))
    assert other.digest != written.digest


def test_each_part_can_be_made_alone(llm: LLM, written: TwoStageOutput) -> None:
    """A part's prompt ids and seed are enough to make it again, in the plain loop too."""
    for part in written.details:
        params = SamplingParams(temperature=0.9, max_tokens=12, seed=part.seed)
        alone: RequestOutput = llm.generate_plain(part.prompt_token_ids, params)
        assert alone.outputs[0].digest == part.digest
        assert alone.outputs[0].token_ids == part.token_ids


def test_the_digest_is_over_all_parts(written: TwoStageOutput) -> None:
    parts = [written.outline, *written.details]
    data = b"exactlm-two-stage-1\0" + (7).to_bytes(8, "little") + (4).to_bytes(8, "little")
    for part in parts:
        data += bytes.fromhex(part.digest)
    assert written.digest == hashlib.sha256(data).hexdigest() == combine_digests(7, parts)


def test_seeds_follow_the_stated_rule() -> None:
    data = b"exactlm-two-stage-1\0" + (7).to_bytes(8, "little") + (2).to_bytes(8, "little")
    assert derive_seed(7, 2) == int.from_bytes(hashlib.sha256(data).digest()[:8], "little") % 2**53
    seeds = {derive_seed(seed, i) for seed in (0, 1, 2**64 - 1) for i in range(33)}
    assert len(seeds) == 99


def test_number_of_points_left_to_the_model(llm: LLM) -> None:
    made = write_in_two_stages(llm, TASK, detail_params=SamplingParams(max_tokens=2))
    assert 3 <= len(made.points) <= 6
    assert [part.seed for part in made.details] == [None] * len(made.points)  # greedy


def test_a_free_outline_is_read_as_it_comes(llm: LLM) -> None:
    made = write_in_two_stages(
        llm, TASK, points=2, outline_params=SamplingParams(max_tokens=40), detail_params=SamplingParams(max_tokens=2)
    )
    assert 1 <= len(made.points) <= 2
    drawn = SamplingParams(temperature=1.0, max_tokens=40)
    assert write_in_two_stages(
        llm, TASK, outline_params=drawn, detail_params=SamplingParams(max_tokens=2)
    ).outline.seed == derive_seed(0, 0)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("1. a\n2. b", ["a", "b"]),
        ("Here it is:\n\n1) **First**: x\n  2) Second\n", ["First: x", "Second"]),
        ("- a\n* b\n• c\n- a", ["a", "b", "c"]),
        ("one\n\ntwo:\n", ["one", "two"]),
        ("**Intro**\n**Body**: x", ["Intro", "Body: x"]),
        ("* **Intro**\n* *Body*", ["Intro", "*Body*"]),
        ("10. ten\n11 . eleven", ["ten", "eleven"]),
        ("1.\n2. b", ["b"]),
        ("1. a\u2028b\u0085c\x0cd\r\n2. e\r\n", ["a\u2028b\u0085c\x0cd", "e"]),
        ("", []),
        (" \n\n", []),
    ],
)
def test_lists_of_any_kind_are_read(text: str, points: list[str]) -> None:
    assert read_points(text) == points


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"task": ""}, "task="),
        ({"task": 7}, "task="),
        ({"points": 0}, "points=0"),
        ({"points": 33}, "points=33"),
        ({"points": True}, "points=True"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed="),
        ({"seed": 1.5}, "seed=1.5"),
        ({"temperature": -1.0}, "temperature=-1"),
        ({"temperature": 0.5, "detail_params": DETAIL}, "temperature=0.5: leave it out"),
        ({"detail_params": SamplingParams(n=2)}, "detail_params: n=2"),
        ({"detail_params": SamplingParams(temperature=1, seed=3)}, "seeds come from"),
        ({"outline_params": SamplingParams(max_tokens=0)}, "no points"),
    ],
)
def test_bad_arguments_are_named(llm: LLM, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        write_in_two_stages(llm, **{"task": TASK, "points": 2, **arguments})


def outline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "exactlm", "outline", *arguments], capture_output=True, text=True, timeout=120
    )


def test_command(model: Path, llm: LLM) -> None:
    options = (str(model), TASK, "--seed", "7", "--points", "2", "--max-tokens", "5", "--temperature", "0.9")
    result = outline(*options, "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    detail = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=5)
    here = write_in_two_stages(llm, TASK, points=2, seed=7, detail_params=detail)
    assert told == here.to_dict()
    text = outline(*options).stdout
    assert here.digest in text
    assert f"2. {here.points[1]}" in text


def test_command_tells_what_is_wrong(model: Path) -> None:
    result = outline(str(model), TASK, "--points", "99")
    assert result.returncode == 2
    assert "points=99: use a whole number from 1 to 32" in result.stderr


@pytest.mark.model
def test_real_model_makes_a_list_of_its_own_words() -> None:
    llm = LLM(model_directory("int8"))
    task = "Write about the history of Rome."
    made = write_in_two_stages(
        llm, task, points=3, seed=1, detail_params=SamplingParams(temperature=0.8, max_tokens=30)
    )
    assert len(made.points) == 3
    assert any("Rome" in point or "Roman" in point for point in made.points)
    assert all(part.text.strip() for part in made.details)
    assert len({part.text for part in made.details}) == 3
