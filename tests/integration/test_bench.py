"""exactlm bench as a user runs it: results, exit statuses, killed and started again, on tiny and on real models."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from exactlm.bench.data import DataSource
from exactlm.bench.question import Answer
from exactlm.bench.sandbox import Sandbox
from exactlm.bench.task.gsm8k_steps import Gsm8kSteps
from exactlm.bench.task.humaneval import HumanEval
from exactlm.bench.task.mbpp import Mbpp
from exactlm.errors import ConfigError
from tests.conftest import data_file, model_directory


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exactlm", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


def result_of(*arguments: str) -> dict[str, Any]:
    done = bench(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Short contracts: completions need no token of their own in the tiny vocabulary, and 512 tokens of context."""
    folder = tmp_path / "data"
    (folder / "contracts").mkdir(parents=True)
    for i in range(4):
        (folder / "contracts" / f"{i}.txt").write_text(f"Made on May {i + 1}, 2011 by Band{i}, Inc.")
    return folder


@pytest.fixture
def common(tiny_model: Path, data: Path, tmp_path: Path) -> list[str]:
    engine = f"exactlm:{tiny_model}"
    return ["contracts", "--engine", engine, "--data", str(data), "--out", str(tmp_path / "out"), "--threads", "1"]


def test_other_token_ids_are_told(common: list[str], tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "same").symlink_to(tiny_model)
    arguments = [*common, "--engine", f"exactlm:{tmp_path}/same", "--conditions", "batch-4"]
    assert [engine["other_token_ids"] for engine in result_of(*arguments)["engines"]] == [0, 0]
    (path,) = (tmp_path / "out" / "contracts").glob("*same.jsonl")
    lines = path.read_text().splitlines()
    for at in (2, 3):
        lines[at] = json.dumps({**json.loads(lines[at]), "prompt_sha256": "0" * 16})
    path.write_text("\n".join(lines) + "\n")
    assert [engine["other_token_ids"] for engine in result_of(*arguments)["engines"]] == [0, 2]
    assert "same made other token ids than" in bench(*arguments).stdout


def test_tables_json_and_records_agree(common: list[str], tmp_path: Path) -> None:
    arguments = [*common, "--conditions", "alone,batch-4,cached"]
    text = bench(*arguments)
    assert text.returncode == 0, text.stderr
    assert "contracts, 12 items, alone, 1 threads" in text.stdout
    (records,) = (tmp_path / "out" / "contracts").glob("*.jsonl")
    before = records.read_bytes()
    result = result_of(*arguments)
    assert records.read_bytes() == before  # nothing was asked again
    assert result["template_sha256"] in text.stdout
    (engine,) = result["engines"]
    assert engine["spread"]["num_items"] == 12
    assert engine["spread"]["conditions"] == ["alone", "batch-4", "cached"]
    assert (engine["spread"]["num_changed"], engine["spread"]["sd_max"]) == (0, 0)
    assert engine["conditions"]["alone"]["memory"]["peak"] > 1 << 20
    lines = [json.loads(line) for line in before.splitlines()]
    assert len(lines) == 1 + 3 * 13
    assert lines[0]["template_sha256"] == result["template_sha256"]
    assert len({line["text"] for line in lines[1:13]}) > 6  # the model is alive


def test_an_answer_that_moved_gives_exit_status_1(common: list[str], tmp_path: Path) -> None:
    arguments = [*common, "--conditions", "alone,batch-4"]
    assert bench(*arguments).returncode == 0
    (records,) = (tmp_path / "out" / "contracts").glob("*.jsonl")
    lines = records.read_text().splitlines()
    changed = json.loads(lines[20])
    changed |= {"text": changed["text"] + "!", "value": 1 - changed["value"], "label": "other"}
    records.write_text("\n".join([*lines[:20], json.dumps(changed), *lines[21:]]) + "\n")
    moved = bench(*arguments, "--json")
    assert moved.returncode == 1
    spread = json.loads(moved.stdout)["engines"][0]["spread"]
    assert (spread["num_changed"], spread["num_flipped"]) == (1, 1)
    assert spread["sd_max"] == 0.5


