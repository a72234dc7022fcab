"""Streams that end before their end, on a server with a ledger: what was sent is in it, and holds as any answer."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM, convert_to_deterministic
from exactlm.proof.ledger import Ledger
from exactlm.proof.verify import verify_receipts
from exactlm.receipt import Receipt
from exactlm.signature import write_key
from tests import tiny
from tests.integration.server.process import CHAT, COMPLETION, LASTING, SLOW, ServerProcess, read_reply, wait_for

SENT = {"Content-Type": "application/json"}
LONG = {"max_tokens": 7000, "ignore_eos": True, "return_token_ids": True}
SCHEMA = {"type": "array", "items": {"type": "string", "minLength": 40}, "minItems": 40}
GUIDED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETION, {"prompt": "the thing in the hand", "stop": ["never said"]}),
    "drawn": (COMPLETION, {"prompt": [[5, 6, 7], [8, 9]], "n": 2, "temperature": 1.2, "logprobs": 1}),
    "chat": (CHAT, {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.9, "top_p": 0.9}),
    "guided": (CHAT, {"messages": [{"role": "user", "content": "hi"}], "response_format": GUIDED}),
}


class Recorded:
    """A server with a ledger, a key, and a request log."""

    def __init__(self, running: ServerProcess, folder: Path, public_key: str) -> None:
        self.server, self.ledger, self.log, self.public_key = running, folder / "a.db", folder / "log", public_key

    def receipts(self) -> list[Receipt]:
        """All in the ledger, when nothing is under way."""
        self.server.wait_until_idle()
        return read_ledger(self.ledger)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def read_ledger(path: Path) -> list[Receipt]:
    with Ledger.open(path, can_create=False) as ledger:
        assert ledger.verify().is_sound
        return [receipt for entry in ledger.entries() if (receipt := entry.receipt) is not None]


@pytest.fixture(scope="module")
def judge(lasting_model: Path) -> LLM:
    return LLM(lasting_model, threads=1)


@pytest.fixture(scope="module")
def recorded(lasting_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("early")
    public_key = write_key(folder / "key.pem")
    options = ["--ledger", str(folder / "a.db"), "--sign-key", str(folder / "key.pem")]
    with ServerProcess(lasting_model, *SLOW, *options, "--request-log", str(folder / "log")) as running:
        yield Recorded(running, folder, public_key)


class Heard:
    """What a client has heard of each choice of a stream, by index."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.token_ids: dict[int, list[int]] = {}
        self.num_events = 0

    def take(self, line: bytes) -> None:
        """Takes a line of the stream."""
        if not line.startswith(b"data: {"):
            return
        self.num_events += 1
        for choice in json.loads(line.removeprefix(b"data: ")).get("choices", []):
            index, text = choice["index"], choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.texts[index] = self.texts.get(index, "") + text
            self.token_ids.setdefault(index, []).extend(choice.get("token_ids", []))

    def check(self, index: int, receipt: Receipt) -> None:
        """That the receipt's answer begins with what was heard."""
        output = receipt["output"]
        assert output["text"].startswith(self.texts[index])
        assert output["token_ids"][: len(self.token_ids[index])] == self.token_ids[index]
        assert len(output["token_ids"]) == len(receipt["steps"]) <= receipt["sampling"]["max_tokens"]
        if output["finish_reason"] == "length":
            assert receipt["sampling"]["max_tokens"] == len(output["token_ids"])


def listen(server: ServerProcess, path: str, body: dict[str, Any], num_events: int) -> Heard:
    """Hears so many events of a stream, and leaves."""
    heard = Heard()
    with server.open_stream(path, body) as lines:
        for line in lines:
            heard.take(line)
            if heard.num_events >= num_events:
                break
    return heard


def check(judge: LLM, receipts: list[Receipt], public_key: str | None = None) -> None:
    verdicts = list(verify_receipts(judge, receipts, public_key=public_key))
    assert len(verdicts) == len(receipts)
    assert [v for v in verdicts if not v.is_identical] == []


@pytest.mark.parametrize("kind", list(BODIES))
@pytest.mark.parametrize("num_events", [8, 20, 55])
def test_who_leaves_finds_a_receipt_of_what_came(recorded: Recorded, judge: LLM, kind: str, num_events: int) -> None:
    path, body = BODIES[kind]
    before = len(recorded.receipts())
    gone = recorded.server.metrics().get(f'exactlm_requests_total{{endpoint="{path}",status="499"}}', 0)
    heard = listen(recorded.server, path, {**LONG, **body}, num_events)
    receipts = recorded.receipts()[before:]
    assert len(receipts) == len(heard.token_ids) == (4 if kind == "drawn" else 1)
    assert all(ids for ids in heard.token_ids.values())
    for index, receipt in enumerate(receipts):
        heard.check(index, receipt)
        assert receipt["output"]["finish_reason"] == "length"
    check(judge, receipts, recorded.public_key)
    last = recorded.lines()[-1]
    assert (last["status"], last["finish_reasons"], last["usage"]) == (499, [], None)
    assert recorded.server.metrics()[f'exactlm_requests_total{{endpoint="{path}",status="499"}}'] == gone + 1


