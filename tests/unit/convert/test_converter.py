"""Conversion is reproducible byte for byte, shows its progress, and leaves a whole model or nothing."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactlm import convert_to_deterministic
from exactlm.convert import converter as converter_module
from exactlm.convert.checkpoint import open_checkpoint
from exactlm.errors import CheckpointError, ConfigError, FormatError, UnsupportedError
from exactlm.format.reader import open_model
from tests.tiny import write_checkpoint
from tests.unit.convert.gguf_file import write_gguf

CONVERT = """
import sys
from exactlm import convert_to_deterministic
convert_to_deterministic(sys.argv[1], precision=sys.argv[3]).save_pretrained(sys.argv[2])
"""


def digests(model: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(model.iterdir())}


def convert_elsewhere(source: Path, target: Path, precision: str, **environment: str) -> dict[str, str]:
    """Converts in a process with another environment."""
    command = [sys.executable, "-c", CONVERT, str(source), str(target), precision]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, **environment}, cwd=target.parent)
    return digests(target)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_every_file_has_the_same_bytes_again(kind: str, precision: str, tmp_path: Path) -> None:
    """Whatever the threads, the hash seed, the locale, the time zone, the place and order of the directory."""
    if kind == "hf":
        source = write_checkpoint(tmp_path / "hf", "bias", "bfloat16", sharded=True)
    else:
        source = write_gguf(tmp_path / "m.gguf", "bias", "Q4_0")
    first = digests(convert_to_deterministic(source, precision=precision).save_pretrained(tmp_path / "a"))
    assert set(first) == {
        "config.json", "manifest.json", "model.safetensors", "text.json", "tokenizer.json", "chat_template.jinja",
    } - ({"chat_template.jinja"} if kind == "gguf" else set())  # fmt: skip
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "UTC"}
    assert convert_elsewhere(source, tmp_path / "b", precision, **one) == first
    four = {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4", "PYTHONHASHSEED": "77", "LC_ALL": "tr_TR.UTF-8"}
    (tmp_path / "other place").mkdir()
    elsewhere = {**four, "TZ": "Asia/Kathmandu", "PYTHONUTF8": "0", "RAYON_NUM_THREADS": "3"}
    assert convert_elsewhere(source, tmp_path / "other place" / "ü", precision, **elsewhere) == first


def test_order_of_directory_entries_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "hf", sharded=True)
    first = digests(convert_to_deterministic(source).save_pretrained(tmp_path / "a"))
    glob, iterdir = Path.glob, Path.iterdir

    def backward_glob(self: Path, pattern: str) -> Iterator[Path]:
        return iter(sorted(glob(self, pattern), reverse=True))

    def backward(self: Path) -> Iterator[Path]:
        return iter(sorted(iterdir(self), reverse=True))

    monkeypatch.setattr(Path, "glob", backward_glob)
    monkeypatch.setattr(Path, "iterdir", backward)
    assert digests(convert_to_deterministic(source).save_pretrained(tmp_path / "b")) == first


def test_no_file_tells_where_or_when(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "secret-place")
    model = convert_to_deterministic(source).save_pretrained(tmp_path / "out")
    for path in model.iterdir():
        raw = path.read_bytes()
        assert b"secret-place" not in raw, path.name
        assert str(tmp_path).encode() not in raw, path.name
        assert time.strftime("%Y-%m-%d").encode() not in raw, path.name
    for name in ("config.json", "manifest.json"):  # spec/format.md 1
        text = (model / name).read_text(encoding="utf-8")
        assert text == json.dumps(json.loads(text), sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def test_options_change_the_digest(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf", "window")
    options = ({}, {"precision": "int8"}, {"kv_cache": "int8"}, {"attention_window": 8})
    found = set()
    for i, option in enumerate(options):
        found.add(open_model(convert_to_deterministic(source, **option).save_pretrained(tmp_path / str(i))).fingerprint)
    assert len(found) == len(options)


def test_report_says_what_was_done(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf", dtype="bfloat16")
    converter = convert_to_deterministic(source, precision="int8")
    model = open_model(converter.save_pretrained(tmp_path / "out"))
    report = model.manifest["report"]
    assert {k: converter.report[k] for k in report} == report
    assert report["tensors"]["layers.0.qkv"]["sources"] == {
        f"model.layers.0.self_attn.{p}_proj.weight": "BF16" for p in "qkv"
    }
    assert 1e-4 < report["tensors"]["layers.0.qkv"]["relative_error"] < 1e-2
    assert report["tensors"]["final_norm"] == {
        "exact": True,
        "sources": {"model.norm.weight": "BF16"},
        "stored": "F32",
    }
    files = {n: hashlib.sha256((source / n).read_bytes()).hexdigest() for n in sorted(os.listdir(source))}
    assert model.manifest["source"] == {"kind": "huggingface", "files": files}


@pytest.mark.parametrize(
    ("option", "kind", "message"),
    [
        ({"precision": "fp8"}, UnsupportedError, "precision='fp8'.*fp16, int8"),
        ({"precision": None}, UnsupportedError, "precision=None"),
        ({"kv_cache": "int4"}, UnsupportedError, "kv_cache='int4'"),
        ({"quant_method": "gptq"}, UnsupportedError, "quant_method='gptq'"),
        ({"attention_window": 0}, ConfigError, "attention_window=0"),
        ({"attention_window": -1}, ConfigError, "attention_window=-1"),
        ({"attention_window": True}, ConfigError, "attention_window=True"),
        ({"attention_window": "8"}, ConfigError, "attention_window='8'"),
        ({"attention_window": 2.5}, ConfigError, r"attention_window=2\.5"),
        ({"attention_window": 1 << 40}, ConfigError, "attention_window=1099511627776"),
        ({"attention_window": 25}, ConfigError, "wider than the model's own 24"),
    ],
)
def test_bad_options_are_refused(
    option: dict[str, object], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    source = write_checkpoint(tmp_path / "hf", "window")
    with pytest.raises(kind, match=message):
        convert_to_deterministic(source, **option)  # type: ignore[arg-type]


def test_progress_is_shown_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "hf")
    convert_to_deterministic(source).save_pretrained(tmp_path / "a", progress=False)
    convert_to_deterministic(source).save_pretrained(tmp_path / "b")  # standard error is no terminal here
    assert capsys.readouterr() == ("", "")
    convert_to_deterministic(source).save_pretrained(tmp_path / "c", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "converting" in err
    assert "15/15 tensors" in err


def test_existing_target(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf")
    converter = convert_to_deterministic(source)
    first = digests(converter.save_pretrained(tmp_path / "out"))
    with pytest.raises(FormatError, match="exists already"):
        converter.save_pretrained(tmp_path / "out")
    assert digests(tmp_path / "out") == first
    again = convert_to_deterministic(source, precision="int8").save_pretrained(tmp_path / "out", overwrite=True)
    assert digests(again) != first
    with pytest.raises(FormatError, match="is not an exactlm model"):
        converter.save_pretrained(source, overwrite=True)
    assert (source / "model.safetensors").is_file()
    assert sorted(os.listdir(tmp_path)) == ["hf", "out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("overwrite", [False, True])
def test_interrupted_in_the_middle(
    error: type[BaseException], overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path / "hf")
    before = digests(convert_to_deterministic(source).save_pretrained(tmp_path / "out")) if overwrite else {}
    real, calls = converter_module.store_matrix, []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise error
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(converter_module, "store_matrix", interrupted)
    with pytest.raises(error):
        convert_to_deterministic(source, precision="int8").save_pretrained(tmp_path / "out", overwrite=overwrite)
    assert len(calls) == 4
    assert sorted(os.listdir(tmp_path)) == (["hf", "out"] if overwrite else ["hf"])
    if overwrite:
        assert digests(tmp_path / "out") == before


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the caller ignores it
from exactlm import convert_to_deterministic
from exactlm.convert import converter
real = converter.store_matrix
def slow(*arguments):
    print("working", flush=True)
    time.sleep(0.2)
    return real(*arguments)
converter.store_matrix = slow
convert_to_deterministic(sys.argv[1]).save_pretrained(sys.argv[2])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_in_the_middle(number: signal.Signals, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf")
    command = [sys.executable, "-c", SLOW, str(source), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        process.stdout.read()
    assert process.returncode != 0
    assert not (tmp_path / "out").exists()
    if number == signal.SIGINT:
        assert sorted(os.listdir(tmp_path)) == ["hf"]
    # What a kill leaves behind is hidden, and in nobody's way.
    convert_to_deterministic(source).save_pretrained(tmp_path / "out")
    assert all(is_sound for _, is_sound in open_model(tmp_path / "out").verify())


def test_hub_without_the_extra_or_the_network_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"org/name: no such file or directory.*pip install 'exactlm\[hub\]'"):
        open_checkpoint("org/name")
    (tmp_path / "huggingface_hub.py").write_text(
        "def snapshot_download(name, **options):\n"
        "    assert options['revision'] == 'v2'\n"
        "    raise ConnectionError('cannot reach the hub\\nlong explanation')\n"
    )
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match=r"org/name: .*\(cannot reach the hub\)\. Offline\? Download it"):
        open_checkpoint("org/name", revision="v2")