def test_killed_run_goes_on(common: list[str], tmp_path: Path) -> None:
    whole = result_of(*common, "--conditions", "alone,batch-4")["engines"][0]["spread"]
    (records,) = (tmp_path / "out" / "contracts").glob("*.jsonl")
    expected = {line_key(line): told(line) for line in records.read_text().splitlines()[1:]}
    records.unlink()
    command = [sys.executable, "-m", "exactlm", "bench", *common, "--conditions", "alone,batch-4"]
    # The same bytes in many times the time: the run is not over before it is killed, wherever this runs.
    slow = {**os.environ, "EXACTLM_ISA": "reference"}
    num_kills = 0
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=slow)
        size = records.stat().st_size if records.exists() else 0
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            if records.exists() and records.stat().st_size > size + 600:
                process.send_signal(signal.SIGKILL)
                num_kills += 1
                break
            time.sleep(0.002)
        process.wait()
    assert num_kills
    assert result_of(*common, "--conditions", "alone,batch-4")["engines"][0]["spread"] == whole
    lines = records.read_text().splitlines()[1:]
    assert {line_key(line): told(line) for line in lines} == expected
    assert len(lines) == len(expected)


def line_key(line: str) -> tuple[str, str]:
    record = json.loads(line)
    return record["condition"], record["item"]


def told(line: str) -> Any:
    return json.loads(line).get("text")


