"""The `openai` client: what it gets is what the Python interface gives, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from exactlm import LLM, SamplingParams
from tests.integration.load.server import capacity
from tests.integration.server.process import ServerProcess

MESSAGES = [{"role": "user", "content": "the other thing"}]
MODEL = "tiny"
PROMPTS = ["the thing", "and so"]


class Verdict(pydantic.BaseModel):
    """What the structured answers hold."""

    model_config = pydantic.ConfigDict(extra="forbid")

    is_right: bool
    count: int = pydantic.Field(ge=0, le=9)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as connected:
        yield connected


def extension(response: Any) -> dict[str, Any]:
    extra = response.model_extra
    assert extra is not None
    told: dict[str, Any] = extra["exactlm"]
    return told


def test_models_name_the_served_one(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    assert client.chat.completions.create(model=model.id, messages=MESSAGES, max_tokens=1).model == model.id
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=MESSAGES, max_tokens=1)


def test_a_chat_answer_is_the_one_of_the_python_interface(client: openai.OpenAI, tiny_llm: LLM) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=12, frequency_penalty=0.5)
    expected = tiny_llm.chat(MESSAGES, params)[0]
    response = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0.9,
        top_p=0.95,
        seed=7,
        max_completion_tokens=12,
        frequency_penalty=0.5,
    )
    (choice,) = response.choices
    (answer,) = expected.outputs
    assert choice.message.role == "assistant"
    assert (choice.message.content, choice.finish_reason) == (answer.text, answer.finish_reason)
    assert response.usage is not None
    assert response.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert response.usage.completion_tokens == len(answer.token_ids)
    assert response.usage.total_tokens == len(expected.prompt_token_ids) + len(answer.token_ids)
    assert extension(response)["digests"] == [answer.digest]
    assert extension(response)["seed"] == 7
    assert response.system_fingerprint


def test_streamed_pieces_of_a_chat_join_to_the_whole(client: openai.OpenAI, tiny_llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, n=2, temperature=1.0, seed=3)
    expected = tiny_llm.chat(MESSAGES, params)[0]
    texts, reasons, last = ["", ""], [None, None], None
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=20,
        n=2,
        temperature=1.0,
        seed=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    for last in stream:
        for choice in last.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [answer.text for answer in expected.outputs]
    assert reasons == [answer.finish_reason for answer in expected.outputs]
    assert last is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == sum(len(answer.token_ids) for answer in expected.outputs)
    assert extension(last)["digests"] == [answer.digest for answer in expected.outputs]


def test_a_seed_that_was_drawn_gives_the_answer_again(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=1.5, max_tokens=16)
    seed = extension(first)["seed"]
    again = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=1.5, max_tokens=16, seed=seed)
    other = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=1.5, max_tokens=16, seed=seed ^ 1
    )
    assert extension(again)["digests"] == extension(first)["digests"]
    assert extension(other)["digests"] != extension(first)["digests"]


def test_chat_logprobs_are_exact_and_name_their_bytes(client: openai.OpenAI, tiny_llm: LLM) -> None:
    expected = tiny_llm.chat(MESSAGES, SamplingParams(max_tokens=8, logprobs=4))[0].outputs[0]
    response = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=4
    )
    logprobs = response.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert expected.logprobs is not None
    assert extension(response)["digests"] == [expected.digest]
    assert len(logprobs.content) == len(expected.token_ids)
    for entry, token, known in zip(logprobs.content, expected.token_ids, expected.logprobs, strict=True):
        assert entry.logprob == known[token] <= 0
        assert bytes(entry.bytes or []) == tiny_llm.tokenizer.token_bytes(token)
        assert [top.logprob for top in entry.top_logprobs] == list(known.values())[:4]


@pytest.mark.parametrize("stream", [False, True])
def test_completions_of_several_prompts_keep_their_order(client: openai.OpenAI, tiny_llm: LLM, stream: bool) -> None:
    params = SamplingParams(max_tokens=10, n=2, temperature=1.0, seed=5, logprobs=2, stop=("e",))
    expected = [answer for output in tiny_llm.generate(PROMPTS, params) for answer in output.outputs]
    response = client.completions.create(
        model=MODEL, prompt=PROMPTS, max_tokens=10, n=2, temperature=1.0, seed=5, logprobs=2, stop=["e"], stream=stream
    )
    texts, values, digests = [""] * 4, [list[float](), [], [], []], list[str]()
    for piece in response if stream else [response]:
        for choice in piece.choices:
            texts[choice.index] += choice.text
            values[choice.index] += (choice.logprobs.token_logprobs or []) if choice.logprobs else []
        digests = extension(piece)["digests"] if "exactlm" in (piece.model_extra or {}) else digests
    assert texts == [answer.text for answer in expected]
    assert values == [
        [known[token] for token, known in zip(answer.token_ids, answer.logprobs or [], strict=True)]
        for answer in expected
    ]
    assert digests == [answer.digest for answer in expected]


def test_echo_without_an_answer_scores_the_prompt(client: openai.OpenAI, tiny_llm: LLM) -> None:
    ids = tiny_llm.tokenizer.encode("the thing and the other thing")
    response = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, echo=True, logprobs=1, temperature=0)
    (choice,) = response.choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == tiny_llm.score(ids)
    assert choice.text == "the thing and the other thing"
    assert choice.finish_reason == "length"
    assert response.usage is not None
    assert response.usage.completion_tokens == 0


def test_a_schema_holds_streamed_or_not(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Verdict, max_tokens=120)
    verdict = parsed.choices[0].message.parsed
    assert isinstance(verdict, Verdict)
    schema = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": Verdict.model_json_schema()}}
    text = ""
    for piece in client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format=schema, max_tokens=120, stream=True
    ):
        text += "".join(choice.delta.content or "" for choice in piece.choices)
    assert Verdict.model_validate(json.loads(text)) == verdict


def test_refusals_are_the_errors_that_the_client_knows(client: openai.OpenAI) -> None:
    for changed, param in (
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 10**6}, None),
        ({"seed": -1}, "seed"),
        ({"logit_bias": {"500000": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"extra_body": {"best_guess": 1}}, "best_guess"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **changed})
        assert caught.value.type == "invalid_request_error"
        assert param is None or caught.value.param == param


def test_a_server_with_a_key_asks_for_it(tiny_model: Path) -> None:
    with ServerProcess(tiny_model, *capacity(), "--model-name", MODEL, "--api-key", "sesame") as server:
        for key, is_right in (("sesame", True), ("sesam", False)):
            with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client:
                if is_right:
                    assert client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.completions.create(model=MODEL, prompt="a", max_tokens=1)


@pytest.mark.parametrize("num_at_once", [16])
def test_many_clients_at_once_get_the_same(server: ServerProcess, tiny_llm: LLM, num_at_once: int) -> None:
    import asyncio

    params = SamplingParams(max_tokens=24, temperature=0.8, seed=1)
    expected = tiny_llm.chat(MESSAGES, params)[0].outputs[0].digest

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            calls = [
                client.chat.completions.create(
                    model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0.8, seed=1, stream=False
                )
                for _ in range(num_at_once)
            ]
            return [extension(response)["digests"][0] for response in await asyncio.gather(*calls)]

    assert asyncio.run(ask_all()) == [expected] * num_at_once