def test_what_nobody_was_told_is_not_recorded(recorded: Recorded) -> None:
    before = len(recorded.receipts())
    server = recorded.server
    for body in ({"prompt": "the", **LONG}, {"prompt": "the", **LONG, "stream": True, "echo": True, "logprobs": 1}):
        with closing(server.connect()) as leaving:
            made = server.metric("exactlm_generated_tokens_total")
            leaving.request("POST", COMPLETION, json.dumps(body), SENT)
            server.wait_for_metric("exactlm_generated_tokens_total", made + 5)
        server.wait_until_idle()
    assert len(recorded.receipts()) == before


def test_who_leaves_in_the_queue_leaves_nothing(lasting_model: Path, judge: LLM, tmp_path: Path) -> None:
    options = ("--ledger", str(tmp_path / "a.db"), "--max-batch", "1")
    with ServerProcess(lasting_model, *SLOW, *options) as running:
        with running.open_stream(COMPLETION, {**LONG, "prompt": "the"}) as lines:
            heard = Heard()
            while heard.num_events < 3:
                heard.take(next(lines))
            with closing(running.connect()) as leaving:
                body = {**LONG, "prompt": "a", "stream": True}
                leaving.request("POST", COMPLETION, json.dumps(body), SENT)
                running.wait_for_metric("exactlm_queue_length", 1)
        running.wait_until_idle()
        (receipt,) = read_ledger(tmp_path / "a.db")
    heard.check(0, receipt)
    check(judge, [receipt])


def test_a_stream_whose_time_is_over_is_recorded_before_that_is_told(
    lasting_model: Path, judge: LLM, tmp_path: Path
) -> None:
    options = ("--request-seconds", "2", "--ledger", str(tmp_path / "a.db"), "--request-log", str(tmp_path / "log"))
    with ServerProcess(lasting_model, *SLOW, *options) as running:
        whole = threading.Thread(target=running.post, args=(COMPLETION, LASTING))
        whole.start()
        heard = Heard()
        events = running.stream(COMPLETION, {**LASTING, "return_token_ids": True, "n": 2}).events
        receipts = read_ledger(tmp_path / "a.db")  # no waiting: this is after the last byte
        whole.join()
        assert events[-1]["error"]["code"] == "request_timeout"
        for event in events:
            heard.take(b"data: " + json.dumps(event).encode())
        running.wait_until_idle()
        assert read_ledger(tmp_path / "a.db") == receipts
    assert len(receipts) == 2
    for index, receipt in enumerate(receipts):
        assert len(heard.token_ids[index]) > 2
        heard.check(index, receipt)
    check(judge, receipts)
    assert [json.loads(line)["status"] for line in (tmp_path / "log").read_text().splitlines()] == [408, 408]


