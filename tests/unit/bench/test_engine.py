"""Engine specs, and worker processes: what they answer, and what is said when they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exactlm import LLM, SamplingParams
from exactlm.bench.condition import CONDITIONS, read_conditions
from exactlm.bench.engine import WorkerEngine, read_engine
from exactlm.bench.question import Choice, Completion
from exactlm.bench.worker.protocol import cut, digest_ids, option_ids
from exactlm.errors import ConfigError, FormatError


def test_worker_gives_the_model_s_own_answers(tiny_model: Path) -> None:
    engine = read_engine(f"exactlm:{tiny_model}", {})
    llm = LLM(tiny_model)
    prompts = ["the thing", "and so on, and", "ring"]
    with engine.open(CONDITIONS["batch-4"], 1) as session:
        assert session.facts["fingerprint"] == llm.fingerprint == engine.identity
        chosen, seconds = session.ask([Choice(p, (" a", " b", " zz"[:2])) for p in prompts])
        written, _ = session.ask([Completion(p, 12, ("q",)) for p in prompts])
        memory = session.memory()
    assert seconds > 0
    assert 0 < memory["private"] <= memory["resident"] <= memory["peak"]
    for prompt, answer, text in zip(prompts, chosen, written, strict=True):
        ids = llm.tokenizer.encode(prompt)
        expected = [llm.score([*ids, *llm.tokenizer.encode(o)])[-1] for o in (" a", " b", " z")]
        assert list(answer.scores or ()) == expected
        assert answer.prompt_sha256 == text.prompt_sha256 == digest_ids(ids)
        plain = llm.generate_plain(prompt, SamplingParams(max_tokens=12, stop=("q",)))
        assert text.text == plain.outputs[0].text


def test_failed_question_is_an_error_that_names_it(tiny_model: Path) -> None:
    with read_engine(f"exactlm:{tiny_model}", {}).open(CONDITIONS["alone"], 1) as session:
        with pytest.raises(ConfigError, match="' xyzzy' is not one token"):
            session.ask([Choice("the", (" a", " xyzzy"))])
        with pytest.raises(ConfigError, match="600"):
            session.ask([Completion("the", 600)])
        answers, _ = session.ask([Choice("the", (" a",))])  # it lives on
        assert answers[0].scores is not None


@pytest.mark.parametrize(
    ("python", "words"), [("/nowhere/python", "cannot be run"), ("/bin/false", "ended with status 1")]
)
def test_bad_interpreter_is_named(tiny_model: Path, python: str, words: str) -> None:
    engine = WorkerEngine("torch:x", "torch", tiny_model, "float32", python, "")
    with pytest.raises(ConfigError, match=words):
        engine.open(CONDITIONS["alone"], 1)


def test_a_worker_that_dies_in_the_middle_of_a_line_is_named(tiny_model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "python"
    cut.write_text("#!/bin/sh\nprintf '{\"facts\": {'\nexit 7\n")
    cut.chmod(0o755)
    engine = WorkerEngine("torch:x", "torch", tiny_model, "float32", str(cut), "")
    with pytest.raises(ConfigError, match="ended with status 7"):
        engine.open(CONDITIONS["alone"], 1)


def test_interpreter_without_the_peer_says_what_is_missing(tiny_model: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "python"
    hidden.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    hidden.chmod(0o755)
    engine = WorkerEngine("llama.cpp:x", "llama.cpp", tiny_model, "float32", str(hidden), "")
    with pytest.raises(ConfigError, match="No module named 'llama_cpp'"):
        engine.open(CONDITIONS["alone"], 1)


@pytest.mark.parametrize(
    "spec", ["", "exactlm", "exactlm:", "vllm:x", "torch:x:int4", "llama.cpp:nowhere.gguf", "torch:nowhere"]
)
def test_bad_specs_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        read_engine(spec, {})


def test_specs(tmp_path: Path, tiny_model: Path) -> None:
    engine = read_engine(f"torch:{tmp_path}:bfloat16", {"torch": "t", "": "p"})
    assert (engine.kind, engine.model, engine.dtype, engine.python) == ("torch", tmp_path, "bfloat16", "t")
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert read_engine(f"llama.cpp:{tmp_path / 'm.gguf'}", {"torch": "t", "": "p"}).python == "p"
    assert read_engine(f"torch:{tmp_path}", {}).dtype == "float32"
    assert read_engine(f"exactlm:{tiny_model}", {"": "p"}).python == sys.executable
    with pytest.raises(FormatError):
        read_engine(f"exactlm:{tmp_path}", {})


def test_conditions_by_name() -> None:
    assert [c.name for c in read_conditions("batch-4, alone")] == ["batch-4", "alone"]
    assert [c.name for c in read_conditions(None)] == list(CONDITIONS)
    for names in ("", "alone,", "Alone", "alone,alone"):
        with pytest.raises(ConfigError, match="--conditions"):
            read_conditions(names)


def test_stops_and_options() -> None:
    assert cut("abcabc", ["ca", "b"]) == ("a", True)
    assert cut("abc", ["d"]) == ("abc", False)
    question = {"prompt": "p", "options": ["x", "y"]}
    assert option_ids(lambda text: [ord(c) for c in text], question) == ([112], [120, 121])
    with pytest.raises(ValueError, match="'xy' is not one token"):
        option_ids(lambda text: [ord(c) for c in text], {"prompt": "p", "options": ["xy"]})
    with pytest.raises(ValueError, match="'y' is not one token"):  # merged into the prompt's last token
        option_ids(lambda text: [len(text)], {"prompt": "p", "options": ["y"]})
