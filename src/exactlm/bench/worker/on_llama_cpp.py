"""llama.cpp through the C functions of llama-cpp-python, with its defaults but for threads and room.

All questions are sequences of one context, decoded together, as its server does. Nothing is kept between batches.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as c

from .protocol import Question, Reply, cut, digest_ids, option_ids

ROOM = 256  # a context grows by so many tokens a sequence


class LlamaCpp:
    """A GGUF file, opened once; its context is made again where a batch needs more room."""

    def __init__(self, model: str, threads: int, streams: int) -> None:
        self._silent = c.llama_log_callback(lambda *_: None)
        c.llama_backend_init()
        c.llama_log_set(self._silent, ctypes.c_void_p(0))
        self._model = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
        if not self._model:
            raise ValueError(f"llama.cpp cannot open {model}")
        self._vocab = c.llama_model_get_vocab(self._model)
        self._num_tokens = c.llama_vocab_n_tokens(self._vocab)
        self._threads, self._streams, self._room = threads, streams, 0
        self._context: Any = None
        self.facts = {"engine": f"llama-cpp-python {llama_cpp.__version__}"}

    def choose(self, questions: list[Question]) -> list[Reply]:
        read = [option_ids(self._encode, q) for q in questions]
        replies: list[Reply] = []
        for (prompt, options), logits in zip(read, self._prefill([p for p, _ in read], 1), strict=True):
            row = logits.astype(np.float64)
            scores = row - row.max()
            scores -= np.log(np.exp(scores).sum())
            replies.append({"scores": [float(scores[i]) for i in options], "prompt_sha256": digest_ids(prompt)})
        return replies

    def complete(self, questions: list[Question]) -> list[Reply]:
        prompts = [self._encode(q["prompt"]) for q in questions]
        rows = self._prefill(prompts, max(q["max_tokens"] for q in questions))
        raw, texts = [b""] * len(questions), [""] * len(questions)
        chosen = {i: int(row.argmax()) for i, row in enumerate(rows)}
        for step in range(max(q["max_tokens"] for q in questions)):
            for i, token in list(chosen.items()):
                raw[i] += self._spell(token)
                texts[i], is_stopped = cut(raw[i].decode("utf-8", "replace"), questions[i]["stop"])
                is_ended = c.llama_vocab_is_eog(self._vocab, token) or step + 1 == questions[i]["max_tokens"]
                if is_stopped or is_ended:
                    del chosen[i]
            if not chosen:
                break
            found = self._decode([(i, len(prompts[i]) + step, token, True) for i, token in chosen.items()])
            chosen = {i: int(row.argmax()) for i, row in found.items()}
        return [{"text": text, "prompt_sha256": digest_ids(ids)} for text, ids in zip(texts, prompts, strict=True)]

    def _prefill(self, prompts: list[list[int]], num_more: int) -> list[Any]:
        """Logits after each prompt, all sequences begun anew."""
        self._make_room(max(map(len, prompts)) + num_more)
        c.llama_memory_clear(c.llama_get_memory(self._context), True)
        rows = [(s, i, t, i == len(ids) - 1) for s, ids in enumerate(prompts) for i, t in enumerate(ids)]
        size, found = c.llama_n_batch(self._context), {}
        for at in range(0, len(rows), size):
            found.update(self._decode(rows[at : at + size]))
        return [found[s] for s in range(len(prompts))]

    def _make_room(self, num_tokens: int) -> None:
        if num_tokens <= self._room:
            return
        self._room = -(-num_tokens // ROOM) * ROOM
        if self._context:
            c.llama_free(self._context)
        p = c.llama_context_default_params()
        p.n_seq_max, p.n_ctx = self._streams, self._streams * self._room
        p.n_threads = p.n_threads_batch = self._threads
        self._context = c.llama_init_from_model(self._model, p)
        if not self._context:
            raise MemoryError(f"llama.cpp makes no context of {p.n_ctx} tokens")

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> dict[int, Any]:
        """Runs (sequence, position, token, whether its logits are wanted); float32 logits by sequence."""
        batch = c.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, is_wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, sequence
            batch.logits[i] = is_wanted
        status = c.llama_decode(self._context, batch)
        c.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        return {s: self._logits(i) for i, (s, _, _, is_wanted) in enumerate(rows) if is_wanted}

    def _logits(self, row: int) -> Any:
        pointer = c.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self._num_tokens,)).copy()

    def _encode(self, text: str) -> list[int]:
        data = text.encode()
        ids = (c.llama_token * (len(data) + 2))()
        count = c.llama_tokenize(self._vocab, data, len(data), ids, len(ids), True, False)
        return list(ids[:count])

    def _spell(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        count = c.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[: max(count, 0)]
