"""Hugging Face directories: config.json and one or several safetensors files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from exactlm.convert.source import F32, Checkpoint, SourceTensor, check_tensors
from exactlm.errors import CheckpointError, FormatError, UnsupportedError
from exactlm.format.json_object import read_object
from exactlm.format.tensorfile import TensorFile
from exactlm.models.config import ModelConfig
from exactlm.models.hf_config import parse_config

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# What exactlm.text reads of a directory, and so what is digested with it.
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
MORE_TEMPLATES = "additional_chat_templates"
# Old checkpoints carry the rotary frequencies, which follow from config.json, and which transformers ignores too.
ROTARY = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
COMPARED_ROWS = 1024
ABSENT = "is this a Hugging Face checkpoint?"


class HuggingFaceTensor(SourceTensor):
    """A float tensor of a safetensors file."""

    def __init__(self, file: TensorFile, name: str) -> None:
        self.name, self.shape, self.dtype, self._file = name, file.shape(name), file.dtype(name), file
        self.place = f"{file.path}: tensor {name!r:.200}"
        if self.dtype not in FLOATS:
            raise UnsupportedError(f"{self.place} is {self.dtype}; weights must be {', '.join(FLOATS)}")

    def read(self) -> F32:
        return self.read_rows(0, self.shape[0] if self.shape else 1)

    def read_rows(self, begin: int, end: int) -> F32:
        """Rows of the first axis."""
        raw = self._file.array(self.name)[begin:end] if self.shape else self._file.array(self.name)
        if self.dtype == "BF16":
            return np.asarray((raw.astype(np.uint32) << np.uint32(16)).view(np.float32))
        return np.asarray(raw, np.float32)


class HuggingFaceCheckpoint(Checkpoint):
    """See convert/source.py."""

    kind = "huggingface"

    def __init__(self, directory: Path) -> None:
        self.path = self.directory = directory
        if (directory / "manifest.json").is_file():
            raise CheckpointError(
                f"{directory}: is an exactlm model already; convert the checkpoint that it was made from"
            )
        config_file = directory / "config.json"
        raw = read_object(config_file, CheckpointError, ABSENT)
        config = parse_config(raw, str(config_file))
        weights = _Weights(directory)
        tensors = {n: HuggingFaceTensor(f, n) for n, f in weights.located.items() if not ROTARY.fullmatch(n)}
        _check_head(config, "tie_word_embeddings" in raw, tensors, directory)
        check_tensors(directory, config, tensors, [HEAD] if config.tie_word_embeddings else [])
        self.config, self.tensors = config, tensors
        texts = [directory / name for name in TEXT_FILES] + sorted((directory / MORE_TEMPLATES).glob("*.jinja"))
        found = {p.relative_to(directory).as_posix(): p for p in texts if p.is_file()}
        self.files = {"config.json": config_file, **weights.files, **found}


class _Weights:
    """`located`: tensor name -> the file that holds it, checked against the index. `files`: what was read."""

    def __init__(self, directory: Path) -> None:
        self.files: dict[str, Path] = {}
        self.located: dict[str, TensorFile] = {}
        self._directory = directory
        present = sorted(p.name for p in directory.glob("*.safetensors"))
        if not present:
            pickled = sorted(p.name for p in directory.glob("*.bin"))
            hint = f"; {pickled[0]} is a pickle, which is never loaded: save it as safetensors" if pickled else ""
            raise CheckpointError(f"{directory}: has no {SINGLE}{hint}")
        index = directory / INDEX
        weight_map = self._read_index(index, present) if index.is_file() else None
        if weight_map is None and present != [SINGLE]:
            what = f"has {', '.join(present)[:200]} but no {INDEX}"
            raise CheckpointError(f"{directory}: {what}; which tensors belong to the model is not known")
        for name in present:
            self._add(name)
        if weight_map is not None:
            self._check_map(index, weight_map)

    def _read_index(self, index: Path, present: list[str]) -> Mapping[str, str]:
        self.files[INDEX] = index
        weight_map: Any = read_object(index, CheckpointError, "").get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise CheckpointError(f"{index}: weight_map must map tensor names to file names")
        wanted = set(weight_map.values())
        if missing := sorted(wanted - set(present)):
            raise CheckpointError(f"{index}: shard {missing[0]!r:.200} is missing from {self._directory}")
        if stray := sorted(set(present) - wanted):
            what = f"{stray[0]} is not listed in {INDEX}"
            raise CheckpointError(f"{self._directory}: {what}; remove it, or mend the index")
        return weight_map

    def _add(self, name: str) -> None:
        path = self.files[name] = self._directory / name
        try:
            file = TensorFile(path)
        except FormatError as error:
            raise CheckpointError(str(error)) from None
        for tensor in file.names():
            if tensor in self.located:
                both = f"{self.located[tensor].path.name} and {name}"
                raise CheckpointError(f"{self._directory}: tensor {tensor!r:.200} is in both {both}")
            self.located[tensor] = file

    def _check_map(self, index: Path, weight_map: Mapping[str, str]) -> None:
        for tensor, name in sorted(weight_map.items()):
            found = self.located[tensor].path.name if tensor in self.located else "no file"
            if found != name:
                what = f"says tensor {tensor!r:.200} is in {name}, it is in {found}"
                raise CheckpointError(f"{index}: {what}: the index is stale")
        if extra := sorted(self.located.keys() - weight_map.keys()):
            what = f"tensor {extra[0]!r:.200} of {self.located[extra[0]].path.name} is not listed"
            raise CheckpointError(f"{index}: {what}: the index is stale")


def _check_head(
    config: ModelConfig, says_tied: bool, tensors: Mapping[str, HuggingFaceTensor], directory: Path
) -> None:
    """CheckpointError where the flag and the stored head contradict each other."""
    if not config.tie_word_embeddings:
        if HEAD not in tensors:
            reason = "is false" if says_tied else "is not given, which means false,"
            raise CheckpointError(f"{directory}: tensor {HEAD!r} is missing, though tie_word_embeddings {reason}")
        return
    if HEAD in tensors and EMBEDDING in tensors and not _is_same(tensors[HEAD], tensors[EMBEDDING]):
        raise CheckpointError(
            f"{directory}: config.json says tie_word_embeddings, but {HEAD!r} differs from {EMBEDDING!r}; "
            "set tie_word_embeddings to false to use the stored head, or remove it"
        )


def _is_same(a: HuggingFaceTensor, b: HuggingFaceTensor) -> bool:
    """Bit for bit, in parts, so that a large vocabulary needs little memory."""
    if a.shape != b.shape or not a.shape:
        return False
    parts = range(0, a.shape[0], COMPARED_ROWS)
    return all(
        a.read_rows(i, i + COMPARED_ROWS).tobytes() == b.read_rows(i, i + COMPARED_ROWS).tobytes() for i in parts
    )
