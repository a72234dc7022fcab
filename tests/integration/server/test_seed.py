"""Seeds: honoured to the last bit or refused; told when drawn; nobody else's business."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from exactlm import LLM, SamplingParams
from tests.integration.server.process import CHAT, COMPLETION, ServerProcess

BODY = {"prompt": "the thing", "max_tokens": 12, "temperature": 1.0, "ignore_eos": True}


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**64 - 1])
def test_a_seed_is_used_whole(server: ServerProcess, llm: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True)
    expected = llm.generate(["the thing"], params)[0].outputs[0]
    told = server.post(COMPLETION, {**BODY, "seed": seed}).json["exactlm"]
    assert (told["digests"], told["seed"]) == ([expected.digest], seed)


def test_no_two_seeds_are_the_same(server: ServerProcess) -> None:
    seeds = [0, 2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64 - 1]
    digests = {server.post(COMPLETION, {**BODY, "seed": s}).json["exactlm"]["digests"][0] for s in seeds}
    assert len(digests) == len(seeds)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_drawn_seed_is_told_and_gives_the_answer_again(server: ServerProcess, path: str) -> None:
    body = {**BODY, "n": 2}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    first = server.post(path, body).json["exactlm"]
    streamed = server.stream(path, {**body, "seed": first["seed"]}).events[-1]["exactlm"]
    assert streamed["digests"] == first["digests"]
    assert streamed["seed"] == first["seed"]
    assert server.post(path, body).json["exactlm"]["seed"] != first["seed"]


def test_prompts_of_one_request_share_the_drawn_seed(server: ServerProcess) -> None:
    body = {**BODY, "prompt": ["the", "and", "so"]}
    told = server.post(COMPLETION, body).json["exactlm"]
    alone = [
        server.post(COMPLETION, {**BODY, "prompt": prompt, "seed": told["seed"]}).json["exactlm"]["digests"][0]
        for prompt in body["prompt"]
    ]
    assert told["digests"] == alone


def test_neighbours_without_a_seed_change_nothing(server: ServerProcess) -> None:
    seeded = {**BODY, "seed": 5, "n": 3, "max_tokens": 60}
    alone = server.post(COMPLETION, seeded).json["exactlm"]["digests"]
    with ThreadPoolExecutor(8) as pool:
        bodies = [seeded, BODY, {**BODY, "temperature": 0}, {**BODY, "n": 4}] * 4
        made = list(pool.map(lambda body: server.post(COMPLETION, body).json["exactlm"], bodies))
    assert all(told["digests"] == alone for told in made[::4])


def test_the_greedy_answer_has_no_seed_of_its_own(server: ServerProcess) -> None:
    made = [server.post(COMPLETION, {**BODY, "temperature": 0, "seed": s}).json["exactlm"] for s in (None, 3)]
    assert [told["seed"] for told in made] == [None, 3]
    assert made[0]["digests"] == made[1]["digests"]
