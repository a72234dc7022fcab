"""The command line as a user meets it: outputs, exit statuses, errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exactlm import LLM, SamplingParams
from tests import tiny


def exactlm(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exactlm", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_convert_info_run(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "model"
    made = exactlm("convert", str(source), "-o", str(target), "--json")
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)
    info = exactlm("info", str(target), "--json")
    assert info.returncode == 0, info.stderr
    assert json.loads(info.stdout)["fingerprint"] == report["fingerprint"]
    assert json.loads(info.stdout)["damaged"] == []
    text = exactlm("info", str(target))
    assert report["fingerprint"] in text.stdout
    assert "all as the manifest says" in text.stdout
    ran = exactlm("run", str(target), "the thing", "--max-tokens", "5", "--json")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    expected = LLM(target).generate("the thing", SamplingParams(max_tokens=5))[0]
    assert answer["digest"] == expected.outputs[0].digest
    assert answer["fingerprint"] == report["fingerprint"]
    plain = exactlm("run", str(target), "-", "--max-tokens", "5", stdin="the thing")
    assert plain.stdout == expected.outputs[0].text + "\n"


def test_every_instruction_set_and_thread_count_prints_the_same(tiny_model: Path) -> None:
    from exactlm.kernels.select import available_isas

    outputs = {
        exactlm(
            "run", str(tiny_model), "the thing", "--max-tokens", "4", "--json", EXACTLM_ISA=isa, EXACTLM_THREADS=n
        ).stdout
        for isa in available_isas()
        for n in ("1", "3")
    }
    assert len(outputs) == 1
    assert "digest" in outputs.pop()


def test_a_conversation_is_that_of_the_python_interface(tiny_model: Path) -> None:
    llm, params = LLM(tiny_model), SamplingParams(max_tokens=5)
    first = llm.chat([{"role": "user", "content": "the thing"}], params)[0].outputs[0].text
    history = [
        {"role": "user", "content": "the thing"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "and so"},
    ]
    second = llm.chat(history, params)[0].outputs[0].text
    lines = "the thing\n\nand so\n/reset\nthe thing\n/nothing\n/exit\nnever\n"
    chat = exactlm("chat", str(tiny_model), "--max-tokens", "5", stdin=lines)
    assert (chat.returncode, chat.stdout) == (0, f"{first}\n{second}\n{first}\n")
    assert chat.stderr == "/nothing is not a command; /reset begins anew, /exit ends\n"


@pytest.mark.parametrize("arguments", [("run", "{model}", "-"), ("chat", "{model}")])
def test_input_that_is_no_text_is_told(tiny_model: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "exactlm", *(a.replace("{model}", str(tiny_model)) for a in arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    told = subprocess.run(command, input=b"a\xff\n", capture_output=True, env=environment, timeout=120)
    assert told.returncode == 2
    assert b"standard input is not text in utf-8" in told.stderr
    assert b"Traceback" not in told.stderr


def test_existing_targets_are_kept_unless_told(source: Path, tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    refused = exactlm("convert", str(source), "-o", str(copy))
    assert refused.returncode == 2
    assert str(copy) in refused.stderr
    assert "--overwrite" in refused.stderr
    assert exactlm("convert", str(source), "-o", str(copy), "--overwrite").returncode == 0
    other = tmp_path / "precious"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    kept = exactlm("convert", str(source), "-o", str(other), "--overwrite")
    assert kept.returncode == 2
    assert (other / "thesis.txt").read_text() == "years of work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "precious"]


def test_info_finds_a_changed_byte(tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    found = exactlm("info", str(copy))
    assert found.returncode == 1
    assert "DAMAGED" in found.stdout
    cut = copy / "model.safetensors"
    cut.write_bytes(bytes(data[:-1]))
    shorter = exactlm("info", str(copy))
    assert shorter.returncode == 2
    assert str(len(data)) in shorter.stderr
    assert str(len(data) - 1) in shorter.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere", "x"], ["nowhere"]),
        (["convert", "nowhere.gguf", "-o", "out"], ["nowhere.gguf", "no such file"]),
        (["convert", "someone/some-model", "-o", "out"], ["someone/some-model"]),
        (["run", "{model}", ""], ["no tokens"]),
        (["run", "{model}", "x", "--temperature", "-0.5"], ["temperature=-0.5"]),
        (["run", "{model}", "x", "--max-tokens", "-1"], ["max_tokens=-1"]),
        (["run", "{model}", "x", "--max-tokens", "100000"], ["100000", "512"]),
        (["run", "{model}", "x", "--isa", "mmx"], ["mmx"]),
        (["run", "{model}", "x", "--threads", "0"], ["threads=0"]),
    ],
)
def test_errors_name_the_value_and_exit_with_2(tiny_model: Path, arguments: list[str], words: list[str]) -> None:
    result = exactlm(*(a.replace("{model}", str(tiny_model)) for a in arguments), HF_HUB_OFFLINE="1")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_an_output_that_is_not_utf8_gets_escapes(tiny_model: Path) -> None:
    arguments = ("run", str(tiny_model), "the thing", "--max-tokens", "60", "--json")
    ran = exactlm(*arguments, PYTHONIOENCODING="ascii")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == json.loads(exactlm(*arguments, PYTHONIOENCODING="utf-8").stdout)
    assert "\\u" in ran.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_no_answer(tmp_path: Path, tiny_model: Path, unbuffered: str) -> None:
    """Exit status 0 and 1 are answers of `verify`: identical, and not."""
    (tmp_path / "odd.json").write_text("{}")
    command = [sys.executable, "-m", "exactlm", "verify", str(tmp_path / "odd.json"), str(tiny_model)]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert ended.returncode == 2
    assert re.fullmatch(r"exactlm verify: .*No space left on device\n", ended.stderr)
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (closed.returncode, closed.stderr) == (1, "")


@pytest.mark.parametrize("command", [[], ["convert"], ["run"], ["chat"], ["info"]])
def test_help_has_examples(command: list[str]) -> None:
    result = exactlm(*command, "--help")
    assert result.returncode == 0
    assert "examples:" in result.stdout


def test_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    source = tiny.write_checkpoint(tmp_path / "source")
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also where the caller ignores it
        "import sys, time, exactlm.convert.converter as c\n"
        "real = c.store_matrix\n"
        "def slow(*a):\n    print('working', flush=True); time.sleep(30); return real(*a)\n"
        "c.store_matrix = slow\n"
        "from exactlm.cli import main; sys.exit(main(['convert', sys.argv[1], '-o', sys.argv[2]]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(tmp_path / "model")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in errors
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_a_changed_weight_is_refused_on_request_and_for_receipts(tiny_model: Path, tmp_path: Path) -> None:
    copy, made = tmp_path / "model", str(tmp_path / "a.json")
    shutil.copytree(tiny_model, copy)
    run = ("run", str(copy), "the thing", "--max-tokens", "3")
    arguments = [(*run, "--verify"), (*run, "--receipt", made), ("verify", made, str(copy))]
    for given in arguments:
        assert exactlm(*given).returncode == 0
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-100] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    for given in arguments:
        refused = exactlm(*given)
        assert refused.returncode == 2
        assert "is not what manifest.json says" in refused.stderr
    assert exactlm(*run).returncode == 0


def test_wrong_options_are_told_with_the_usage_of_the_command(tiny_model: Path) -> None:
    result = exactlm("run", str(tiny_model), "x", "--top-q", "0.9")
    assert result.returncode == 2
    assert "usage: exactlm run" in result.stderr
    assert "--top-q" in result.stderr


def test_files_and_finished_models_are_told_apart(source: Path, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    assert f"exactlm convert {file} -o x-exactlm" in exactlm("run", str(file), "x").stderr
    again = exactlm("convert", str(tiny_model), "-o", str(tmp_path / "again"))
    assert again.returncode == 2
    assert "is an exactlm model already" in again.stderr


def test_a_drawn_answer_tells_its_seed_and_comes_again(tiny_model: Path) -> None:
    drawn = ("run", str(tiny_model), "the thing", "--temperature", "1.5", "--top-p", "0.9", "--max-tokens", "12")
    first = exactlm(*drawn)
    assert first.returncode == 0
    (seed,) = re.findall(r"--seed (\d+)", first.stderr)
    again = exactlm(*drawn, "--seed", seed)
    assert (again.stdout, again.stderr) == (first.stdout, "")
    told = json.loads(exactlm(*drawn, "--seed", seed, "--json").stdout)
    assert (told["text"] + "\n", told["seed"]) == (first.stdout, int(seed))
    assert exactlm(*drawn, "--seed", str(int(seed) + 1)).stdout != first.stdout
