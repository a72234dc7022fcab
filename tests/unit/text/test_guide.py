"""Guides: every walk through the masks spells a text that fits, and nothing else is let through."""

from __future__ import annotations

import builtins
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vocabulary_file import load_vocabulary

from exactlm.errors import ConfigError, RequestError
from exactlm.text.guide import Guide, GuideFactory
from exactlm.text.hf_tokenizer import build_from_directory
from exactlm.text.tokenizer import Tokenizer
from tests.conftest import model_directory
from tests.tiny import make_tokenizer, write_checkpoint

pytest.importorskip("llguidance")

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "é", "日本", "🙂"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SUM = """start: sum
sum: NUMBER | "(" sum "+" sum ")"
NUMBER: /[1-9][0-9]{0,2}/
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(*build_from_directory(write_checkpoint(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return Tokenizer.load(model_directory("int8"))


@pytest.fixture(scope="module")
def spaced() -> Tokenizer:
    """SentencePiece: byte tokens that repeat other tokens' bytes, one leading space that decoding drops."""
    return load_vocabulary("llama-spm")


@pytest.fixture(params=["tiny", pytest.param("real", marks=pytest.mark.model), "spaced"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


@lru_cache(maxsize=4)
def factory(tokenizer: Tokenizer) -> GuideFactory:
    return GuideFactory(tokenizer)


def allowed(guide: Guide) -> list[int]:
    return [int(i) for i in np.flatnonzero(guide.mask())]


def walk(guide: Guide, tokenizer: Tokenizer, seed: int, limit: int = 400) -> list[int]:
    """Ids of a random walk to the end; after 40 tokens it ends, or closes what is open, wherever that is allowed."""
    draw, ids = random.Random(seed), []
    closing = [{byte_id(tokenizer, char) for char in chars} for chars in ('"}])', "1")]
    while len(ids) < limit:
        choices = np.flatnonzero(guide.mask())
        if len(ids) > 40:
            possible = set(choices.tolist())
            ways = (sorted(possible & way) for way in (tokenizer.eos_ids, *closing))
            choices = np.array(next(filter(None, ways), choices))
        ids.append(int(choices[draw.randrange(len(choices))]))
        guide.accept(ids[-1])
        if ids[-1] in tokenizer.eos_ids:
            return ids
    pytest.fail(f"no end after {limit} tokens: {tokenizer.decode(ids)!r:.200}")


def walks(tokenizer: Tokenizer, count: int = 12, **what: Any) -> Iterator[str]:
    for seed in range(count):
        yield tokenizer.decode(walk(factory(tokenizer).make(**what), tokenizer, seed))


def check_person(text: str) -> None:
    value = json.loads(text)
    assert set(value) in ({"name", "age"}, {"name", "age", "tags"})
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 12
    assert type(value["age"]) is int
    assert 0 <= value["age"] <= 150
    assert len(value.get("tags", [])) <= 3
    assert set(value.get("tags", [])) <= {"a", "é", "日本", "🙂"}


def check_sum(text: str) -> None:
    while "(" in text:
        text, count = re.subn(r"\([1-9][0-9]{0,2}\+[1-9][0-9]{0,2}\)", "1", text)
        assert count, text
    assert re.fullmatch("[1-9][0-9]{0,2}", text)


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON)], ids=["object", "text"])
def test_schema_walks_fit(tokenizer: Tokenizer, schema: object) -> None:
    texts = set(walks(tokenizer, json_schema=schema))
    assert len(texts) > 6
    for text in texts:
        check_person(text)


@pytest.mark.parametrize(
    "regex",
    [
        r"[a-c]{2,5}( de|fg)+",
        r"(日本|é|🙂|[а-я]){3,6}!",
        r"[^\x00-\x7f]{2}",
        r"[0-9]{4}-[0-9]{2}/[a-z_]{1,9}\\",
        r" leading",
        "a|b\n",
    ],
)
def test_regex_walks_match(tokenizer: Tokenizer, regex: str) -> None:
    for text in walks(tokenizer, 8, regex=regex):
        assert re.fullmatch(regex, text), text


