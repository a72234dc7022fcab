"""A receipt is confirmed by any engine setting, and whatever is changed in it is caught and named."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM, SamplingParams, convert_to_deterministic
from exactlm.errors import ReceiptError, RequestError
from exactlm.kernels.select import available_isas
from exactlm.proof.verdict import Verdict
from exactlm.proof.verify import verify_receipts
from exactlm.receipt import Receipt, canonical, digest_of, read_receipts
from exactlm.signature import check_signature, read_key, sign, write_key
from tests import tiny


def check(llm: LLM, receipt: Receipt) -> Verdict:
    (verdict,) = verify_receipts(llm, [receipt])
    return verdict


def test_every_kind_of_answer_is_confirmed(llm: LLM, receipts: list[Receipt]) -> None:
    verdicts = list(verify_receipts(llm, receipts))
    assert [v for v in verdicts if not v.is_identical] == []
    assert sorted(v.index for v in verdicts) == list(range(len(receipts)))
    assert len(receipts) == 9
    llm.check_integrity()


@pytest.mark.parametrize("isa", available_isas())
def test_on_every_instruction_set_and_setting(proof_model: Path, isa: str, receipts: list[Receipt]) -> None:
    for limits in ({"chunk_tokens": 3, "threads": 3}, {"kv_tokens": 96, "prefix_cache": False, "speculation": "ngram"}):
        other = LLM(proof_model, isa=isa, **limits)
        assert all(v.is_identical for v in verify_receipts(other, receipts))


def test_checking_takes_few_steps(proof_model: Path) -> None:
    llm = LLM(proof_model, threads=1)
    answer = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=200, ignore_eos=True), receipt=True)[0].outputs[0]
    before = llm.stats().num_steps
    assert before == 200
    assert answer.receipt is not None
    assert check(llm, answer.receipt).is_identical
    assert llm.stats().num_steps - before <= 2


def test_receipts_do_not_depend_on_where_they_were_made(proof_model: Path, llm: LLM, receipts: list[Receipt]) -> None:
    other = LLM(proof_model, isa="scalar", threads=1, chunk_tokens=2, prefix_cache=False)
    again = other.generate(["the thing in the hand"], SamplingParams(max_tokens=20, ignore_eos=True), receipt=True)
    assert again[0].outputs[0].receipt == receipts[0]
    assert llm.generate([[1]], SamplingParams())[0].outputs[0].receipt is None


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, (dict, list)):
        yield path
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def change(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{int(value[0], 16) ^ 1:x}{value[1:]}"
    if isinstance(value, str):
        return (chr(ord(value[0]) ^ 1) + value[1:]) if value else "x"
    return "x"


def altered(receipt: Receipt, path: tuple[Any, ...]) -> Receipt:
    wrong = copy.deepcopy(receipt)
    place = wrong
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place[path[-1]])
    return wrong


def test_a_changed_leaf_is_caught(llm: LLM, receipts: list[Receipt]) -> None:
    seen = 0
    for receipt in receipts:
        for path in leaves(receipt):
            verdict = check(llm, altered(receipt, path))
            assert not verdict.is_identical, path
            assert verdict.differs in ("digest", "form", "signature"), path
            seen += 1
            if verdict.differs == "digest" and path[0] in ("steps", "model", "spec", "output"):
                member = path[0] if path[0] != "output" else "output.digest" if path[1] == "digest" else path[1]
                assert verdict.altered == member, (path, verdict)
            if path[0] == "steps" or path[:2] == ("output", "token_ids"):
                assert verdict.position == path[-1], (path, verdict)
    assert seen > 400


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("receipt_version", (None, "1", 1.5, True, [])),
        ("spec", (None, 1, [], "x")),
        ("spec.numerics", (None, "1", True, 1.5)),
        ("spec.guide", (5, [], {})),
        ("model.model", (None, 5, "x", "A" * 64)),
        ("model.template", (5, "", [])),
        ("model.adapter", (False, "x", {})),
        ("request.text", (5, [], True)),
        ("request.chat", (5, [], "x", {}, {"messages": "[]"})),
        ("request.prompt_token_ids", (None, 5, {}, [True], [-1], [1.5], ["1"])),
        ("sampling", (None, [], {}, "x")),
        ("output.text", (None, 5, [])),
        ("output.finish_reason", (None, 5, [])),
        ("output.stop_reason", ([], {}, True, 1.5)),
        ("output.digest", (None, 5, "x")),
        ("output.token_ids", (None, {}, [None], [2**31])),
        ("steps", (None, {}, [None] * 20, ["x"] * 20, [])),
        ("digest", (None, 5, "x")),
        ("signature", (5, "x", [], True)),
    ],
)
def test_a_value_of_another_type_is_a_matter_of_form(
    llm: LLM, receipts: list[Receipt], path: str, values: tuple[Any, ...]
) -> None:
    outer, _, name = path.rpartition(".")
    for value in values:
        wrong = copy.deepcopy(receipts[0])
        (wrong[outer] if outer else wrong)[name] = value
        if path != "digest":
            wrong["digest"] = digest_of(wrong)
        verdict = check(llm, wrong)
        assert verdict.differs == "form", (value, verdict)
        assert name in verdict.reason


def test_an_altered_parameter_that_changes_nothing_is_not_taken_for_another(llm: LLM, receipts: list[Receipt]) -> None:
    """The first receipt is greedy: its digest alone shows that top_k was altered."""
    verdict = check(llm, altered(receipts[0], ("sampling", "top_k")))
    assert (verdict.differs, verdict.altered, verdict.position) == ("digest", None, None)
    assert "a parameter that changes nothing" in verdict.reason


# Parameters whose change need not change this answer: only the digest or a signature protects them.
SILENT = {"top_k", "top_p", "min_p", "max_tokens", "stop", "ignore_eos", "seed", "choice", "temperature", "logit_bias"}
SILENT |= {"repetition_penalty", "presence_penalty", "frequency_penalty", "stop_token_ids", "add_generation_prompt"}


def test_a_changed_leaf_with_a_new_digest_is_named(llm: LLM, receipts: list[Receipt]) -> None:
    """Who changes an answer and makes its digest anew is caught by computing."""
    for receipt in receipts:
        for path in leaves(receipt):
            if path[0] in ("digest", "signature"):
                continue
            wrong = altered(receipt, path)
            wrong["digest"] = digest_of(wrong)
            verdict = check(llm, wrong)
            if path[0] in ("sampling", "request") and SILENT & set(path) and verdict.is_identical:
                continue
            assert not verdict.is_identical, path
            expected = {
                "receipt_version": {"form"},
                "spec": {"spec"},
                "model": {"model"},
                "steps": {"steps"},
                "output": {path[1] if path[1] != "digest" else "output.digest"} if len(path) > 1 else set(),
                "request": {"request", "steps", "form", "output.digest"},
                "sampling": {"form", "spec", "sampling", "token_ids", "steps", "request", "finish_reason", "text"},
            }[path[0]]
            had_null = path[-1] in ("stop_reason", "adapter")  # which becomes "x"
            assert verdict.differs in expected | ({"form"} if had_null else set()), (path, verdict)
            if path[0] == "steps" or path[:2] == ("output", "token_ids"):
                assert verdict.position == path[-1], (path, verdict)


def test_another_seed_shows_at_the_first_token_drawn_otherwise(llm: LLM, receipts: list[Receipt]) -> None:
    wrong = copy.deepcopy(receipts[1])
    wrong["sampling"]["seed"] = "7"
    wrong["digest"] = digest_of(wrong)
    verdict = check(llm, wrong)
    assert (verdict.differs, verdict.position) == ("sampling", 0)


def test_an_altered_id_is_told_from_another_choice(llm: LLM) -> None:
    """Each id in turn; then other seeds, which draw the first tokens of two alike by chance."""
    params = SamplingParams(max_tokens=12, temperature=1.0, top_k=2, seed=3, ignore_eos=True)
    made = llm.generate(["the thing"], params, receipt=True)[0].outputs[0].receipt
    assert made is not None
    for at in range(12):
        wrong = altered(made, ("output", "token_ids", at))
        wrong["digest"] = digest_of(wrong)
        verdict = check(llm, wrong)
        assert (verdict.differs, verdict.position) == ("token_ids", at)
        verdict = check(llm, altered(made, ("output", "token_ids", at)))
        assert (verdict.differs, verdict.altered, verdict.position) == ("digest", "token_ids", at)
    found = set()
    for seed in range(40, 60):
        wrong = copy.deepcopy(made)
        wrong["sampling"]["seed"] = str(seed)
        wrong["digest"] = digest_of(wrong)
        verdict = check(llm, wrong)
        assert verdict.differs == "sampling"
        found.add(verdict.position)
    assert len(found) > 1
    llm.check_integrity()


def test_an_answer_that_would_fail_further_on_is_not_blamed_for_its_steps(tmp_path: Path) -> None:
    """A model without an end token has nothing to say after a complete text."""
    source = tiny.write_checkpoint(tmp_path / "source")
    for name in ("config.json", "tokenizer_config.json"):
        told = json.loads((source / name).read_text())
        tiny.write_json(source / name, {k: v for k, v in told.items() if not k.startswith("eos_token")})
    llm = LLM(convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False), threads=1)
    params = SamplingParams(regex="[a-f]{5}", max_tokens=20)
    ticket = llm.submit([5, 6], params, receipt=True)
    while llm.step():
        pass
    ticket.cut()
    made = ticket.output().outputs[0].receipt
    assert made is not None
    assert check(llm, made).is_identical
    wrong = copy.deepcopy(made)
    wrong["sampling"]["max_tokens"] += 1
    assert (check(llm, wrong).differs, check(llm, wrong).altered) == ("digest", "token_ids")
    wrong["digest"] = digest_of(wrong)
    verdict = check(llm, wrong)
    assert (verdict.differs, verdict.position) == ("token_ids", len(made["steps"]))
    wrong["spec"]["guide"] = "x" * 10**6
    wrong["digest"] = digest_of(wrong)
    assert check(llm, wrong).differs == "spec"
    assert len(check(llm, wrong).reason) < 1000


def test_longer_and_shorter_answers_are_caught(llm: LLM, receipts: list[Receipt]) -> None:
    for edit in (lambda ids: ids[:-1], lambda ids: [*ids, 5]):
        wrong = copy.deepcopy(receipts[0])
        wrong["output"]["token_ids"] = edit(wrong["output"]["token_ids"])
        wrong["steps"] = (wrong["steps"] * 2)[: len(wrong["output"]["token_ids"])]
        wrong["digest"] = digest_of(wrong)
        assert check(llm, wrong).differs == "token_ids"


def test_another_model_is_named(tmp_path: Path, receipts: list[Receipt], llm: LLM) -> None:
    wrong = copy.deepcopy(receipts[0])
    wrong["model"]["template"] = None
    wrong["digest"] = digest_of(wrong)
    verdict = check(llm, wrong)
    assert verdict.differs == "model"
    assert "template" in verdict.reason


@pytest.mark.parametrize("key", ["steps", "sampling", "output", "digest", "signature", "request"])
def test_missing_and_unknown_members_are_named(llm: LLM, receipts: list[Receipt], key: str) -> None:
    wrong = {k: v for k, v in receipts[0].items() if k != key}
    assert check(llm, wrong).reason == f"{key} is missing"
    assert check(llm, {**receipts[0], "extra": 1}).reason == "extra is unknown"
    for value in (None, 5, "x", []):
        if not (key == "signature" and value is None):
            assert not check(llm, {**receipts[0], key: value}).is_identical


def test_signatures(llm: LLM, receipts: list[Receipt], tmp_path: Path) -> None:
    public = write_key(tmp_path / "key.pem")
    signed = sign(receipts[0], read_key(tmp_path / "key.pem"))
    check_signature(signed, public)
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    (verdict,) = verify_receipts(llm, [signed], True, public)
    assert verdict.is_identical
    (unsigned,) = verify_receipts(llm, [receipts[0]], True)
    assert (unsigned.differs, unsigned.reason) == ("signature", "there is no signature")
    (foreign,) = verify_receipts(llm, [signed], True, "00" * 32)
    assert foreign.differs == "signature"
    for path in leaves(signed):
        wrong = altered(signed, path)
        if path[0] not in ("digest", "signature"):
            wrong["digest"] = digest_of(wrong)
        verdict = check(llm, wrong)
        assert verdict.differs in ("signature", "form", "digest"), path


@pytest.mark.parametrize("name", ["public_key", "value"])
@pytest.mark.parametrize("spell", [str.upper, lambda text: f"{text[:2]} {text[2:]}", lambda text: [text]])
def test_a_signature_has_one_spelling(llm: LLM, receipts: list[Receipt], tmp_path: Path, name: str, spell: Any) -> None:
    """The digest does not cover it, so a letter whose case was flipped would go unseen."""
    write_key(tmp_path / "key.pem")
    signed = sign(receipts[0], read_key(tmp_path / "key.pem"))
    assert signed["signature"] is not None
    signed["signature"][name] = spell(signed["signature"][name])
    verdict = check(llm, signed)
    assert verdict.differs == "signature"
    assert f"signature.{name} is" in verdict.reason


def test_files_of_receipts(tmp_path: Path, receipts: list[Receipt]) -> None:
    one, many, bad = tmp_path / "one.json", tmp_path / "many.jsonl", tmp_path / "bad.jsonl"
    one.write_text(json.dumps(receipts[1], indent=2))
    receipts = [*receipts, {**receipts[0], "odd": "x\u2028y"}]
    many.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in receipts) + "\n\n")
    assert read_receipts(one) == receipts[1:2]
    assert read_receipts(many) == receipts
    for content, words in (
        ("{}\n{", "bad.jsonl:2: not JSON"),
        ("[1]", "not a JSON object"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": NaN}', "bad.jsonl: NaN is not a JSON number"),
        ('{"a": ' + "1" * 5000 + "}", "bad.jsonl: not JSON: Exceeds the limit"),
        ("[" * 100000, "nested too deeply"),
    ):
        bad.write_text(content)
        with pytest.raises(ReceiptError, match=words):
            read_receipts(bad)


def test_the_canonical_form_is_that_of_rfc_8785() -> None:
    value = {"b": [1.0, 1e21, 0.1, -0.0], "a": '\u20ac$\n"\\', "\U0001f602": None}
    assert canonical(value) == '{"a":"€$\\n\\"\\\\","b":[1,1e+21,0.1,0],"😂":null}'.encode()
    with pytest.raises(ReceiptError):
        canonical({"seed": 2**60})


def test_a_template_sees_tools_as_they_were_given(tmp_path: Path) -> None:
    """RFC 8785 would sort their members and write 1.0 as 1."""
    source = tiny.write_checkpoint(tmp_path / "source")
    config = json.loads((source / "tokenizer_config.json").read_text())
    template = "{{ tools | tojson }}{{ mood }}{% for m in messages %}{{ m.content }}{% endfor %}"
    (source / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    model = convert_to_deterministic(source).save_pretrained(tmp_path / "model", progress=False)
    llm = LLM(model, threads=1)
    tools = [{"type": "function", "function": {"name": "f", "limit": 1.0, "a": 1}}]
    prompt = llm.read_chat([{"role": "user", "content": "hi"}], tools, template_kwargs={"mood": {"z": 2.0, "a": []}})
    (answer,) = llm.generate(prompt, SamplingParams(max_tokens=3), receipt=True)[0].outputs
    assert answer.receipt is not None
    assert check(llm, json.loads(json.dumps(answer.receipt))).is_identical
    wrong = copy.deepcopy(answer.receipt)
    wrong["request"]["chat"]["tools"] = json.dumps(tools, sort_keys=True)
    wrong["digest"] = digest_of(wrong)
    assert check(llm, wrong).differs == "request"


def test_true_is_not_one(llm: LLM, receipts: list[Receipt]) -> None:
    for path in (("receipt_version",), ("spec", "numerics"), ("spec", "sampling")):
        wrong = copy.deepcopy(receipts[0])
        place = wrong if len(path) == 1 else wrong[path[0]]
        place[path[-1]] = True
        wrong["digest"] = digest_of(wrong)
        assert not check(llm, wrong).is_identical, path


def test_a_drawn_answer_needs_its_seed(llm: LLM) -> None:
    """With a seed of the verifier's own, the verdict would be another each time."""
    params = SamplingParams(max_tokens=1, temperature=0.3, seed=5, ignore_eos=True)
    made = llm.generate(["the thing"], params, receipt=True)[0].outputs[0].receipt
    assert made is not None
    for seed in (None, float("inf")):  # 1e999 in a file
        wrong = copy.deepcopy(made)
        wrong["sampling"]["seed"] = seed
        if seed is None:
            wrong["digest"] = digest_of(wrong)
        verdicts = {v.index: v for v in verify_receipts(llm, [wrong, made])}
        assert verdicts[0].differs == "form"
        assert verdicts[1].is_identical


