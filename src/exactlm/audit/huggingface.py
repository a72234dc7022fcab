"""A Hugging Face model on torch under audit, through transformers' own generate(). Requests made at once are one batch,
padded on the left as generate() wants it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from exactlm.audit.condition import Condition, Shot, Wave, Workload, alone, common_conditions, seed_conditions, together
from exactlm.audit.target import Answer, Unvaried, gather_unvaried
from exactlm.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
BATCH = 8
LEFT_OUT = ("arrival", "streaming", "logprobs")
NOT_VARIED = (
    ("arrival", "generate() takes whole batches: no request can join one that runs"),
    ("streaming", "a streamer prints what generate() chose; nothing is computed otherwise"),
    ("logprobs", "generate() always has the logits"),
    ("seed", "one generator for the whole batch: rows cannot have seeds of their own; the wave's first seed is set"),
    ("cache", "nothing is kept from one generate() to the next, so warm is cold; `cached prefix` hands a cache over"),
    ("isa", "another machine, or torch built otherwise: run the audit there"),
)  # fmt: skip


class HuggingFaceTarget:
    """directory: a checkpoint of the hub's form. dtype: one of DTYPES, None for that of the checkpoint. Raises
    ConfigError."""

    keeps_logits = True

    def __init__(
        self, directory: str, dtype: str | None = None, threads: int | None = None, is_chat: bool = False
    ) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise ConfigError(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
        self._directory, self._is_chat = directory, is_chat
        transformers.utils.logging.disable_progress_bar()
        if threads is not None:
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()
        self._model = self._load(dtype or "auto")
        self.dtype = str(self._model.dtype).removeprefix("torch.")
        self._loaded = self.dtype
        self._tokenizer = self._load_tokenizer()
        self._cache_name = _find_cache_name(self._model)
        self._attention = self._model.config._attn_implementation
        self._setup: dict[str, Any] = {}
        self._told = self._describe()  # now: a condition may load another dtype

    def describe(self) -> dict[str, str]:
        return dict(self._told)

    def _describe(self) -> dict[str, str]:
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        base = f"{self.threads} threads, {self._attention} attention, one prompt a batch"
        weights = sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            weights.update(name.encode() + tensor.reshape(-1)[:1024].float().cpu().numpy().tobytes())
        model = f"{self._model.config.model_type}, {weights.hexdigest()[:16]}"
        return {"kind": "torch", "engine": versions, "model": model, "dtype": self.dtype, "base": base}

    def conditions(self, load: Workload) -> list[Condition]:
        asked = [c for c in common_conditions(load) if c.factor not in LEFT_OUT and c.factor != "cache"]
        return [*asked, *self._own_conditions(load), *seed_conditions(load), *self._other_dtypes(load)]

    def unvaried(self) -> list[Unvaried]:
        return gather_unvaried(NOT_VARIED)

    def prepare(self, condition: Condition) -> None:
        setup = self._setup = dict(condition.setup)
        torch.set_num_threads(int(setup.get("threads", self.threads)))
        dtype = str(setup.get("dtype", self.dtype))
        if dtype != self._loaded:
            self._model = self._load(dtype)
            self._loaded = dtype
        self._model.set_attn_implementation(setup.get("attention", self._attention))
        torch.use_deterministic_algorithms(bool(setup.get("deterministic", False)))

    def fire(self, wave: Wave) -> list[Answer]:
        begin = time.monotonic()
        try:
            answers = self._generate(wave)
        except (RuntimeError, ValueError, IndexError) as error:
            answers = [Answer(error=f"{type(error).__name__}: {error}"[:300]) for _ in wave]
        seconds = round(time.monotonic() - begin, 4)
        return [replace(answer, seconds=seconds) for answer in answers]

    def is_alive(self) -> bool:
        return True

    def note(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(self.threads)

    def _load(self, dtype: str) -> Any:
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(self._directory, dtype=dtype)
        except (OSError, ValueError) as error:
            raise ConfigError(f"hf:{self._directory}: cannot be loaded: {error}") from None
        return model.eval()

    def _load_tokenizer(self) -> Any:
        try:
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(self._directory, padding_side="left")
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"hf:{self._directory}: its tokenizer cannot be loaded: {error}") from None
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if self._is_chat and tokenizer.chat_template is None:
            raise ConfigError(f"hf:{self._directory}: has no chat template: leave --chat out")
        return tokenizer

    def _own_conditions(self, load: Workload) -> list[Condition]:
        each, once = load.each(1), alone(load.each(1))
        other = 1 if self.threads > 1 else 2
        attention = "eager" if self._attention != "eager" else "sdpa"
        told: list[tuple[str, str, str, dict[str, object]]] = [
            (f"{other} threads", "threads", "alone, with another number of threads", {"threads": other}),
            ("chunks of 16", "chunk", "alone, the prompt read 16 tokens a step", {"chunk": 16}),
            ("cached prefix", "cache", "alone, the first half of the prompt computed before", {"cached": True}),
            ("no KV cache", "cache", "alone, everything computed again for each token", {"use_cache": False}),
            (f"{attention} attention", "attention", "alone, another implementation", {"attention": attention}),
        ]
        padded = Condition("one padded", "padding", "alone, with 16 padding tokens before", once, setup={"padding": 16})
        deterministic = Condition(
            f"deterministic, {BATCH} at once", "padding", "with torch.use_deterministic_algorithms",
            together(each, BATCH), setup={"deterministic": True},
        )  # fmt: skip
        made = [Condition(name, factor, text, once, setup=setup) for name, factor, text, setup in told]
        return [*made, padded, deterministic]

    def _other_dtypes(self, load: Workload) -> list[Condition]:
        other = "float32" if self.dtype != "float32" else "bfloat16"
        once = alone(load.each(1))
        return [Condition(f"in {other}", "dtype", f"alone, in {other}", once, role="other", setup={"dtype": other})]

    def _generate(self, wave: Sequence[Shot]) -> list[Answer]:
        """One batch; shots that want fewer tokens than others get their share of what was generated."""
        texts = [self._prompt(shot) for shot in wave]
        padding = int(self._setup.get("padding", 0))
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True)
        ids, mask = _pad(inputs["input_ids"], inputs["attention_mask"], padding, self._tokenizer.pad_token_id)
        first = wave[0]
        options: dict[str, Any] = {"use_cache": self._setup.get("use_cache", True)}
        if "chunk" in self._setup:
            options["prefill_chunk_size"] = self._setup["chunk"]
        if self._setup.get("cached") and ids.shape[1] > 1:
            half = ids.shape[1] // 2
            options[self._cache_name] = self._compute(ids[:, :half])
        is_drawn = first.temperature > 0
        if is_drawn:
            if any(shot.seed is not None for shot in wave):
                torch.manual_seed(next(shot.seed for shot in wave if shot.seed is not None))
            options |= {"temperature": first.temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            made = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(shot.max_tokens for shot in wave),
                do_sample=is_drawn,
                output_logits=True,
                return_dict_in_generate=True,
                pad_token_id=self._tokenizer.pad_token_id,
                **options,
            )
        logits = torch.stack(made.logits).float()  # [T, B, V]
        chosen = made.sequences[:, ids.shape[1] :]  # [B, T]
        return [self._read(shot, chosen[row], logits[:, row]) for row, shot in enumerate(wave)]

    def _compute(self, ids: Tensor) -> Any:
        """The KV cache of ids [B, T]."""
        with torch.inference_mode():
            return getattr(self._model(ids, use_cache=True), self._cache_name)

    def _read(self, shot: Shot, chosen: Tensor, logits: Tensor) -> Answer:
        """The answer in one row: chosen [T], logits [T, V]."""
        ids = [int(i) for i in chosen[: shot.max_tokens]]
        ends = self._model.generation_config.eos_token_id
        stops = {ends} if isinstance(ends, int) else set(ends or ())
        end = next((i for i, token in enumerate(ids) if token in stops), None)
        kept = ids if end is None else ids[: end + 1]
        rows = logits[: len(kept)]
        logprobs = torch.log_softmax(rows.double(), -1)[torch.arange(len(kept)), torch.tensor(kept)]
        values: NDArray[np.float32] = rows.numpy().copy()
        text = self._tokenizer.decode(kept, skip_special_tokens=True)
        digest = sha256(values.tobytes()).hexdigest()
        reason = "length" if end is None else "stop"
        return Answer(text, list(kept), [float(v) for v in logprobs], digest, reason, logits=values)

    def _prompt(self, shot: Shot) -> str:
        if not self._is_chat:
            return shot.text
        messages = [{"role": "user", "content": shot.text}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _find_cache_name(model: Any) -> str:
    """transformers renamed the argument that takes a KV cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _pad(ids: Tensor, mask: Tensor, count: int, pad: int) -> tuple[Tensor, Tensor]:
    """More padding on the left: ids, mask [B, T] become [B, count + T]."""
    if count == 0:
        return ids, mask
    before = torch.full((len(ids), count), pad, dtype=ids.dtype)
    return torch.cat([before, ids], 1), torch.cat([torch.zeros_like(before), mask], 1)