def test_streams_that_a_shutdown_ends_are_recorded(lasting_model: Path, judge: LLM, tmp_path: Path) -> None:
    options = ("--grace-seconds", "0.3", "--ledger", str(tmp_path / "a.db"), "--request-log", str(tmp_path / "log"))
    heard = [Heard() for _ in range(3)]

    def hear(number: int) -> None:
        with running.open_stream(COMPLETION, {**LONG, "prompt": [number + 1, 7]}) as lines:
            for line in lines:
                heard[number].take(line)

    with ServerProcess(lasting_model, *SLOW, *options) as running, closing(running.connect()) as waiting:
        waiting.request("POST", COMPLETION, json.dumps(LASTING), SENT)
        threads = [threading.Thread(target=hear, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: all(h.num_events > 3 for h in heard))
        running.process.send_signal(signal.SIGTERM)
        assert read_reply(waiting).status == 503
        for thread in threads:
            thread.join()
        assert running.wait() == 0
    receipts = {r["request"]["prompt_token_ids"][0]: r for r in read_ledger(tmp_path / "a.db")}
    assert sorted(receipts) == [1, 2, 3]
    for number, told in enumerate(heard):
        told.check(0, receipts[number + 1])
    check(judge, list(receipts.values()))
    assert [json.loads(line)["status"] for line in (tmp_path / "log").read_text().splitlines()] == [503] * 4
    assert "Traceback" not in running.output


def test_a_ledger_that_fails_then_is_named_in_the_log(lasting_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ServerProcess(lasting_model, *SLOW, "--ledger", str(path)) as running:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON exactlm_ledger BEGIN SELECT RAISE(ABORT, 'full'); END")
        other.close()
        listen(running, COMPLETION, {**LONG, "prompt": "the"}, 5)
        running.wait_for_output(f"what was sent of it is not recorded: {path}: full")
        with sqlite3.connect(path) as other:
            other.execute("DROP TRIGGER full")
        other.close()
        running.wait_until_idle()
        listen(running, COMPLETION, {**LONG, "prompt": "the"}, 5)
        running.wait_until_idle()
    assert len(read_ledger(path)) == 1


def test_an_answer_that_nothing_could_follow_is_recorded(tmp_path: Path) -> None:
    """A model without an end token cannot end a text that a grammar has ended: the stream fails, after the text."""
    source = tiny.write_checkpoint(tmp_path / "source")
    for name in ("config.json", "tokenizer_config.json"):
        told = json.loads((source / name).read_text())
        tiny.write_json(source / name, {k: v for k, v in told.items() if not k.startswith("eos_token")})
    model = convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False)
    with ServerProcess(model, "--ledger", str(tmp_path / "a.db"), *SLOW) as running:
        body = {"prompt": "the", "regex": "[a-f]{90}", "max_tokens": 100}
        events = running.stream(COMPLETION, body).events
        assert "no token is allowed" in events[-1]["error"]["message"]
        (receipt,) = read_ledger(tmp_path / "a.db")
    assert receipt["output"]["text"] == "".join(c["text"] for e in events[:-1] for c in e["choices"])
    assert len(receipt["output"]["text"]) == 90
    check(LLM(model, threads=1), [receipt])


class Client(threading.Thread):
    """Asks for streams of its own, and leaves most of them at some moment."""

    def __init__(self, server: ServerProcess, number: int, count: int) -> None:
        super().__init__()
        self._server, self._number, self._count = server, number, count
        self._choose = random.Random(number)
        self.heard: dict[tuple[int, ...], Heard] = {}
        self.digests: dict[tuple[int, ...], list[str]] = {}  # of what it heard to the end

    def run(self) -> None:
        for turn in range(self._count):
            prompt = [self._number + 1, turn + 1, *self._choose.choices(range(400), k=self._choose.randrange(40))]
            body: dict[str, Any] = {"prompt": prompt, "n": self._choose.choice([1, 1, 3]), "return_token_ids": True}
            body |= {"max_tokens": self._choose.choice([5, 30, 300]), "ignore_eos": True}
            body |= self._choose.choice([{}, {"temperature": 1.1}, {"stop": ["e"]}, {"regex": "[a-f ]{40,}"}])
            heard = self.heard[tuple(prompt)] = Heard()
            limit = self._choose.choice([0, 1, 2, 5, 20, 10**6])
            with self._server.open_stream(COMPLETION, body) as lines:
                for line in lines:
                    heard.take(line)
                    if b'"digests"' in line:
                        told = json.loads(line.removeprefix(b"data: "))
                        self.digests[tuple(prompt)] = told["exactlm"]["digests"]
                    if heard.num_events >= limit:
                        break


@pytest.mark.parametrize("options", [(), ("--speculation", "ngram", "--max-batch", "5", "--kv-tokens", "1024")])
def test_of_many_that_leave_at_any_moment_each_finds_its_receipt(
    lasting_model: Path, judge: LLM, tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = tmp_path / "a.db"
    with ServerProcess(lasting_model, "--ledger", str(path), *options) as running:
        clients = [Client(running, number, 8) for number in range(16)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        running.wait_until_idle()
        receipts = read_ledger(path)
    assert "Traceback" not in running.output
    found: dict[tuple[int, ...], dict[int, Receipt]] = {}
    for receipt in receipts:
        choices = found.setdefault(tuple(receipt["request"]["prompt_token_ids"]), {})
        assert choices.setdefault(receipt["sampling"]["choice"], receipt) is receipt  # one of each
    num_left = 0
    for client in clients:
        assert len(client.heard) == 8
        for prompt, heard in client.heard.items():
            for index, ids in heard.token_ids.items():
                if ids or heard.texts[index]:
                    heard.check(index, found[prompt][index])
                    num_left += prompt not in client.digests
        for prompt, digests in client.digests.items():
            assert [found[prompt][i]["output"]["digest"] for i in range(len(digests))] == digests
    assert num_left > 20
    assert sum(len(client.digests) for client in clients) > 10
    check(judge, receipts)