def test_classes_are_those_of_json_schema(tiny: Tokenizer) -> None:
    for text in walks(tiny, 8, regex=r"\d{3}\w{3}"):
        assert re.fullmatch("[0-9]{3}[0-9a-zA-Z_]{3}", text), text


def test_grammar_walks_fit(tokenizer: Tokenizer) -> None:
    texts = set(walks(tokenizer, 20, grammar=SUM))
    assert any("+" in text for text in texts)
    for text in texts:
        check_sum(text)


@pytest.mark.parametrize(("schema", "kinds"), [({"type": "object"}, dict), (True, (dict, list, str, int, float, bool))])
def test_any_object_and_any_value(tokenizer: Tokenizer, schema: object, kinds: Any) -> None:
    for text in walks(tokenizer, 6, json_schema=schema):
        assert isinstance(json.loads(text), kinds) or (text == "null" and kinds is not dict)


def test_masks_are_exactly_the_prefixes_of_the_words(tokenizer: Tokenizer) -> None:
    """Against a definition by hand: a finite language, every id of the vocabulary, at every place of the walks."""
    words = {w.encode() for w in ("abc", "abd", "ab", " x", "été", "ét日", "the thing", "{}")}
    regex = "|".join(re.escape(w.decode()) for w in sorted(words))
    textless = tokenizer.unsampled_ids | set(tokenizer.settings.special_ids)
    pieces = {i: tokenizer.token_bytes(i) for i in range(tokenizer.num_tokens) if i not in textless}
    for seed in range(5):
        guide, draw, text, is_first = factory(tokenizer).make(regex=regex), random.Random(seed), b"", True
        while True:
            strips = tokenizer.strips_space and is_first
            after = {i: text + (piece.removeprefix(b" ") if strips else piece) for i, piece in pieces.items()}
            starts = {word[:length] for word in words for length in range(len(word) + 1)}
            fitting = {i for i, data in after.items() if data in starts}
            assert guide.mask().shape == (tokenizer.num_tokens,)
            assert guide.mask().dtype == np.bool_
            assert set(allowed(guide)) == fitting | (tokenizer.eos_ids if text in words else set())
            token_id = draw.choice(allowed(guide))
            if token_id in tokenizer.eos_ids:
                break
            guide.accept(token_id)
            text, is_first = after[token_id], False


def test_ends_only_where_complete(tokenizer: Tokenizer) -> None:
    guide = factory(tokenizer).make(regex="ab(cd)?")
    ends = sorted(tokenizer.eos_ids)
    for text, is_complete in (("", False), ("a", False), ("ab", True), ("abc", False), ("abcd", True)):
        if text:
            guide.accept(byte_id(tokenizer, text[-1]))
        assert guide.is_accepting == is_complete
        assert [bool(guide.mask()[i]) for i in ends] == [is_complete] * len(ends)
        if not is_complete:
            with pytest.raises(RequestError, match=f"token {ends[0]} is not allowed here"):
                guide.accept(ends[0])
    assert allowed(guide) == ends  # nothing more fits
    guide.accept(ends[0])
    assert allowed(guide) == ends


@lru_cache(maxsize=64)
def byte_id(tokenizer: Tokenizer, char: str) -> int:
    """The id of a token of one letter."""
    return next(i for i in range(tokenizer.num_tokens) if tokenizer.token_bytes(i) == char.encode())


def test_wrong_token_is_refused_and_forgotten(tokenizer: Tokenizer) -> None:
    guide = factory(tokenizer).make(regex="abc")
    for wrong in (byte_id(tokenizer, "b"), tokenizer.num_tokens, -1, min(tokenizer.settings.special_ids)):
        with pytest.raises(RequestError, match=f"regex: token {wrong} is not allowed here"):
            guide.accept(wrong)
    for char in "abc":
        guide.accept(byte_id(tokenizer, char))
    assert guide.is_accepting