@pytest.fixture
def writing(tiny_model: Path, tmp_path: Path) -> list[str]:
    """Twenty essays of a few words each."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    rows = [{"category": "writing", "turns": [text]} for text in ("Sing.", "Ring.")]
    (folder / "mt_bench_question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        "--engine",
        f"exactlm:{tiny_model}",
        "--data",
        str(folder),
        "--threads",
        "1",
        "--conditions",
        "batch-4",
    ]
    return ["essays", *arguments]


def count_lines(folder: Path, pattern: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(pattern))


def test_essays_ended_at_any_moment_are_the_same(writing: list[str], tmp_path: Path) -> None:
    """Interrupted, killed, with a torn last line, and with a second run beside."""
    one, two = tmp_path / "one", tmp_path / "two"
    whole = bench(*writing, "--out", str(one))
    assert whole.returncode == 0, whole.stderr
    assert re.fullmatch(r"exactlm bench: \S+ writes \S+\n", whole.stderr)  # and no bar, where no terminal is
    (expected,) = (path.read_bytes() for path in one.glob("essays-*"))
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also where the caller ignores it
        "import sys; from exactlm.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "bench", *writing, "--out", str(two)]
    slow = {**os.environ, "EXACTLM_ISA": "reference"}  # the same bytes in many times the time
    for number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        before = count_lines(two, "*.part")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=slow)
        end = time.monotonic() + 60
        while count_lines(two, "*.part") < max(before, 1) + 1 and time.monotonic() < end:
            time.sleep(0.005)
        try:
            if before == 0:
                second = bench(*writing, "--out", str(two))
                assert (second.returncode, "another run is writing it" in second.stderr) == (2, True), second.stderr
            process.send_signal(number)
            _, told = process.communicate(timeout=30)
        finally:
            process.kill()
        assert (process.returncode, "Traceback" in told) == (status, False), told
        assert max(before, 1) < count_lines(two, "*.part") < 21
        assert not list(two.glob("essays-*.jsonl"))
    (part,) = two.glob("*.part")
    part.write_bytes(part.read_bytes()[:-5])
    done = bench(*writing, "--out", str(two))
    assert done.returncode == 0, done.stderr
    assert "essays, 20 items" in done.stdout
    (found,) = (path.read_bytes() for path in two.glob("essays-*"))
    assert found == expected


def test_another_limit_goes_on(writing: list[str], tmp_path: Path) -> None:
    """Of essays only those asked for are written. The table, the JSON and the bar say how many were asked."""
    arguments = [*writing, "--out", str(tmp_path / "out")]
    digests, answers = set(), b""
    for limit, num_essays in ((3, 3), (6, 6), (4, 6)):
        result = result_of(*arguments, "--limit", str(limit))
        digests.add(result["items_sha256"])
        assert result["num_items"] == result["engines"][0]["conditions"]["batch-4"]["num_items"] == limit
        assert count_lines(tmp_path / "out", "essays-*.jsonl") == num_essays
        (records,) = (tmp_path / "out" / "essays").glob("*.jsonl")
        assert records.read_bytes().startswith(answers)
        answers = records.read_bytes()
    assert len(digests) == 1
    table = bench(*arguments, "--limit", "5")
    assert "essays, 5 items" in table.stdout
    assert "%" not in table.stderr
    master, slave = os.openpty()
    command = [sys.executable, "-m", "exactlm", "bench", *arguments, "--limit", "8"]
    told = b""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave, env={**os.environ, "TERM": "xterm"}):
        os.close(slave)
        with contextlib.suppress(OSError):  # the terminal's end
            while block := os.read(master, 4096):
                told += block
    os.close(master)
    assert b"writes essays" in told
    assert b"%" in told


def test_tables_are_of_what_was_asked_whatever_else_is_there(common: list[str], tmp_path: Path) -> None:
    small = [*common, "--conditions", "alone,batch-4", "--limit", "5", "--spread-limit", "2"]
    first = result_of(*small)
    assert result_of(*common, "--conditions", "batch-4,alone")["engines"][0]["spread"]["num_items"] == 12
    again = result_of(*small)
    assert [r["engines"][0]["conditions"]["alone"]["num_items"] for r in (first, again)] == [5, 5]
    assert [r["engines"][0]["conditions"]["batch-4"]["num_items"] for r in (first, again)] == [2, 2]
    assert [r["engines"][0]["spread"]["num_items"] for r in (first, again)] == [2, 2]
    assert first["items_sha256"] == again["items_sha256"]


def test_a_change_of_data_is_refused(common: list[str], data: Path) -> None:
    """Also of an item that was not asked; the same data then go on."""
    arguments = [*common, "--conditions", "alone", "--limit", "3"]
    assert bench(*arguments).returncode == 0
    path = data / "contracts" / "3.txt"
    before = path.read_bytes()
    path.write_bytes(before + b".")
    refused = bench(*arguments)
    assert (refused.returncode, "items_sha256 differ" in refused.stderr) == (2, True), refused.stderr
    path.write_bytes(before)
    assert bench(*arguments).returncode == 0


def test_an_essay_that_was_changed_is_refused(writing: list[str], tmp_path: Path) -> None:
    arguments = [*writing, "--limit", "3", "--out", str(tmp_path / "out")]
    assert bench(*arguments).returncode == 0
    (path,) = (tmp_path / "out").glob("essays-*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["essay"] += "!"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = bench(*arguments)
    assert (refused.returncode, "item 1 was another one" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["contracts", "--engine", "vllm:x"], ["vllm:x", "exactlm:DIR"]),
        (["contracts", "--engine", "exactlm:nowhere"], ["nowhere"]),
        (["contracts", "--engine", "{engine}", "--data", "nowhere"], ["nowhere", "--data"]),
        (["contracts", "--engine", "{engine}", "--conditions", "noise"], ["noise", "batch-32"]),
        (["contracts", "--engine", "{engine}", "--limit", "0"], ["--limit 0"]),
        (["boolq", "--engine", "{engine}", "--data", "{data}"], ["boolq_val.jsonl"]),
        (["essays", "--engine", "torch:."], ["--essays"]),
        (["essays", "--engine", "{engine}", "--data", "{data}"], ["mt_bench_question.jsonl"]),
        (["essays", "--engine", "{engine}", "--conditions", "noise"], ["noise"]),  # before anything is written
        (["nothing", "--engine", "{engine}"], ["nothing"]),
        (["contracts", "--engine", "torch:.", "--conditions", "cached"], ["torch:.", "no condition is left"]),
    ],
)
def test_errors_name_the_value_and_exit_with_2(
    tiny_model: Path, data: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    named = {"{engine}": f"exactlm:{tiny_model}", "{data}": str(data)}
    given = [named.get(a, a) for a in arguments]
    if "--data" not in given:
        given += ["--data", str(data)]
    done = bench(*given, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("gsm8k-steps", "gsm8k_test.jsonl", "KeyError('answer')"),
        ("boolq", "boolq_val.jsonl", "KeyError('passage')"),
        ("mbpp", "mbpp.jsonl", "no item"),
    ],
)
def test_data_of_another_form_are_told(tiny_model: Path, tmp_path: Path, name: str, file: str, words: str) -> None:
    (tmp_path / file).write_text('{"question": "q", "task_id": 1}\n')
    done = bench(name, "--engine", f"exactlm:{tiny_model}", "--data", str(tmp_path), "--unsafe")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert done.stderr.startswith(f"exactlm bench: {name}: ")
    assert words in done.stderr


def test_code_runs_isolated_or_not_at_all(tiny_model: Path, tmp_path: Path) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def add(a, b):\n", "entry_point": "add", "test": "def check(f): pass"}
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    fake = tmp_path / "bin" / "unshare"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    arguments = [
        "humaneval",
        "--engine",
        f"exactlm:{tiny_model}",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "o"),
    ]
    refused = bench(*arguments, "--conditions", "alone", PATH=path)
    assert refused.returncode == 2
    assert "--unsafe" in refused.stderr
    allowed = bench(*arguments, "--conditions", "alone", "--unsafe", PATH=path)
    assert allowed.returncode == 0, allowed.stderr


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return Sandbox()
    except ConfigError as error:
        pytest.skip(f"no namespaces for this user: {error}")


def test_solutions_of_the_authors_pass(sandbox: Sandbox) -> None:
    """And the same ones with another function's body do not."""
    source = DataSource(data_file("HumanEval.jsonl.gz").parent)
    human = HumanEval(source, sandbox)
    items = human.load()
    assert len(items) == 164
    for item in items[::8]:
        solution = "\n" + item.reference["canonical_solution"]
        assert human.judge(item, Answer(None, solution, "")).label == "passes", item.id
        assert human.judge(item, Answer(None, "\n    return None", "")).label == "compiles", item.id
    basic = Mbpp(source, sandbox)
    tasks = basic.load()
    assert len(tasks) == 500
    for item in tasks[::40]:
        assert basic.judge(item, Answer(None, item.reference["code"], "")).label == "passes", item.id
        assert basic.judge(item, Answer(None, tasks[0].reference["code"], "")).label != "passes" or item is tasks[0]


