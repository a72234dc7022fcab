"""Data are found in the folder named, and what is wrong with them is said by file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from exactlm.bench.data import HUB_SETS, DataSource, read_rows
from exactlm.errors import ConfigError


def test_plain_and_compressed_rows_are_the_same(tmp_path: Path) -> None:
    text = '{"a": "\u2028"}\n\n{"a": 2}'.encode()
    (tmp_path / "rows.jsonl").write_bytes(text)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(text))
    assert read_rows(tmp_path / "rows.jsonl") == [{"a": "\u2028"}, {"a": 2}]
    assert read_rows(tmp_path / "rows.jsonl.gz") == [{"a": "\u2028"}, {"a": 2}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}\n{"a"', "line 2 is not JSON"),
        (b'{"a": 1}\n{"a": "\\ud800"}', "line 2 is not JSON .*surrogates"),
        (b'{"a": NaN}', "line 1 is not JSON"),
        (b'{"a": ' + b"[" * 100_000, "line 1 is not JSON"),
        (b"[1]\n", "line 1 is no JSON object"),
        (b"\n\n", "no rows"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_rows(path)
    assert str(path) in str(caught.value)


def test_compressed_files_that_are_cut_or_broken_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress(b'{"a": 1}\n')
    for content in (whole[:-4], whole[:10] + b"\xff" * 20, b"plain"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"rows\.jsonl\.gz: cannot be read"):
            read_rows(path)


def test_folder_comes_from_the_option_then_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLM_DATA", "/elsewhere")
    assert DataSource(tmp_path).folder == tmp_path
    assert DataSource().folder == Path("/elsewhere")
    monkeypatch.setenv("EXACTLM_DATA", "")
    assert DataSource().folder is None


def test_contracts_need_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both errors say what the folder must look like, and how to name it."""
    monkeypatch.delenv("EXACTLM_DATA", raising=False)
    wanted = r"\.txt file into DIR/contracts/, and give --data DIR or set EXACTLM_DATA=DIR"
    with pytest.raises(ConfigError, match=rf"^contracts: no folder of data is named, and the hub .*{wanted}"):
        DataSource().read_texts("contracts")
    (tmp_path / "c.txt").write_text("one level too high")
    with pytest.raises(ConfigError, match=rf"/contracts: no \.txt files there: .*{wanted}"):
        DataSource(tmp_path).read_texts("contracts")
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "c.txt").write_text("Made on May 3, 2011.")
    assert DataSource(tmp_path).read_texts("contracts") == [("c", "Made on May 3, 2011.")]
    monkeypatch.setenv("EXACTLM_DATA", str(tmp_path))
    assert DataSource().read_texts("contracts") == [("c", "Made on May 3, 2011.")]


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        (
            "boolq_val.jsonl",
            {"question": "q", "answer": True, "passage": "p"},
            {"question": "q", "passage": "p", "label": True},
        ),
        (
            "mt_bench_question.jsonl",
            {"prompt": ["a", "b"], "reference": [], "category": "writing", "prompt_id": 81},
            {"question_id": 81, "category": "writing", "turns": ["a", "b"]},
        ),
        ("gsm8k_test.jsonl", {"question": "q", "answer": "a"}, {"question": "q", "answer": "a"}),
    ],
)
def test_rows_of_the_hub_become_rows_of_the_files(name: str, row: dict, expected: dict) -> None:
    assert HUB_SETS[name].convert(row) == expected
