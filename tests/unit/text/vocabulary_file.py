"""Where the real vocabularies lie, and how to read their metadata once."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from exactlm.convert.gguf_header import read_header
from exactlm.text.gguf_tokenizer import build_from_gguf
from exactlm.text.tokenizer import Tokenizer

REPOSITORY = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("EXACTLM_DATA") or REPOSITORY.parent / "shared" / "data")
REAL_MODEL = REPOSITORY / ".cache" / "source" / "SmolLM2-135M-Instruct.Q4_1.gguf"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = ["the cat sat on the mat, and that was that", "12 + 34 = 46", "def f(x):\n    return x", "naïve café"] * 3


def need(path: Path) -> Path:
    """Return `path`, or skip the test naming the file it wants."""
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


@lru_cache(maxsize=8)
def read_metadata(path: Path) -> dict[str, Any]:
    header, mapped = read_header(path)
    metadata = {key: value for key, value in header.metadata.items() if key.startswith("tokenizer.")}
    mapped.close()
    return metadata


def read_vocabulary(name: str) -> dict[str, Any]:
    """The GGUF metadata of the vocabulary called `name`: "gpt-2", "llama-spm", "llama-bpe" or "qwen2"."""
    return read_metadata(need(DATA / "tokenizers" / f"ggml-vocab-{name}.gguf"))


@lru_cache(maxsize=8)
def load_vocabulary(name: str) -> Tokenizer:
    """The tokenizer of that vocabulary."""
    return Tokenizer(*build_from_gguf(read_vocabulary(name)))
