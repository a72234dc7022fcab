"""Long texts in two stages: an outline from the most likely tokens, then every point of it in drawn words.

The whole is a function of model, task, numbers and seed, and has one digest. Knows the facade; nothing of engines.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from exactlm.answer import RequestOutput
from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import RequestError
from exactlm.llm import LLM
from exactlm.prompt import Prompt

MAX_POINTS = 32
_FEWEST, _MOST = 3, 6  # points, where the caller leaves the number to the model
_TEMPERATURE = 0.8
_TAG = b"exactlm-two-stage-1\0"
_SEED_MASK = (1 << 53) - 1  # every JSON reader keeps such a number whole
_POINT = r"[A-Z0-9][^\n]{2,98}"
_MARK = re.compile(r"^\s*(?:\d+\s*[.):]|[-•]|\*(?!\*))\s*(.*)$")  # not of **bold**
_OUTLINE = "Write an outline for this task: a numbered list of {count} short points, one line each.\n\nTask: {task}"
_OTHERS = "\n\nOther parts of the text are about: {others}"
_DETAIL = "{task}{others}\n\nWrite one or two paragraphs about: {point}"


@dataclass(frozen=True)
class Part:
    """The outline, or the text of one point. `seed`: None where nothing was drawn."""

    text: str
    seed: int | None
    prompt_token_ids: list[int]
    token_ids: list[int]
    finish_reason: str
    digest: str


@dataclass(frozen=True)
class TwoStageOutput:
    """What came of a task. `details` has one part for each of `points`; `digest` is over the digests of all parts."""

    task: str
    seed: int
    points: list[str]
    outline: Part
    details: list[Part]
    digest: str
    fingerprint: str

    @property
    def text(self) -> str:
        """The whole: each point as a heading, its part below."""
        return "\n\n".join(
            f"{point}\n\n{part.text.strip()}" for point, part in zip(self.points, self.details, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "text": self.text}


def write_in_two_stages(
    llm: LLM,
    task: str,
    *,
    points: int | None = None,
    seed: int = 0,
    temperature: float | None = None,
    outline_params: SamplingParams | None = None,
    detail_params: SamplingParams | None = None,
) -> TwoStageOutput:
    """Writes an outline of `task`, then elaborates its points in one batch.

    points: how many, 1 to 32; None leaves 3 to 6 to the model. seed: 0 to 2^64 - 1; part i of the text (the outline is
    0, the points count from 1) is drawn with derive_seed(seed, i). outline_params: None for the most likely tokens with
    repetition_penalty 1.1, constrained to a numbered list (needs the extra `server`); others are used as they are, and
    the list is read from what comes. detail_params: None for temperature (None for 0.8), top_p 0.95 and 256 tokens.
    RequestError if a value is out of range, temperature and detail_params are both given, parameters bring their own
    seed or n, or the outline has no points; else as LLM.generate.
    """
    _check(task, points, seed)
    if detail_params is None:
        drawn = _TEMPERATURE if temperature is None else temperature
        detail_params = SamplingParams(temperature=drawn, top_p=0.95, max_tokens=256)
    elif temperature is not None:
        raise RequestError(f"temperature={temperature}: leave it out beside detail_params, which have their own")
    first = _take("outline_params", outline_params or _outline_params(points), seed, 0)
    count = str(points) if points else f"{_FEWEST} to {_MOST}"
    outline = llm.generate([_ask(llm, _OUTLINE.format(count=count, task=task))], first)[0]
    found = read_points(outline.outputs[0].text)[: points or (MAX_POINTS if outline_params else _MOST)]
    if not found:
        raise RequestError("the outline has no points: leave outline_params to the default, which constrains it")
    asked = [_ask(llm, _describe(task, found, i)) for i in range(len(found))]
    each = [_take("detail_params", detail_params, seed, i) for i in range(1, len(found) + 1)]
    details = [_make_part(r) for r in llm.generate(asked, each)]
    head = _make_part(outline)
    return TwoStageOutput(task, seed, found, head, details, combine_digests(seed, [head, *details]), llm.fingerprint)


def derive_seed(seed: int, index: int) -> int:
    """The seed of part `index`: the low 53 bits of the first 8 bytes, little-endian, of the SHA-256 of
    "exactlm-two-stage-1", a zero byte, `seed` and `index` (8 bytes each, little-endian)."""
    data = _TAG + seed.to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") & _SEED_MASK


def combine_digests(seed: int, parts: list[Part]) -> str:
    """SHA-256 of "exactlm-two-stage-1", a zero byte, the seed and the number of parts (8 bytes each, little-endian),
    and the 32 bytes of every part's digest, the outline first."""
    data = _TAG + seed.to_bytes(8, "little") + len(parts).to_bytes(8, "little")
    return hashlib.sha256(data + b"".join(bytes.fromhex(part.digest) for part in parts)).hexdigest()


def read_points(text: str) -> list[str]:
    """The points of a list, numbered or with dashes, without marks and repeats; all lines where nothing is marked."""
    # Not splitlines(): a line ends where the outline's regular expression says so, not at U+2028 or U+0085.
    lines = [line for line in text.split("\n") if line.strip()]
    marked = [match[1] for line in lines if (match := _MARK.match(line))]
    cleaned = (line.replace("**", "").strip().strip("#:").strip() for line in marked or lines)
    return list(dict.fromkeys(line for line in cleaned if line))


def _check(task: object, points: object, seed: object) -> None:
    if not isinstance(task, str) or not task.strip():
        raise RequestError(f"task={task!r:.60}: use a text that is not empty")
    if points is not None and not _is_int(points, 1, MAX_POINTS):
        raise RequestError(f"points={points!r:.60}: use a whole number from 1 to {MAX_POINTS}, or None")
    if not _is_int(seed, 0, (1 << 64) - 1):
        raise RequestError(f"seed={seed!r:.60}: use a whole number from 0 to 2^64 - 1")


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _outline_params(points: int | None) -> SamplingParams:
    """Greedy, and a numbered list and nothing else: small models do not keep to one by themselves."""
    least, most = (points, points) if points else (_FEWEST, _MOST)
    lines = [f"{i}\\. {_POINT}" for i in range(1, most + 1)]
    regex = r"\n".join(lines[:least]) + "".join(rf"(\n{line}" for line in lines[least:]) + ")?" * (most - least)
    return SamplingParams(regex=regex, repetition_penalty=1.1, max_tokens=100 * most)


def _take(name: str, params: SamplingParams, seed: int, index: int) -> SamplingParams:
    if params.n != 1 or params.seed is not None:
        raise RequestError(f"{name}: n={params.n}, seed={params.seed}: leave both out; seeds come from `seed`")
    return params if params.is_greedy else replace(params, seed=derive_seed(seed, index))


def _describe(task: str, points: list[str], at: int) -> str:
    """What is asked for one point. The others are named in a line: small models continue a list that they see."""
    others = "; ".join(point for i, point in enumerate(points) if i != at)
    return _DETAIL.format(task=task, others=_OTHERS.format(others=others) if others else "", point=points[at])


def _ask(llm: LLM, text: str) -> Prompt:
    if llm.tokenizer.chat_template is None:
        return text + "\n\n"
    return llm.read_chat([{"role": "user", "content": text}])


def _make_part(result: RequestOutput) -> Part:
    answer = result.outputs[0]
    return Part(
        answer.text, result.seed, result.prompt_token_ids, answer.token_ids, answer.finish_reason, answer.digest
    )
