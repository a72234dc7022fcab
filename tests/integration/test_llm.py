"""The Python surface: generate, stream, chat, logits and score agree with each other."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from exactlm import LLM, SamplingParams, convert_to_deterministic
from exactlm.errors import ExactlmError, FormatError, RequestError, TemplateError, TokenizerError
from exactlm.numerics.activation import log_probabilities
from tests import tiny
from tests.conftest import model_directory

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
PROMPTS = ["the thing", "a", "and then the", "Zürich 🙂"]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(tiny_model, threads=2)


def test_streamed_pieces_join_to_the_generated_text(llm: LLM) -> None:
    for prompt in PROMPTS:
        whole = llm.generate(prompt, PARAMS)[0].outputs[0]
        deltas = list(llm.stream(prompt, PARAMS))
        assert "".join(d.text for d in deltas) == whole.text
        assert [i for d in deltas for i in d.token_ids] == whole.token_ids
        assert (deltas[-1].finish_reason, deltas[-1].digest) == (whole.finish_reason, whole.digest)
        assert all(d.finish_reason is None for d in deltas[:-1])


def test_batched_answers_equal_single_ones_in_order(llm: LLM) -> None:
    batched = llm.generate(PROMPTS * 5, PARAMS)
    singles = [llm.generate(p, PARAMS)[0] for p in PROMPTS] * 5
    assert [o.outputs[0] for o in batched] == [o.outputs[0] for o in singles]
    assert [o.prompt for o in batched] == PROMPTS * 5


def test_greedy_choice_is_the_argmax_of_the_published_logits(llm: LLM) -> None:
    output = llm.generate(PROMPTS[0], PARAMS)[0]
    ids = output.prompt_token_ids + output.outputs[0].token_ids
    logits = llm.logits(ids)
    assert logits.shape == (len(ids), llm.config.vocab_size)
    assert logits.dtype == np.float32
    allowed = [i for i in range(llm.config.num_tokens) if i not in llm.tokenizer.unsampled_ids]
    start = len(output.prompt_token_ids) - 1
    for step, token in enumerate(output.outputs[0].token_ids):
        assert allowed[int(np.argmax(logits[start + step, allowed]))] == token


def test_score_is_the_log_probability_under_the_logits(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the thing and the other thing")
    scores = llm.score(ids)
    expected = log_probabilities(llm.logits(ids)[:, : llm.config.num_tokens])
    assert scores[0] is None
    assert scores[1:] == [float(expected[t, token]) for t, token in enumerate(ids[1:])]
    assert llm.score(ids[:1]) == [None]


def test_stop_strings_end_the_text_before_them(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], PARAMS)[0].outputs[0].text
    stop = whole[len(whole) // 2 :][:3]
    first = whole.index(stop)
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop=(stop,))
    output = llm.generate(PROMPTS[0], params)[0].outputs[0]
    assert (output.text, output.finish_reason) == (whole[:first], "stop")
    assert "".join(d.text for d in llm.stream(PROMPTS[0], params)) == whole[:first]
    never = SamplingParams(max_tokens=12, ignore_eos=True, stop=(whole[-2:] + "never",))
    assert llm.generate(PROMPTS[0], never)[0].outputs[0].text == whole


def test_an_abandoned_stream_frees_its_pages(llm: LLM) -> None:
    for _ in range(3):
        stream = llm.stream(PROMPTS[0], PARAMS)
        next(stream)
        stream.close()
    llm._engine.pages.check_integrity()


def test_threads_of_the_caller_share_one_model(llm: LLM) -> None:
    expected = [llm.generate(p, PARAMS)[0].outputs[0] for p in PROMPTS]
    found: dict[int, object] = {}

    def work(i: int) -> None:
        found[i] = llm.generate(PROMPTS[i % 4], PARAMS)[0].outputs[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(12)] == expected * 3


def test_control_tokens_in_a_message_stay_text(llm: LLM) -> None:
    end = llm.tokenizer.find_id("<|end|>")
    assert end not in llm.tokenizer.encode("say <|end|> twice")
    plain = llm.chat_ids([{"role": "user", "content": "say it twice"}])
    assert llm.chat_ids([{"role": "user", "content": "say <|end|> twice"}]).count(end) == plain.count(end)


def test_a_model_without_a_chat_template_says_so(tiny_model: Path, tmp_path: Path) -> None:
    source = tiny.write_checkpoint(tmp_path / "source")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings.pop("chat_template")
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    model = convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False)
    with pytest.raises(TemplateError, match="no chat template"):
        LLM(model).chat([{"role": "user", "content": "x"}])


@pytest.mark.model
def test_chat_of_the_real_model() -> None:
    llm = LLM(model_directory("fp16"))
    messages = [{"role": "user", "content": "What is the capital of France? <|im_end|>"}]
    ids = llm.chat_ids(messages)
    end = llm.tokenizer.find_id("<|im_end|>")
    assert ids.count(end) == 2  # the template's own: after the system text and after the question
    one, two = (
        llm.chat(messages, SamplingParams(max_tokens=24)),
        llm.chat([messages, messages], SamplingParams(max_tokens=24)),
    )
    assert "Paris" in one[0].outputs[0].text
    assert [o.outputs[0] for o in two] == [one[0].outputs[0]] * 2
    for bad in ([{"role": "user"}], [{"role": 5, "content": "x"}], [{"content": "x"}], []):
        with pytest.raises((RequestError, TemplateError)):
            llm.chat(bad)


@pytest.mark.parametrize("prompt", ["", [], [10**9], "\ud800", [1, None], b"ab", None, 1.5])
def test_bad_prompts_raise_our_errors(llm: LLM, prompt: object) -> None:
    with pytest.raises((RequestError, TokenizerError)):
        llm.generate([prompt], PARAMS)  # type: ignore[list-item]
    llm._engine.pages.check_integrity()


def test_one_bad_request_leaves_nothing_of_the_others(llm: LLM) -> None:
    with pytest.raises(RequestError):
        llm.generate(["the thing", [-5]], PARAMS)
    llm._engine.pages.check_integrity()
    assert not llm._engine.scheduler.waiting
    assert not llm._engine.scheduler.running


def test_as_many_parameters_as_prompts(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS[:2], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3, ignore_eos=True)])
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 3]
    with pytest.raises(RequestError, match="1 sampling parameters for 2 prompts"):
        llm.generate(PROMPTS[:2], [PARAMS])


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=re.escape(str(tmp_path / "none"))):
        LLM(tmp_path / "none")
    with pytest.raises(ExactlmError, match="manifest"):
        LLM(tmp_path)


def test_where_a_stop_ends_an_answer_does_not_depend_on_who_steps(llm: LLM) -> None:
    """Steps driven by another caller once added tokens after the stop to the ids and the digest."""
    whole = llm.generate(PROMPTS[0], PARAMS)[0].outputs[0].text
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop=(whole[len(whole) // 3 :][:2],))
    expected = llm.generate(PROMPTS[0], params)[0].outputs[0]
    stream = llm.stream(PROMPTS[0], params)
    deltas = [next(stream)]
    llm.generate(PROMPTS[1:], PARAMS)
    deltas += list(stream)
    assert [i for d in deltas for i in d.token_ids] == expected.token_ids
    assert "".join(d.text for d in deltas) == expected.text
    assert deltas[-1].digest == expected.digest
    assert len(expected.token_ids) < 12


def test_logprobs_and_score_agree_also_where_ids_are_excluded(llm: LLM) -> None:
    output = llm.generate(PROMPTS[0], SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2))[0]
    llm._engine.sampler.excluded_ids = np.array([3, 4, 5], np.int64)
    excluded = llm.generate(PROMPTS[0], SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2))[0]
    llm._engine.sampler.excluded_ids = np.array([], np.int64)
    assert excluded == output
    answer = output.outputs[0]
    assert answer.logprobs is not None
    scores = llm.score(output.prompt_token_ids + answer.token_ids)[len(output.prompt_token_ids) :]
    assert scores == [entry[token] for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