def test_leaving_early_gives_the_pages_back(proof_model: Path, receipts: list[Receipt]) -> None:
    llm = LLM(proof_model, threads=1, chunk_tokens=4)
    verdicts = verify_receipts(llm, receipts)
    next(verdicts)
    verdicts.close()
    llm.step()
    assert llm.stats().num_running == llm.stats().num_pages_used == 0
    llm.check_integrity()


def test_a_verifier_that_is_too_small_says_so(proof_model: Path, receipts: list[Receipt]) -> None:
    short = LLM(proof_model, threads=1).generate([[5, 6]], SamplingParams(max_tokens=8), receipt=True)[0].outputs[0]
    assert short.receipt is not None
    wrong = {**short.receipt, "digest": "0" * 64}
    small = LLM(proof_model, threads=1, kv_tokens=32)
    *long, fits, differs = sorted(verify_receipts(small, [*receipts, short.receipt, wrong]), key=lambda v: v.index)
    assert fits.is_identical
    assert differs.differs == "digest"
    refused = [verdict for verdict in long if not verdict.is_checked]
    assert refused
    for verdict in refused:
        assert verdict.differs is None
        assert not verdict.is_identical
        assert "kv_tokens" in verdict.reason


def test_a_schema_is_what_it_was_when_it_was_asked_with(llm: LLM) -> None:
    schema = {"type": "string", "enum": ["aa", "ab"]}
    params = SamplingParams(json_schema=schema, max_tokens=9)
    schema["enum"] = ["cc"]
    (answer,) = llm.generate([[5, 6]], params, receipt=True)[0].outputs
    assert answer.text in ('"aa"', '"ab"')
    assert answer.receipt is not None
    assert check(llm, answer.receipt).is_identical


