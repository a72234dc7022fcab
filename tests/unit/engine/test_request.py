"""What a request may ask: choices, seeds, scored prompts, no tokens at all, guides; and what the engine says of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from exactlm import LLM, RequestOutput, SamplingParams, convert_to_deterministic
from exactlm.errors import ConfigError, NumericError, RequestError
from tests import tiny

PROMPT = np.random.Generator(np.random.Philox(key=8)).integers(0, 400, 70).tolist()
DRAWN = SamplingParams(temperature=1.5, seed=11, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("request")
    return convert_to_deterministic(tiny.write_checkpoint(folder / "source")).save_pretrained(
        folder / "model", progress=False
    )


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, threads=2)


def ids(output: RequestOutput, choice: int = 0) -> list[int]:
    return output.outputs[choice].token_ids


def with_(params: SamplingParams, **changes: object) -> SamplingParams:
    return dataclasses.replace(params, **changes)  # type: ignore[arg-type]


def test_choice_i_depends_on_seed_and_i_only(llm: LLM) -> None:
    four, two = llm.generate([PROMPT, PROMPT], [with_(DRAWN, n=4), with_(DRAWN, n=2)])
    assert [o.index for o in four.outputs] == [0, 1, 2, 3]
    assert four.outputs[:2] == two.outputs
    assert len({tuple(o.token_ids) for o in four.outputs}) == 4
    assert llm.generate(PROMPT, DRAWN)[0].outputs == two.outputs[:1]


def test_choices_share_the_prompt(path: Path) -> None:
    llm = LLM(path, threads=1)
    llm.generate(PROMPT, with_(DRAWN, n=4))
    assert llm.stats().num_cached_tokens == 3 * 64


def test_the_seed_of_an_unseeded_request_is_told(llm: LLM) -> None:
    free = with_(DRAWN, seed=None)
    first, second = llm.generate([PROMPT, PROMPT], free)
    assert first.seed is not None
    assert first.seed != second.seed
    assert first.seed < 1 << 53
    assert llm.generate(PROMPT, with_(DRAWN, seed=first.seed))[0] == first
    assert llm.generate(PROMPT)[0].seed is None  # greedy draws nothing
    assert llm.generate(PROMPT, SamplingParams(seed=0))[0].seed == 0


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_seeds_are_taken_whole(llm: LLM, seed: int) -> None:
    found = ids(llm.generate(PROMPT, with_(DRAWN, seed=seed))[0])
    others = [seed ^ 1 << bit for bit in (0, 31, 32, 63)]
    assert all(ids(llm.generate(PROMPT, with_(DRAWN, seed=other))[0]) != found for other in others)


def test_a_cut_answer_goes_on_as_it_would_have(llm: LLM) -> None:
    whole = ids(llm.generate(PROMPT, DRAWN)[0])
    assert ids(llm.generate(PROMPT + whole[:5], with_(DRAWN, max_tokens=7))[0]) == whole[5:]


def test_limits_of_the_draw_are_the_greedy_choice(llm: LLM) -> None:
    greedy = ids(llm.generate(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True))[0])
    for limit in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}):
        assert ids(llm.generate(PROMPT, with_(DRAWN, **limit))[0]) == greedy
    assert ids(llm.generate(PROMPT, with_(DRAWN, top_k=-1))[0]) == ids(llm.generate(PROMPT, DRAWN)[0]) != greedy


def test_bias_bans_and_forces(llm: LLM) -> None:
    greedy = SamplingParams(max_tokens=6, ignore_eos=True)
    first = ids(llm.generate(PROMPT, greedy)[0])[0]
    assert ids(llm.generate(PROMPT, with_(greedy, logit_bias={first: -100.0}))[0])[0] != first
    assert ids(llm.generate(PROMPT, with_(greedy, logit_bias={7: 100}))[0]) == [7] * 6
    with pytest.raises(RequestError, match="logit_bias: id 500"):
        llm.generate(PROMPT, with_(greedy, logit_bias={500: 1.0}))
    with pytest.raises(RequestError, match="stop_token_ids: id 500"):
        llm.generate(PROMPT, with_(greedy, stop_token_ids=[500]))


def test_penalties_keep_tokens_from_coming_again(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, presence_penalty=2.0, frequency_penalty=2.0)
    found = ids(llm.generate(PROMPT, params)[0])
    assert len(set(found)) == len(found)
    forced = with_(params, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1000.0)
    assert not set(ids(llm.generate(PROMPT, forced)[0])[:5]) & set(PROMPT)


def test_a_bias_that_overflows_is_an_error_of_its_request(llm: LLM) -> None:
    engine = llm._engine
    original = engine.decoder.logits

    def huge(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        logits = original(codes, scales)
        logits[:, 3] = 3e38
        return logits

    engine.decoder.logits = huge
    try:
        with pytest.raises(NumericError, match=r"step 0: .*after logit_bias"):
            llm.generate([[3, 3]], SamplingParams(repetition_penalty=0.001))
        assert ids(llm.generate([[3, 3]], SamplingParams(max_tokens=1))[0]) == [3]
    finally:
        engine.decoder.logits = original


def test_a_scored_prompt_is_what_score_says(path: Path, llm: LLM) -> None:
    expected = llm.score(PROMPT)
    tight = LLM(path, threads=1, chunk_tokens=7, kv_tokens=96)
    for model in (llm, tight, tight):
        scored, neighbour = model.generate(
            [PROMPT, PROMPT], [SamplingParams(max_tokens=0, prompt_logprobs=2), SamplingParams(max_tokens=9)]
        )
        entries = scored.prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        assert [None, *(e[i] for e, i in zip(entries[1:], PROMPT[1:], strict=True))] == expected  # type: ignore[index]
        assert all(e is not None and len(e) in (2, 3) and max(e.values()) <= 0 for e in entries[1:])
        assert (scored.outputs[0].token_ids, scored.outputs[0].finish_reason) == ([], "length")
        assert neighbour == llm.generate_plain(PROMPT, SamplingParams(max_tokens=9))
    one = llm.generate([[5]], SamplingParams(max_tokens=0, prompt_logprobs=0))[0]
    assert one.prompt_logprobs == [None]


def test_no_tokens_at_all_process_the_prompt(path: Path) -> None:
    llm = LLM(path, threads=1)
    output = llm.generate(PROMPT, SamplingParams(max_tokens=0))[0]
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("", "length")
    llm.check_integrity()
    assert llm.generate(PROMPT, SamplingParams(max_tokens=1))[0].num_cached_tokens == 64


def test_stop_reasons_are_told(llm: LLM) -> None:
    free = llm.generate(PROMPT, DRAWN)[0].outputs[0]
    by_id = llm.generate(PROMPT, with_(DRAWN, stop_token_ids=[free.token_ids[3]]))[0].outputs[0]
    assert (by_id.finish_reason, by_id.stop_reason) == ("stop", free.token_ids[3])
    text = free.text[4:6]
    by_text = llm.generate(PROMPT, with_(DRAWN, stop=[text]))[0].outputs[0]
    assert (by_text.finish_reason, by_text.stop_reason) == ("stop", text)
    assert by_text.text == free.text[: free.text.index(text)]
    assert free.stop_reason is None


def test_pieces_of_several_choices_join_to_the_answers(llm: LLM) -> None:
    params = with_(DRAWN, n=3, logprobs=1)
    expected = llm.generate(PROMPT, params)[0]
    pieces = list(llm.stream(PROMPT, params))
    for answer in expected.outputs:
        own = [p for p in pieces if p.index == answer.index]
        assert "".join(p.text for p in own) == answer.text
        assert [i for p in own for i in p.token_ids] == answer.token_ids
        assert [e for p in own for e in p.logprobs or []] == answer.logprobs
        assert (own[-1].digest, own[-1].finish_reason) == (answer.digest, answer.finish_reason)


def test_a_ticket_goes_on_by_steps_and_can_be_cancelled(path: Path) -> None:
    llm = LLM(path, threads=1)
    expected = llm.generate(PROMPT, DRAWN)[0]
    kept, dropped = llm.submit(PROMPT, DRAWN), llm.submit(PROMPT, with_(DRAWN, max_tokens=None))
    assert kept.poll() == []
    assert llm.stats().num_waiting + llm.stats().num_running == 2
    llm.step()
    dropped.cancel()
    llm.step()
    assert [d.finish_reason for d in dropped.poll()] == ["cancelled"]
    assert llm.stats().num_running == 1
    while llm.step():
        kept.poll()
    kept.poll()
    assert kept.is_done
    assert kept.output() == expected
    t = kept.timings
    assert None not in (t.started, t.first_token, t.done)
    assert t.queued <= t.started <= t.first_token <= t.done  # type: ignore[operator]
    llm.check_integrity()
    assert llm.stats().num_pages_used == 0


def test_an_ending_is_not_decided_by_who_looks(llm: LLM) -> None:
    ticket = llm.submit(PROMPT, with_(DRAWN, stop=["zzzz"]))
    while llm.step():
        pass  # nobody polls
    assert not ticket.is_done
    ticket.poll()
    assert ticket.output() == llm.generate(PROMPT, with_(DRAWN, stop=["zzzz"]))[0]


def test_warm_up_and_memory_lock_change_nothing(path: Path) -> None:
    plain, ready = LLM(path, threads=1), LLM(path, threads=1, warmup=2, mlock=True)
    assert ready.stats() == plain.stats()
    assert ready.generate(PROMPT, DRAWN) == plain.generate(PROMPT, DRAWN)
    assert "VmLck:\t       0 kB" not in Path("/proc/self/status").read_text()


@pytest.mark.parametrize("bad", [{"warmup": -1}, {"warmup": True}, {"speculation": "magic"}, {"prefix_cache": 1}])
def test_capacity_arguments_are_checked(path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        LLM(path, **bad)  # type: ignore[arg-type]