def test_masks_cannot_be_written_to(tiny: Tokenizer) -> None:
    with pytest.raises(ValueError, match="read-only"):
        factory(tiny).make(regex="a").mask()[0] = True


def test_forks_are_independent(tokenizer: Tokenizer) -> None:
    guide = factory(tokenizer).make(json_schema=PERSON)
    for token_id in walk(guide.fork(), tokenizer, 3)[:4]:
        guide.accept(token_id)
    before = guide.mask().copy()
    twins = [guide.fork() for _ in range(3)]
    for seed, twin in enumerate(twins):
        walk(twin, tokenizer, seed)
    assert np.array_equal(guide.mask(), before)
    assert np.array_equal(guide.fork().mask(), before)


def test_a_fork_fails_where_it_would_alone(tiny: Tokenizer) -> None:
    """The limits count one guide's work: what other forks have seen neither helps nor harms."""
    what = {"regex": "(.*a.{100}b.*){50}"}
    alone = [steps_until_refused(factory(tiny).make(**what), tiny, seed) for seed in range(3)]
    assert max(alone) < 2000, "the control: this regex must meet a limit"
    guide = factory(tiny).make(**what)
    assert [steps_until_refused(guide.fork(), tiny, seed) for seed in range(3)] == alone


def steps_until_refused(guide: Guide, tokenizer: Tokenizer, seed: int) -> int:
    draw = random.Random(seed)
    for step in range(2000):
        try:
            choices = [i for i in allowed(guide) if i not in tokenizer.eos_ids]
            guide.accept(draw.choice(choices))
        except RequestError:
            return step
    return 2000


def test_same_ids_same_masks(tokenizer: Tokenizer) -> None:
    ids = walk(factory(tokenizer).make(json_schema=PERSON), tokenizer, 5)
    first, second = (factory(tokenizer).make(json_schema=PERSON), GuideFactory(tokenizer).make(json_schema=PERSON))
    walk(factory(tokenizer).make(json_schema=True), tokenizer, 1)
    for token_id in ids:
        first.mask()  # asked twice, which must not matter
        assert np.array_equal(first.mask(), second.mask())
        first.accept(token_id)
        second.accept(token_id)


@pytest.mark.parametrize("text", ["a", " a", "{}", "  b"])
def test_dropped_space_at_the_beginning(spaced: Tokenizer, text: str) -> None:
    """The text is what decoding gives, so the token with a space is as good as the one without."""
    guide = factory(spaced).make(regex=re.escape(text))
    firsts = {spaced.decode([i]) for i in allowed(guide) if spaced.token_bytes(i).startswith(b" ")}
    assert firsts
    assert all(text.startswith(first) for first in firsts)
    for seed in range(6):
        assert spaced.decode(walk(guide.fork(), spaced, seed)) == text


@pytest.mark.model
def test_bytes_without_token_are_a_dead_end(real: Tokenizer) -> None:
    """U+0006 has no token in SmolLM2's vocabulary."""
    with pytest.raises(RequestError, match="no token of this vocabulary can follow"):
        factory(real).make(regex="\\x06")
    guide = factory(real).make(regex="a\\x06b")
    guide.accept(byte_id(real, "a"))
    with pytest.raises(RequestError, match="no token of this vocabulary can follow"):
        guide.mask()


def test_model_without_end_token(tiny: Tokenizer) -> None:
    endless = Tokenizer(
        json.dumps(make_tokenizer()), {**tiny.settings.to_dict(), "eos_token_ids": [], "eos_token_id": None}
    )
    guide = GuideFactory(endless).make(regex="ab")
    for char in "ab":
        assert allowed(guide)
        guide.accept(byte_id(endless, char))
    assert guide.is_accepting
    assert allowed(guide) == []


