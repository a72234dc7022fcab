"""exactlm through its public interface."""

from __future__ import annotations

import sys
from pathlib import Path

from .protocol import Question, Reply, digest_ids, option_ids

sys.path.append(str(Path(__file__).parents[3]))  # last: an installed exactlm comes first

from exactlm import LLM, SamplingParams, __version__

TOP = 64  # log-probabilities taken with the answer; an option below them is scored with a second pass


class ExactLm:
    """An option's score is its log-probability as spec/numerics.md 10.4 defines it: one value, however it is asked."""

    def __init__(self, model: str, threads: int, streams: int, has_cache: bool) -> None:
        self._llm = LLM(model, threads=threads, max_batch=max(streams, 1), prefix_cache=has_cache)
        self.facts = {"engine": f"exactlm {__version__} ({self._llm.isa})", "fingerprint": self._llm.fingerprint}

    def choose(self, questions: list[Question]) -> list[Reply]:
        read = [option_ids(self._llm.tokenizer.encode, q) for q in questions]
        params = SamplingParams(max_tokens=1, logprobs=min(TOP, self._llm.tokenizer.num_tokens))
        replies: list[Reply] = []
        for output, (prompt, options) in zip(self._llm.generate([p for p, _ in read], params), read, strict=True):
            (top,) = output.outputs[0].logprobs or []
            scores = [top[i] if i in top else self._llm.score([*prompt, i])[-1] for i in options]
            replies.append({"scores": scores, "prompt_sha256": digest_ids(prompt)})
        return replies

    def complete(self, questions: list[Question]) -> list[Reply]:
        params = [SamplingParams(max_tokens=q["max_tokens"], stop=tuple(q["stop"])) for q in questions]
        outputs = self._llm.generate([q["prompt"] for q in questions], params)
        return [{"text": o.outputs[0].text, "prompt_sha256": digest_ids(o.prompt_token_ids)} for o in outputs]