def test_what_no_receipt_can_hold_is_refused_before_anything_is_computed(llm: LLM) -> None:
    steps = llm.stats().num_steps
    with pytest.raises(ReceiptError):
        llm.submit([5], SamplingParams(regex="\udc80"), receipt=True)
    twice = llm.read_chat([{"role": "user", "content": "hi"}], template_kwargs={"mood": {1: "a", "1": "b"}})
    with pytest.raises(ReceiptError, match=r"template_kwargs: member '1' stands twice"):
        llm.submit(twice, SamplingParams(), receipt=True)
    with pytest.raises(RequestError, match="choice=128"):
        llm.submit([5], SamplingParams(), choice=128)
    assert llm.stats().num_steps == steps


def test_a_cancelled_answer_has_no_receipt(llm: LLM) -> None:
    ticket = llm.submit([5], SamplingParams(max_tokens=50, ignore_eos=True), receipt=True)
    llm.step()
    ticket.cancel()
    ticket.poll()
    assert ticket.is_done
    assert ticket.output().outputs[0].receipt is None


def test_one_hostile_receipt_does_not_end_the_others(llm: LLM, receipts: list[Receipt]) -> None:
    unknown, huge, surrogate, name = (copy.deepcopy(receipts[0]) for _ in range(4))
    unknown["output"]["token_ids"][2] = 10**6
    unknown["digest"] = digest_of(unknown)
    huge["output"]["stop_reason"] = 2**60
    surrogate["output"]["text"] = "\udc80"
    name["sampling"]["\ud800\x1b[2J\n"] = 1
    verdicts = {v.index: v for v in verify_receipts(llm, [unknown, huge, surrogate, receipts[1], name])}
    assert (verdicts[0].differs, verdicts[0].position) == ("token_ids", 2)
    assert verdicts[1].differs == verdicts[2].differs == "form"
    assert verdicts[3].is_identical
    assert verdicts[4].differs == "form"
    assert "\\ud800\\x1b[2J\\n" in verdicts[4].reason
    assert all(v.reason.isprintable() for v in verdicts.values())
