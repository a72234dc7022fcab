"""transformers on torch, as most people run it: padded batches, the default attention, generate().

Choices are padded on the right, so that padding comes after every position that counts; completions on the left, as
generate() wants them.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from .protocol import Question, Reply, cut, digest_ids, option_ids


class Torch:
    """A Hugging Face checkpoint in one number format."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        kind = getattr(torch, dtype)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=kind).eval()
        self.facts = {"engine": f"torch {torch.__version__}, transformers {transformers.__version__}", "dtype": dtype}

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def choose(self, questions: list[Question]) -> list[Reply]:
        read = [option_ids(self._encode, q) for q in questions]
        ids, mask = self._pad([p for p, _ in read], is_left=False)
        last = [len(p) - 1 for p, _ in read]
        kept = sorted(set(last))  # logits of these positions only: of all, they would fill the memory
        made = self._model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=torch.tensor(kept))
        replies: list[Reply] = []
        for row, (prompt, options) in enumerate(read):
            scores = torch.log_softmax(made.logits[row, kept.index(last[row])].double(), -1)
            replies.append({"scores": [float(scores[i]) for i in options], "prompt_sha256": digest_ids(prompt)})
        return replies

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def complete(self, questions: list[Question]) -> list[Reply]:
        prompts = [self._encode(q["prompt"]) for q in questions]
        ids, mask = self._pad(prompts, is_left=True)
        width, limits = ids.shape[1], [q["max_tokens"] for q in questions]

        def are_done(made: Any, _: Any, **__: Any) -> Any:
            texts = self._tokenizer.batch_decode(made[:, width:], skip_special_tokens=True)
            return torch.tensor([cut(text, q["stop"])[1] for text, q in zip(texts, questions, strict=True)])

        made = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=max(limits),
            pad_token_id=self._tokenizer.pad_token_id,
            stopping_criteria=transformers.StoppingCriteriaList([are_done]),
        )
        replies: list[Reply] = []
        for row, question in enumerate(questions):
            kept = made[row, width : width + limits[row]]
            text, _ = cut(self._tokenizer.decode(kept, skip_special_tokens=True), question["stop"])
            replies.append({"text": text, "prompt_sha256": digest_ids(prompts[row])})
        return replies

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def _pad(self, prompts: list[list[int]], is_left: bool) -> tuple[Any, Any]:
        """Token ids and mask, both [B, T]."""
        width, pad = max(map(len, prompts)), self._tokenizer.pad_token_id
        gaps = [[pad] * (width - len(p)) for p in prompts]
        ids = [[*gap, *p] if is_left else [*p, *gap] for gap, p in zip(gaps, prompts, strict=True)]
        zeros = [[0] * len(gap) for gap in gaps]
        mask = [[*z, *[1] * len(p)] if is_left else [*[1] * len(p), *z] for z, p in zip(zeros, prompts, strict=True)]
        return torch.tensor(ids), torch.tensor(mask)
