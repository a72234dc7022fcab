"""Receipts on the command line: made by run, signed with a key of keygen, and checked by verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM, SamplingParams
from exactlm.cli import main
from exactlm.receipt import Receipt, digest_of


class Command:
    """Runs commands, and keeps what the last one printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        status = main([str(argument) for argument in arguments])
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def receipts(tiny_model: Path) -> list[Receipt]:
    params = SamplingParams(max_tokens=4)
    outputs = LLM(tiny_model, threads=1).generate([[5, 6, i] for i in range(10)], params, receipt=True)
    return [receipt for output in outputs if (receipt := output.outputs[0].receipt) is not None]


@pytest.fixture
def file(tmp_path: Path, receipts: list[Receipt]) -> Path:
    """Ten receipts, of which the fourth claims another first token."""
    wrong = json.loads(json.dumps(receipts[3]))
    wrong["output"]["token_ids"][0] ^= 1
    wrong["digest"] = digest_of(wrong)
    path = tmp_path / "receipts.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in [*receipts[:3], wrong, *receipts[4:]]))
    return path


def test_a_receipt_is_made_signed_and_confirmed(command: Command, tiny_model: Path, tmp_path: Path) -> None:
    key, made = tmp_path / "key.pem", tmp_path / "a.json"
    assert command("keygen", key) == 0
    public = command.out.strip()
    assert command("keygen", key) == 2  # never over a key
    assert str(key) in command.err
    run = ("run", tiny_model, "the thing", "--max-tokens", 6, "--threads", 1)
    assert command(*run, "--receipt", made, "--sign-key", key) == 0
    text = command.out
    assert command(*run) == 0
    assert command.out == text
    assert command("verify", made, tiny_model, "--signed", "--public-key", public.upper(), "--threads", 1) == 0
    assert command.out == "identical\n"
    assert command("verify", made, tiny_model, "--public-key", "00" * 32) == 1
    assert command.out.startswith("receipt 0: signature differs: signed by ")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_what_differs_is_named(command: Command, tiny_model: Path, file: Path, receipts: list[Receipt]) -> None:
    assert command("verify", file, tiny_model) == 1
    first, last = command.out.splitlines()
    token = receipts[3]["output"]["token_ids"][0]
    assert first == f"receipt 3: token_ids differs at token 0: token 0 is {token}, the receipt says {token ^ 1}"
    assert last == "9 of 10 identical"
    assert command("verify", file, tiny_model, "--json") == 1
    told: dict[str, Any] = json.loads(command.out)
    assert (told["identical"], told["checked"], told["of"]) == (False, 10, 10)
    assert [r["index"] for r in told["receipts"] if not r["identical"]] == [3]
    assert command("verify", file, tiny_model, "--signed") == 1
    assert "0 of 10 identical" in command.out


def test_a_share_is_drawn_again_by_its_seed(command: Command, tiny_model: Path, file: Path) -> None:
    seen = []
    for seed in (1, 1, 2, 3):
        command("verify", file, tiny_model, "--sample", "30%", "--sample-seed", seed, "--json")
        told = json.loads(command.out)
        assert (told["checked"], told["of"]) == (3, 10)
        seen.append([r["index"] for r in told["receipts"]])
        assert told["identical"] == (3 not in seen[-1])
    assert seen[0] == seen[1]
    assert len({tuple(indices) for indices in seen}) > 1
    command("verify", file, tiny_model, "--sample", "0.1%")
    assert "of 1 identical (drawn from 10)" in command.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("none.json",), "none.json"),
        (("FILE", "--sample", "0%"), "--sample 0%"),
        (("FILE", "--sample", "nan"), "--sample nan"),
        (("FILE", "--sample", "half"), "--sample half"),
        (("FILE", "--public-key", "abc"), "--public-key abc"),
    ],
)
def test_wrong_usage(command: Command, tiny_model: Path, file: Path, arguments: tuple[str, ...], reason: str) -> None:
    given = [file if word == "FILE" else word for word in arguments]
    assert command("verify", given[0], tiny_model, *given[1:]) == 2
    assert reason in command.err
    assert command("run", tiny_model, "x", "--sign-key", "key.pem") == 2
    assert "--receipt" in command.err


def test_a_receipt_that_finds_no_room_is_not_called_different(
    command: Command, tiny_model: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=40)
    long = LLM(tiny_model, threads=1).generate([[5, 6]], params, receipt=True)[0].outputs[0].receipt
    lines = file.read_text().splitlines()
    monkeypatch.setattr("exactlm.cli.verify.open_llm", lambda options: LLM(tiny_model, threads=1, kv_tokens=32))
    file.write_text("\n".join([lines[0], json.dumps(long)]))
    assert command("verify", file, tiny_model) == 2
    assert command.out.startswith("receipt 1: not checked: 42 tokens are needed")
    assert command.out.endswith("1 of 2 identical\n")
    file.write_text("\n".join([lines[3], json.dumps(long)]))
    assert command("verify", file, tiny_model, "--json") == 1
    told = json.loads(command.out)
    assert (told["checked"], told["of"]) == (1, 2)
    assert [(v["identical"], v["is_checked"]) for v in told["receipts"]] == [(False, True), (False, False)]