def test_control_tokens_only_by_name(tiny: Tokenizer) -> None:
    guide = factory(tiny).make(grammar='start: "a" <|user|> "b"')
    guide.accept(byte_id(tiny, "a"))
    assert allowed(guide) == [tiny.find_id("<|user|>")]
    spelled = factory(tiny).make(regex=re.escape("<|user|>"))
    assert tiny.find_id("<|user|>") not in allowed(spelled)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({}, "none given"),
        ({"regex": "a", "json_schema": True}, "json_schema and regex given"),
        ({"regex": "(a"}, r"^regex is refused: invalid regex \"\(a\".*unclosed group$"),
        ({"regex": ""}, "regex is empty"),
        ({"regex": "a\\"}, "lone backslash"),
        ({"regex": "(?=a)b"}, "regex is refused"),
        ({"regex": 7}, "regex is a int"),
        ({"regex": "\ud800"}, "unpaired surrogate"),
        ({"json_schema": False}, "no text fits"),
        ({"json_schema": "{"}, "not JSON"),
        ({"json_schema": "[]"}, "is a list"),
        ({"json_schema": 3}, "is a int"),
        ({"json_schema": {"type": "objekt"}}, "^json_schema is refused: [a-z JSON]*: Invalid type: objekt$"),
        ({"json_schema": {"a": float("nan")}}, "not plain JSON"),
        ({"json_schema": {"a": {1, 2}}}, "not plain JSON"),
        ({"json_schema": {"x-guidance": 1}}, "x-guidance"),
        ({"json_schema": {"$ref": "http://127.0.0.1:9/schema.json"}}, "json_schema is refused"),
        ({"json_schema": {"not": {}}}, "json_schema is refused"),
        ({"grammar": "start: other"}, "^grammar is refused: line 1, column 8: unknown name: .other.$"),
        ({"grammar": "rule: \"a\""}, "no start rule"),
        ({"grammar": 'start: x\nx[temperature=0.5]: "a"'}, "temperature is not available"),
        ({"grammar": 'start: x "b"\nx[max_tokens=3]: /a*/'}, "max_tokens is not available"),
    ],
)  # fmt: skip
def test_bad_constraints_are_named(tiny: Tokenizer, what: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=f"(?s){reason}"):
        factory(tiny).make(**what)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(count: int) -> dict[str, Any]:
    return {
        "allOf": [{"anyOf": [{"required": [f"p{i}"]}, {"properties": {f"q{i}": {}}}]} for i in range(count)],
        "type": "object",
    }


