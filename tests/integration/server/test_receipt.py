"""Receipts over HTTP: for who asks, signed with a key, and in the ledger before the answer's last bytes."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM
from exactlm.cli import main
from exactlm.proof.ledger import Ledger
from exactlm.proof.verify import verify_receipts
from exactlm.receipt import Receipt
from exactlm.signature import write_key
from tests.integration.server.process import CHAT, COMPLETION, ServerProcess

ASK = {"exactlm": {"receipt": True}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETION, {"prompt": "the thing in the hand", "max_tokens": 12}),
    (COMPLETION, {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 6, "n": 2, "temperature": 0.9, "seed": 2**64 - 1}),
    (COMPLETION, {"prompt": "and the", "max_tokens": 9, "stop": ["e"], "logit_bias": {"5": 2}, "echo": True}),
    (COMPLETION, {"prompt": "x", "max_tokens": 0}),
    (COMPLETION, {"prompt": "some", "max_tokens": 9, "regex": "[a-f]{3,6}", "logprobs": 2}),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 1.1}),
    (
        CHAT,
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "!"}]}],
            "tools": [{"function": {"name": "f", "parameters": {"maximum": 1.5}}, "type": "function"}],
            "chat_template_kwargs": {"mood": "calm"},
            "max_completion_tokens": 5,
            "n": 3,
        },
    ),
]


class Signed:
    """A server with a ledger and a key."""

    def __init__(self, running: ServerProcess, path: Path, public_key: str) -> None:
        self.server, self.path, self.public_key = running, path, public_key

    def entries(self) -> list[Receipt]:
        with Ledger.open(self.path, can_create=False) as ledger:
            assert ledger.verify().is_sound
            return [receipt for entry in ledger.entries() if (receipt := entry.receipt) is not None]


@pytest.fixture(scope="module")
def signed(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    folder = tmp_path_factory.mktemp("ledger")
    public_key = write_key(folder / "key.pem")
    options = ["--ledger", str(folder / "a.db"), "--sign-key", str(folder / "key.pem")]
    with ServerProcess(served_model, *options) as running:
        yield Signed(running, folder / "a.db", public_key)


def check(llm: LLM, receipts: list[Receipt], public_key: str | None = None) -> None:
    verdicts = list(verify_receipts(llm, receipts, public_key=public_key))
    assert [v for v in verdicts if not v.is_identical] == []


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_who_asks_gets_receipts(server: ServerProcess, llm: LLM, path: str, body: dict[str, Any]) -> None:
    reply = server.post(path, {**body, **ASK}).json
    receipts = reply["exactlm"]["receipts"]
    assert [r["output"]["digest"] for r in receipts] == reply["exactlm"]["digests"]
    assert len(receipts) == len(reply["choices"])
    assert all(r["signature"] is None for r in receipts)
    check(llm, receipts)
    seeded = {**body, "seed": reply["exactlm"]["seed"]} if reply["exactlm"]["seed"] is not None else body
    last = server.stream(path, {**seeded, **ASK}).events[-1]
    assert last["exactlm"]["receipts"] == receipts
    assert "receipts" not in server.post(path, body).json["exactlm"]
    assert "receipts" not in server.post(path, {**body, "exactlm": {"receipt": False}}).json["exactlm"]


def test_a_receipt_knows_text_and_conversation(server: ServerProcess) -> None:
    asked = [BODIES[0], BODIES[1], BODIES[6]]
    replies = [server.post(path, {**body, **ASK}).json for path, body in asked]
    text, ids, chat = (reply["exactlm"]["receipts"][0]["request"] for reply in replies)
    assert (text["text"], text["chat"]) == ("the thing in the hand", None)
    assert (ids["text"], ids["chat"], ids["prompt_token_ids"]) == (None, None, [5, 6, 7])
    assert chat["text"] is None
    assert json.loads(chat["chat"]["template_kwargs"]) == {"mood": "calm"}
    assert json.loads(chat["chat"]["tools"])[0]["function"]["name"] == "f"


@pytest.mark.parametrize("value", [{"receipt": 1}, {"receipts": True}, True, []])
def test_a_wrong_option_is_refused(server: ServerProcess, value: Any) -> None:
    reply = server.post(COMPLETION, {"prompt": "x", "exactlm": value})
    assert reply.status == 400
    assert reply.error["param"].startswith("exactlm")


def test_every_answer_is_in_the_ledger(signed: Signed, llm: LLM) -> None:
    before = len(signed.entries())
    digests: list[str] = []
    for path, body in BODIES:
        digests += signed.server.post(path, body).json["exactlm"]["digests"]
        # It was durable before the last bytes came: no waiting here.
        assert [r["output"]["digest"] for r in signed.entries()[before:]] == digests
        digests += signed.server.stream(path, body).events[-1]["exactlm"]["digests"]
        assert [r["output"]["digest"] for r in signed.entries()[before:]] == digests
    receipts = signed.entries()[before:]
    check(llm, receipts, signed.public_key)
    reply = signed.server.post(COMPLETION, {"prompt": "last", **ASK}).json
    assert reply["exactlm"]["receipts"] == [signed.entries()[-1]]
    assert signed.server.post(COMPLETION, {"prompt": []}).status == 400
    assert signed.entries()[-1] == reply["exactlm"]["receipts"][0]


def test_many_at_once_are_all_there(signed: Signed) -> None:
    digests: list[str] = []
    lock = threading.Lock()

    def ask(number: int) -> None:
        body = {"prompt": [number + 1, 2], "max_tokens": 4, "n": 1 + number % 2, "temperature": 1, "seed": number}
        call = signed.server.stream if number % 3 else signed.server.post
        reply = call(COMPLETION, body)
        told = reply.events[-1] if number % 3 else reply.json
        with lock:
            digests.extend(told["exactlm"]["digests"])

    before = len(signed.entries())
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 36
    assert sorted(r["output"]["digest"] for r in signed.entries()[before:]) == sorted(digests)


def test_kill_loses_no_answer_that_came_whole(served_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    digests: list[str] = []
    with ServerProcess(served_model, "--ledger", str(path)) as running:
        for number in range(20):
            digests += running.post(COMPLETION, {"prompt": [number + 1], "max_tokens": 2}).json["exactlm"]["digests"]
        running.process.kill()
        running.wait()
    with Ledger.open(path) as ledger:
        assert ledger.verify().is_sound
        assert [(e.receipt or {})["output"]["digest"] for e in ledger.entries()] == digests


def test_an_answer_that_cannot_be_recorded_is_an_error(served_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ServerProcess(served_model, "--ledger", str(path)) as running:
        assert running.post(COMPLETION, {"prompt": "x"}).status == 200
        with sqlite3.connect(path) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON exactlm_ledger BEGIN SELECT RAISE(ABORT, 'full'); END")
        other.close()
        reply = running.post(COMPLETION, {"prompt": "x"})
        assert (reply.status, reply.error["code"]) == (503, "not_recorded")
        assert str(path) not in reply.error["message"]
        assert "and so is withheld" in reply.error["message"]
        name = reply.headers["x-request-id"]
        running.wait_for_output(f"request {name}: the answer cannot be recorded now, and so is withheld: {path}: full")
        events = running.stream(COMPLETION, {"prompt": "x", "max_tokens": 300, "ignore_eos": True}).events
        assert len(events) > 2
        assert events[-1]["error"]["code"] == "not_recorded"
        told = "what was sent of the answer is not recorded, and the rest is withheld"
        assert told in events[-1]["error"]["message"]
        running.wait_for_output(f"request {events[0]['id']}: {told}: {path}: full")
        assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
        with sqlite3.connect(path) as other:
            other.execute("DROP TRIGGER full")
        other.close()
        assert running.post(COMPLETION, {"prompt": "x"}).status == 200
        running.wait_until_idle()
    with Ledger.open(path) as ledger:
        assert ledger.verify().num_entries == 2


def test_of_a_damaged_model_no_receipt_is_made(served_model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "model"
    shutil.copytree(served_model, damaged)
    data = bytearray((damaged / "model.safetensors").read_bytes())
    data[-100] ^= 1
    (damaged / "model.safetensors").write_bytes(data)
    with ServerProcess(damaged) as running:
        for stream in (False, True):
            reply = running.post(COMPLETION, {"prompt": "x", "stream": stream, **ASK})
            assert (reply.status, reply.error["code"]) == (503, "damaged_model")
            assert str(tmp_path) not in reply.error["message"]
            told = reply.error["message"].removeprefix("no receipt can be made of this model: ")
            tensor = told.removesuffix(" is not what manifest.json says; convert the checkpoint again")
            assert tensor in json.loads((damaged / "manifest.json").read_text())["tensors"]
            running.wait_for_output(
                f"request {reply.headers['x-request-id']}: no receipt can be made: {damaged}: {told}"
            )
        assert "Traceback" not in running.output
        assert running.post(COMPLETION, {"prompt": "x"}).status == 200
        running.wait_until_idle()


def test_a_receipt_holds_numbers_that_its_canonical_form_could_not(server: ServerProcess) -> None:
    big = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"mood": 2**60}, "max_tokens": 1}
    (receipt,) = server.post(CHAT, {**big, **ASK}).json["exactlm"]["receipts"]
    assert json.loads(receipt["request"]["chat"]["template_kwargs"]) == {"mood": 2**60}


def test_the_request_log_has_no_receipts(signed: Signed, served_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with ServerProcess(served_model, "--request-log", str(log)) as running:
        running.post(COMPLETION, {"prompt": "secret", **ASK})
    (line,) = log.read_text().splitlines()
    assert "secret" not in line
    assert "receipts" not in json.loads(line)["exactlm"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--ledger", "no/such/folder/a.db"), "no/such/folder/a.db"),
        (("--ledger", "mysql://host/x"), "mysql"),
        (("--sign-key", "no/such/key.pem"), "no/such/key.pem"),
    ],
)
def test_wrong_options_are_told(
    served_model: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], reason: str
) -> None:
    assert main(["serve", str(served_model), "--port", "0", *options]) == 2
    assert reason in capsys.readouterr().err
