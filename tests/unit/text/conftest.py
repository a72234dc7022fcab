"""Real vocabularies where they are at hand, and a small one made on the spot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from vocabulary_file import CORPUS, REAL_MODEL, load_vocabulary, need, read_metadata

from exactlm.text.gguf_tokenizer import build_from_gguf
from exactlm.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm() -> Tokenizer:
    """The real model's tokenizer."""
    return Tokenizer(*build_from_gguf(read_metadata(need(REAL_MODEL))))


@pytest.fixture(scope="session")
def llama_spm() -> Tokenizer:
    """A SentencePiece tokenizer: leading spaces, byte tokens."""
    return load_vocabulary("llama-spm")


@pytest.fixture(scope="session")
def tiny_document() -> dict[str, Any]:
    """A byte-level tokenizer.json of 500 entries: three control tokens, then one user-defined."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=496, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(["<|bos|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    document: dict[str, Any] = json.loads(made.to_str())
    return document


@pytest.fixture
def write_checkpoint(tmp_path: Path, tiny_document: dict[str, Any]) -> Callable[..., Path]:
    """Write a Hugging Face directory with the tiny tokenizer; keywords are further files (name without .json)."""

    def write(document: dict[str, Any] | None = None, **files: Any) -> Path:
        (tmp_path / "tokenizer.json").write_text(json.dumps(document or tiny_document), encoding="utf-8")
        files.setdefault("tokenizer_config", {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"})
        for name, value in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        return tmp_path

    return write