def test_steps_of_the_data_are_half_wrong() -> None:
    task = Gsm8kSteps(DataSource(data_file("gsm8k_test.jsonl").parent))
    items = task.load()
    assert len(items) > 1200
    share = sum(item.reference == "yes" for item in items) / len(items)
    assert 0.45 < share < 0.55


@pytest.mark.model
def test_real_model_has_no_spread(model_path: Path, tmp_path: Path) -> None:
    folder = data_file("boolq_val.jsonl").parent
    arguments = ["--data", str(folder), "--out", str(tmp_path), "--limit", "4", "--threads", "1"]
    result = result_of("boolq", "--engine", f"exactlm:{model_path}", *arguments, "--conditions", "alone,batch-4,cached")
    (engine,) = result["engines"]
    assert engine["spread"]["num_items"] == 4
    assert engine["spread"]["num_changed"] == 0
    assert 0.05 < engine["conditions"]["alone"]["mean_value"] < 0.95


@pytest.mark.model
def test_essays_are_written_once_with_stated_seeds(tmp_path: Path) -> None:
    data_file("mt_bench_question.jsonl")
    row = {"question_id": 81, "category": "writing", "turns": ["Write one sentence about rain."]}
    (tmp_path / "mt_bench_question.jsonl").write_text(json.dumps(row) + "\n")
    engine = f"exactlm:{model_directory('int8')}"
    arguments = ["essays", "--engine", engine, "--data", str(tmp_path), "--limit", "3", "--threads", "1"]
    arguments += ["--conditions", "batch-4,alone"]
    first = result_of(*arguments, "--out", str(tmp_path / "one"))
    second = result_of(*arguments, "--out", str(tmp_path / "two"))
    assert first["items_sha256"] == second["items_sha256"]
    (essays,) = (tmp_path / "one").glob("essays-*.jsonl")
    texts = [json.loads(line)["essay"] for line in essays.read_text().splitlines()]
    assert len(texts) == len(set(texts)) == 3
    assert 1 < first["engines"][0]["conditions"]["batch-4"]["mean_value"] < 5
    assert first["engines"][0]["spread"]["num_changed"] == 0