HOSTILE: dict[str, dict[str, Any]] = {
    "large": {"regex": "a" * 70_000},
    "nested schema": {"json_schema": nested(500)},
    "nested regex": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "repeats": {"regex": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"},
    "states": {"regex": "(.*a.{100}b.*){50}"},
    "doubling": {"json_schema": doubling(30)},
    "circle": {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
    "properties": {"json_schema": {"type": "object", "properties": {f"p{i}": True for i in range(4000)}}},
    "long": {"json_schema": {"type": "string", "minLength": 10**9, "maxLength": 10**9}},
    "many items": {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}},
    "multiple": {"json_schema": {"type": "integer", "multipleOf": 999_999_937}},
    "optional": {"grammar": "start: " + "x? " * 9000 + '\nx: "a" | "b" x'},
    "ambiguous": {"grammar": 'start: a\na: a a a | a a | "x" | "xx" |'},
    "powers": {"grammar": "start: T60\n" + "".join(f"T{i}: T{i - 1} T{i - 1}\n" for i in range(1, 61)) + "T0: /a|b/"},
    "negations": {"grammar": "start: A\nA: ~/(.*a.{12}b.*)/ & ~/(.*c.{12}d.*)/ & ~/(.*e.{12}f.*)/"},
    "slashes": {"grammar": "/" * 60_000},
    "substrings": {"grammar": 'start: %regex {"substring_chars": "' + "ab" * 25_000 + '"}'},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_constraints_end_soon(tiny: Tokenizer, name: str) -> None:
    """Refused, or walked in steps of bounded length; the processor times are many times what was measured."""
    begin = time.process_time()
    try:
        guide = factory(tiny).make(**HOSTILE[name])
        draw, longest = random.Random(0), 0.0
        for _ in range(60):
            step = time.process_time()
            choices = allowed(guide)
            guide.accept(draw.choice(choices))
            longest = max(longest, time.process_time() - step)
            if guide.is_accepting:
                break
        assert longest < 5
    except RequestError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert len(refusal) < 1000
    assert time.process_time() - begin < 20


def chain(kind: str) -> dict[str, Any]:
    """A chain of references, as long as the size allows."""
    if kind == "rules":
        lines = [f"r{i:x}:r{i + 1:x}" for i in range(4800)]
        return {"grammar": "\n".join(["start:r0", *lines, f'r{4800:x}:"a"'])}
    if kind == "terminals":
        lines = [f'R{i:X}:(R{i + 1:X} "b")?' for i in range(3000)]
        return {"grammar": "\n".join(["start:R0", *lines, f'R{3000:X}:"a"'])}
    bodies = {
        "refs": lambda i: {"$ref": f"#/$defs/{i + 1:x}"},
        "items": lambda i: {"items": {"items": {"items": {"$ref": f"#/$defs/{i + 1:x}"}}}},
        "all": lambda i: {"allOf": [{"$ref": f"#/$defs/{i + 1:x}"}, {}]},
        "any": lambda i: {"anyOf": [{"$ref": f"#/$defs/{i + 1:x}"}, {"const": i}]},
    }
    count = 1000
    definitions = {f"{i:x}": bodies[kind](i) for i in range(count)}
    return {"json_schema": {"$ref": "#/$defs/0", "$defs": {**definitions, f"{count:x}": {"type": "integer"}}}}


@pytest.mark.parametrize("kind", ["rules", "terminals", "refs", "items", "all", "any"])
def test_deep_chains_do_not_end_the_process(kind: str, tmp_path: Path) -> None:
    """In a process of its own, asked from a thread with a small stack: an overflow would be a crash."""
    (tmp_path / "what.json").write_text(json.dumps(chain(kind)))
    code = (
        "import json, pathlib, sys, tempfile, threading\n"
        "from tests.tiny import write_checkpoint\n"
        "from exactlm.text.hf_tokenizer import build_from_directory\n"
        "from exactlm.text.guide import GuideFactory\n"
        "from exactlm.text.tokenizer import Tokenizer\n"
        "from exactlm.errors import RequestError\n"
        "what = json.loads(pathlib.Path(sys.argv[1]).read_text())\n"
        "factory = GuideFactory(Tokenizer(*build_from_directory(write_checkpoint(tempfile.mkdtemp()))))\n"
        "def run():\n"
        "    try:\n"
        "        print('made', factory.make(**what).fork().mask().sum())\n"
        "    except RequestError as error:\n"
        "        print('refused', str(error)[:200])\n"
        "threading.stack_size(1 << 18)\n"
        "thread = threading.Thread(target=run); thread.start(); thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "what.json")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert re.match(r"made [1-9]|refused \w", done.stdout), done.stdout
    assert "bytes; at most" not in done.stdout, "the chain must be as deep as the size allows, not deeper"


def test_guides_of_several_threads(tiny: Tokenizer) -> None:
    texts: dict[int, str] = {}

    def run(seed: int) -> None:
        texts[seed] = tiny.decode(walk(factory(tiny).make(json_schema=PERSON), tiny, seed))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(walks(tiny, 8, json_schema=PERSON)) == [texts[seed] for seed in range(8)]


def test_missing_package_names_the_extra(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def fail(name: str, *rest: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ConfigError, match=r'pip install "exactlm\[server\]"'):
        GuideFactory(tiny)
