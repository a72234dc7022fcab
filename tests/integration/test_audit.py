"""exactlm audit as a user meets it: known noise is found, none is invented, ours shows none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from exactlm.audit.condition import Wave, Workload
from exactlm.audit.endpoint import EndpointTarget
from exactlm.audit.model import ModelTarget
from exactlm.audit.prompt import load_prompts
from exactlm.audit.target import Answer
from exactlm.cli import main
from tests.unit.audit.toy import Behaviour, expect, serve

FEW = ("--limit", "2", "--max-tokens", "6", "--repeats", "1", "--concurrency", "3,16")


@pytest.fixture(autouse=True)
def _waves_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy server is told how many requests come at once, and answers none before all are there."""
    fire = EndpointTarget.fire

    def announce(target: EndpointTarget, wave: Wave) -> list[Answer]:
        expect(len(wave))
        return fire(target, wave)

    monkeypatch.setattr(EndpointTarget, "fire", announce)


def told(html: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and the report's JSON."""
    status = main(["audit", *FEW, *arguments, "-o", str(html)])
    return status, json.loads(html.with_suffix(".json").read_text())


def changed(report: dict[str, Any], what: str) -> dict[str, int]:
    """How many prompts changed, by condition; those that must change or are another computation left out."""
    kept = [c for c in report["conditions"] if c["condition"]["role"] in ("base", "load")]
    return {c["condition"]["name"]: c[what]["count"] for c in kept}


def test_a_constant_engine_shows_nothing(tmp_path: Path) -> None:
    with serve(Behaviour()) as url:
        status, report = told(tmp_path / "a.html", url)
    assert (status, report["verdict"], report["num_failed"], report["seed_ignored"]) == (0, "same", 0, False)
    assert set(changed(report, "texts").values()) == {0}
    assert {c["max_spread"] for c in report["conditions"] if c["max_spread"] is not None} == {0}
    (control,) = [c for c in report["conditions"] if c["condition"]["role"] == "control"]
    assert control["texts"]["count"] == 2
    assert "threads" in {entry["factor"] for entry in report["unvaried"]}


def test_noise_under_load_is_found_where_it_is(tmp_path: Path) -> None:
    html = tmp_path / "a.html"
    with serve(Behaviour(noise="load")) as url:
        status, report = told(html, url)
    assert (status, report["verdict"]) == (1, "different")
    counts = changed(report, "texts")
    assert {
        counts[name] for name in ("base", "repeated", "other order", "after its first half", "streamed", "same seed")
    } == {0}
    assert {counts[name] for name in ("16 at once", "8 copies at once", "streamed, 8 at once")} == {2}
    found = {c["condition"]["name"]: c for c in report["conditions"]}
    assert (found["16 at once"]["first"], found["16 at once"]["unit"]) == (3, "token")
    assert found["16 at once"]["max_unique"] > 1
    page = re.sub("</?mark>", "", html.read_text())
    assert "The same prompt got different answers" in page
    assert " noise" in page


@pytest.mark.parametrize(("noise", "verdict"), [("always", "different"), ("number", "numbers")])
def test_noise_that_needs_no_load(tmp_path: Path, noise: str, verdict: str) -> None:
    with serve(Behaviour(noise=noise)) as url:
        status, report = told(tmp_path / "a.html", url, "--vary", "repeat,order")
    assert (status, report["verdict"]) == (1, verdict)
    assert changed(report, "numbers") == {"base": 0, "repeated": 2, "other order": 2}


def test_an_ignored_seed_is_told(tmp_path: Path) -> None:
    html = tmp_path / "a.html"
    with serve(Behaviour(heeds_seed=False)) as url:
        status, report = told(html, url, "--vary", "seed")
    assert (status, report["verdict"], report["seed_ignored"]) == (0, "same", True)
    assert "seems to ignore seeds" in html.read_text()


def test_failures_are_counted_and_told(tmp_path: Path) -> None:
    with serve(Behaviour(fails_every=9)) as url:
        status, report = told(tmp_path / "a.html", url, "--vary", "repeat,order,copies")
    assert (status, report["verdict"]) == (1, "incomplete")
    assert report["num_failed"] > 0
    messages = {m for c in report["conditions"] for m in c["failures"]}
    assert messages
    assert all("status 500" in message for message in messages)


def test_our_model_shows_nothing(tiny_model: Path, tmp_path: Path) -> None:
    status, report = told(tmp_path / "a.html", str(tiny_model), "--threads", "1")
    assert (status, report["verdict"], report["num_failed"], report["seed_ignored"]) == (0, "same", 0, False)
    numbers = changed(report, "numbers")
    assert set(numbers.values()) == {0}
    assert {"16 at once", "7 threads", "full memory", "plain loop", "n-gram drafts", "chunks of 7"} <= set(numbers)
    assert all(c["numbers"]["total"] == 2 for c in report["conditions"])  # numbers were there to compare


def test_cold_is_cold(tiny_model: Path, tmp_path: Path) -> None:
    """Under `cold` nothing of a prompt was cached; elsewhere only the prompts' own tokens are counted."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{word} and so on, {'on and on, ' * 20}\n" for word in ("ash", "bay")))
    arguments = ("--threads", "1", "--vary", "repeat,cache,neighbour", "--prompts", str(prompts))
    status, report = told(tmp_path / "a.html", str(tiny_model), *arguments)
    counts = {c["condition"]["name"]: c["note"].get("cached prompt tokens") for c in report["conditions"]}
    assert status == 0
    assert (counts["base"], counts["cold"], counts["no prefix cache"]) == (None, 0, 0)
    assert 0 < counts["after its first half"] < counts["after nearly all of it"] <= counts["repeated"]
    assert counts["neighbours"] == counts["repeated"]  # the neighbours repeat themselves, too: not counted


@pytest.mark.parametrize("threads", [1, 7, 14])
def test_conditions_of_a_model_have_names_of_their_own(tiny_model: Path, threads: int) -> None:
    target = ModelTarget(str(tiny_model), threads)
    conditions = target.conditions(Workload(load_prompts(limit=1)))
    target.close()
    assert len({c.name for c in conditions}) == len(conditions)
    counts = [c.setup["threads"] for c in conditions if "threads" in c.setup]
    assert len({threads, *counts}) == 3


def test_the_prompts_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for end in (".json", ".jsonl"):
        prompts = (tmp_path / "mine").with_suffix(end)
        prompts.write_text('{"prompt": "a"}\n')
        arguments = ["nowhere", "--prompts", str(prompts), "-o", str(tmp_path / "mine.html"), "--restart"]
        assert main(["audit", *arguments]) == 2
        assert "which holds the prompts" in capsys.readouterr().err
        assert prompts.read_text() == '{"prompt": "a"}\n'


def test_memory_runs_full(tiny_model: Path, tmp_path: Path) -> None:
    arguments = ("--threads", "1", "--vary", "memory", "--max-tokens", "40")
    status, report = told(tmp_path / "a.html", str(tiny_model), *arguments)
    (memory,) = [c for c in report["conditions"] if c["condition"]["name"] == "full memory"]
    assert (status, memory["numbers"]["count"]) == (0, 0)
    assert memory["note"]["preemptions"] > 0


def test_goes_on_from_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "a.html"
    record, arguments = html.with_suffix(".jsonl"), ("--vary", "repeat,order,cache")
    with serve(Behaviour()) as url:
        whole = told(html, url, *arguments)
        lines = record.read_bytes().splitlines(keepends=True)
        record.write_bytes(b"".join(lines[: lines.index(b'{"done": "repeated"}\n') + 1]))
        assert told(html, url, *arguments) == whole
        assert len(record.read_bytes().splitlines()) == len(lines)
        assert main(["audit", *FEW, url, *arguments, "--seed", "8", "--max-tokens", "5", "-o", str(html)]) == 2
    assert "--restart" in capsys.readouterr().err


def test_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "a.html"
    with serve(Behaviour(noise="always")) as url:
        assert told(html, url, "--vary", "repeat")[0] == 1
        printed = capsys.readouterr().out.splitlines()
        _, report = told(html, url, "--vary", "repeat", "--json")
    assert printed[0].split("  ")[0] == "condition"
    assert printed[2].startswith("repeated")
    assert "2 of 2" in printed[2]
    assert printed[-1] == f"verdict: different; report: {html}"
    assert json.loads(capsys.readouterr().out) == report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere"),
        (("http://127.0.0.1:9",), "is the server running"),
        (("nowhere", "-o", "a.txt"), ".html"),
        (("nowhere", "--vary", "weather"), "weather"),
        (("nowhere", "--concurrency", "0"), "--concurrency 0"),
        (("nowhere", "--limit", "0"), "--limit 0"),
        (("nowhere", "--temperature", "0"), "--temperature"),
        (("nowhere", "--seed", "-1"), "--seed -1"),
        (("nowhere", "--seed", str(2**64 - 1)), "--seed 18446744073709551615"),
        (("http://127.0.0.1:9", "--timeout", "-1"), "--timeout -1"),
        (("http://127.0.0.1:9", "--timeout", "nan"), "--timeout nan"),
        (("nowhere", "--score-regex", "("), "--score-regex ("),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *arguments]) == 2
    assert message in capsys.readouterr().err
