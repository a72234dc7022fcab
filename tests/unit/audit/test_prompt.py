"""Where prompts come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exactlm.audit.prompt import load_prompts
from exactlm.errors import ConfigError
from tests.conftest import data_file


def test_built_in_lengths_differ() -> None:
    lengths = [len(p.text) for p in load_prompts()]
    assert len(set(lengths)) == len(lengths) == 8
    assert max(lengths) > 30 * min(lengths)


def test_files(tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("one\n\n  two\n")
    assert [p.text for p in load_prompts(str(text))] == ["one", "  two"]
    rows = tmp_path / "prompts.jsonl"
    made = [{"prompt": "a\nb"}, {"passage": "P", "question": "is it"}, {"turns": ["first", "second"]}]
    rows.write_text("\n".join(json.dumps(row) for row in made))
    assert [p.text for p in load_prompts(str(rows))] == ["a\nb", "P\nQuestion: is it?\nAnswer:", "first"]
    assert len(load_prompts(str(rows), limit=2)) == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "{}", "line 1"),
        ("a.jsonl", '{"prompt": 1}', "line 1"),
        ("a.jsonl", '{"prompt": "x"}\nnot', "line 2.*not JSON"),
        ("a.jsonl", '{"prompt": "\\ud800"}', "line 1.*surrogates"),
        ("a.jsonl", "[" * 100_000, "line 1.*recursion"),
        ("a.txt", "\n", "no prompt"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_prompts(str(path))


def test_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no\.txt"):
        load_prompts(str(tmp_path / "no.txt"))
    monkeypatch.delenv("EXACTLM_DATA", raising=False)
    with pytest.raises(ConfigError, match="--data"):
        load_prompts("boolq")


def test_data_sets() -> None:
    folder = str(data_file("boolq_val.jsonl").parent)
    assert load_prompts("boolq", folder, 3)[0].text.endswith("?\nAnswer:")
    assert len(load_prompts("mt_bench", folder)) == 80
