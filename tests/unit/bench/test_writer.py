"""Essays are the same bytes however often their writing was ended, and no other file is taken for them."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from exactlm.bench.data import DataSource
from exactlm.bench.task.essays import Essays
from exactlm.bench.writer import NUM_STREAMS, Assignment, EssayFile, digest_assignments, read_assignments
from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ConfigError
from exactlm.journal import JournalFile
from exactlm.llm import LLM

ASSIGNMENTS = [Assignment(f"Write of {word}.", seed) for seed, word in enumerate(["rain"] * 12 + ["snow"] * 12)]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(tiny_model, threads=1)


@pytest.fixture(scope="module")
def whole(llm: LLM) -> bytes:
    """The definition: all in one call, in their order."""
    params = [SamplingParams(temperature=0.8, seed=a.seed, max_tokens=200) for a in ASSIGNMENTS]
    outputs = llm.chat([[{"role": "user", "content": a.prompt}] for a in ASSIGNMENTS], params)
    pairs = zip(ASSIGNMENTS, outputs, strict=True)
    lines = [json.dumps({"prompt": a.prompt, "essay": output.outputs[0].text}) + "\n" for a, output in pairs]
    assert len(set(lines)) > 20  # the model is alive
    return "".join(lines).encode()


def head(whole: bytes, count: int) -> bytes:
    return b"".join(whole.splitlines(keepends=True)[:count])


def make(folder: Path, assignments: list[Assignment] = ASSIGNMENTS) -> EssayFile:
    return EssayFile(folder / "essays.jsonl", assignments, "fingerprint")


def complete(file: EssayFile, llm: LLM | None, count: int = len(ASSIGNMENTS), patience: int = 1000) -> list[int]:
    """What was told. llm: None where nothing may be written. patience: essays until the run is interrupted."""
    told: list[int] = []

    def tell(number: int) -> None:
        told.append(number)
        if len(told) > patience:  # the first tells what was there
            raise KeyboardInterrupt

    def open_llm() -> LLM:
        assert llm is not None
        return llm

    file.complete(count, open_llm, tell)
    return told


def test_written_in_one_go(llm: LLM, whole: bytes, tmp_path: Path) -> None:
    assert len(ASSIGNMENTS) > NUM_STREAMS
    assert complete(make(tmp_path), llm) == [0] + [1] * len(ASSIGNMENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["essays.jsonl"]
    assert (tmp_path / "essays.jsonl").read_bytes() == whole
    assert complete(make(tmp_path), None) == []


def test_every_finished_essay_outlives_an_interruption(llm: LLM, whole: bytes, tmp_path: Path) -> None:
    for there in (0, 1, 6, 11):
        with pytest.raises(KeyboardInterrupt):
            complete(make(tmp_path), llm, patience=1 if there == 0 else 5)
        lines = (tmp_path / "essays.part").read_text().splitlines()
        assert len(lines) - 1 == (1 if there == 0 else there + 5)
        assert not (tmp_path / "essays.jsonl").exists()
        stats = llm.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)  # what was under way was given up
    llm.check_integrity()
    assert complete(make(tmp_path), llm) == [16] + [1] * 8
    assert (tmp_path / "essays.jsonl").read_bytes() == whole


def test_cut_at_any_byte_goes_on(llm: LLM, whole: bytes, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        complete(make(tmp_path), llm, patience=2)
    part, path = tmp_path / "essays.part", tmp_path / "essays.jsonl"
    data = part.read_bytes()
    for size in range(0, len(data), 97):
        part.write_bytes(data[:size])
        told = complete(make(tmp_path), llm, count=2)
        assert told == [sum(json.loads(x)["index"] < 2 for x in data[:size].split(b"\n")[1:-1])] + [1] * len(told[1:])
        assert path.read_bytes() == head(whole, 2)
        path.unlink()


def test_as_many_as_asked(llm: LLM, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "essays.jsonl"
    assert complete(make(tmp_path), llm, count=3) == [0, 1, 1, 1]
    assert path.read_bytes() == head(whole, 3)
    assert complete(make(tmp_path), llm, count=5) == [3, 1, 1]
    assert path.read_bytes() == head(whole, 5)
    assert complete(make(tmp_path), None, count=4) == []
    assert path.read_bytes() == head(whole, 5)
    (tmp_path / "essays.part").unlink()
    assert complete(make(tmp_path), llm) == [5] + [1] * 19
    assert path.read_bytes() == whole


def test_two_runs_do_not_write_at_once(llm: LLM, whole: bytes, tmp_path: Path) -> None:
    complete(make(tmp_path), llm, count=2)

    def tell(number: int) -> None:
        with pytest.raises(ConfigError, match=r"essays\.part: another run is writing it: wait"):
            complete(make(tmp_path), llm)
        assert complete(make(tmp_path), None, count=2) == []  # those that are there are for everybody

    make(tmp_path).complete(4, lambda: llm, tell)
    assert (tmp_path / "essays.jsonl").read_bytes() == head(whole, 4)


def before_lock(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Another run does its work when the next one has opened the journal and not locked it yet."""
    lock = fcntl.flock

    def flock(*arguments: object) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        work()
        lock(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("count", [5, len(ASSIGNMENTS)])
def test_what_another_run_wrote_before_the_lock_is_kept(
    llm: LLM, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    before_lock(monkeypatch, lambda: complete(make(tmp_path), llm, count=count))
    assert complete(make(tmp_path), None, count=2) == []
    assert (tmp_path / "essays.jsonl").read_bytes() == head(whole, count)
    assert (tmp_path / "essays.part").exists() == (count < len(ASSIGNMENTS))


def test_the_lock_of_a_removed_journal_keeps_nobody_out(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is written and moved away, and a third run writes anew, before the second has locked what it opened."""
    path, part, third = tmp_path / "essays.jsonl", tmp_path / "essays.part", list[JournalFile]()

    def work() -> None:
        complete(make(tmp_path), llm)
        path.rename(tmp_path / "mine.jsonl")
        third.append(JournalFile(part, {"essays": path.name, "assignments_sha256": make(tmp_path).digest}, "wait"))

    before_lock(monkeypatch, work)
    with pytest.raises(ConfigError, match=r"essays\.part: another run is writing it"):
        complete(make(tmp_path), llm, count=2)
    third[0].close()
    assert not path.exists()


@pytest.mark.parametrize("is_partial", [False, True])
def test_essays_of_other_prompts_are_refused_and_kept(llm: LLM, tmp_path: Path, is_partial: bool) -> None:
    complete(make(tmp_path), llm, count=3)
    if is_partial:
        (tmp_path / "essays.jsonl").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = [ASSIGNMENTS[0], Assignment("Write of ice.", 1), *ASSIGNMENTS[2:]]
    with pytest.raises(
        ConfigError, match=r"essays\.(part|jsonl): .*move it away|assignments_sha256 differ.*move"
    ) as told:
        complete(make(tmp_path, other), llm)
    assert ("assignments_sha256" in str(told.value)) == is_partial
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("line", [{"index": "x", "essay": ""}, {"essay": ""}, {"index": None, "essay": ""}])
def test_a_journal_of_something_else_is_refused(llm: LLM, tmp_path: Path, line: dict) -> None:
    complete(make(tmp_path), llm, count=1)
    with (tmp_path / "essays.part").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=r"essays\.part: holds what is no essay"):
        complete(make(tmp_path), llm)


@pytest.mark.parametrize("content", ['{"prompt": "Write of rain."}\n', '{"prompt": "Write of rain.", "essay": 1}\n'])
def test_a_file_without_essays_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "essays.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"essays\.jsonl: holds other essays .*--essays FILE"):
        complete(make(tmp_path), None)


def test_assignments(tmp_path: Path) -> None:
    rows = [{"category": c, "turns": [c, "second"]} for c in ("writing", "maths", "writing")]
    (tmp_path / "mt_bench_question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_assignments(DataSource(tmp_path))
    assert found == [Assignment("writing", seed) for seed in range(20)]
    digests = {
        digest_assignments(*given) for given in [(found, "a"), (found, "b"), (found[:-1], "a"), (found[1:], "a")]
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"category": "maths", "turns": ["x"]}, "category 'writing'"),
        ({"turns": ["x"]}, "KeyError"),
        ({"category": "writing", "turns": []}, "IndexError"),
        ({"category": "writing", "turns": None}, "TypeError"),
        ({"category": "writing", "turns": [5]}, "first of 'turns'"),
    ],
)
def test_prompts_of_another_form_are_told(tmp_path: Path, row: dict, words: str) -> None:
    (tmp_path / "mt_bench_question.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=rf"mt_bench_question\.jsonl: .*{words}"):
        read_assignments(DataSource(tmp_path))


def test_the_digest_stands_for_essays_written_or_not(llm: LLM, tmp_path: Path) -> None:
    file = make(tmp_path)
    digests = set()
    for count in (2, 5):
        complete(file, llm, count=count)
        task = Essays(file.path, file.digest)
        items = task.load()
        assert len(items) == count
        digests.add(task.digest(items))
        digests.add(Essays(file.path).digest(items))  # of a file alone: of what it holds
    assert file.digest in digests
    assert len(digests) == 3
