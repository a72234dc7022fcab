"""Hugging Face directories: config.json and one or several safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from exactlm.convert.source import F32, Checkpoint, SourceTensor, check_tensors
from exactlm.errors import CheckpointError, FormatError, UnsupportedError
from exactlm.format.tensorfile import TensorFile
from exactlm.models.config import ModelConfig

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json")
JSON_LIMIT = 64 << 20


class HuggingFaceTensor(SourceTensor):
    """A float tensor of a safetensors file."""

    def __init__(self, file: TensorFile, name: str) -> None:
        self.name, self.shape, self.dtype, self._file = name, file.shape(name), file.dtype(name), file
        if self.dtype not in FLOATS:
            raise UnsupportedError(f"{file.path}: tensor {name!r} is {self.dtype}; weights must be {', '.join(FLOATS)}")

    def read(self) -> F32:
        raw = self._file.array(self.name)
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return raw.astype(np.float32)


class HuggingFaceCheckpoint(Checkpoint):
    """See convert/source.py."""

    kind = "huggingface"

    def __init__(self, directory: Path) -> None:
        self.path = self.directory = directory
        config_file = directory / "config.json"
        raw = read_json(config_file)
        self.files = {"config.json": config_file}
        tensors = {name: HuggingFaceTensor(file, name) for name, file in self._locate().items() if not name.endswith("rotary_emb.inv_freq")}
        self.config = _with_head(ModelConfig.from_huggingface(raw, str(config_file)), "tie_word_embeddings" in raw, tensors, directory)
        check_tensors(directory, self.config, tensors, [HEAD] if self.config.tie_word_embeddings else [])
        self.tensors = tensors
        self.files |= {name: directory / name for name in TEXT_FILES if (directory / name).is_file()}

    def _locate(self) -> dict[str, TensorFile]:
        """Tensor name -> the file that holds it, every file checked against the index."""
        present = sorted(p.name for p in self.directory.glob("*.safetensors"))
        index_file = self.directory / INDEX
        if not present:
            pickled = sorted(p.name for p in self.directory.glob("*.bin"))
            hint = f"; {pickled[0]} is a pickle, which is never loaded: save it as safetensors" if pickled else ""
            raise CheckpointError(f"{self.directory}: has no {SINGLE}{hint}")
        if not index_file.is_file():
            if present != [SINGLE]:
                raise CheckpointError(f"{self.directory}: has {', '.join(present)} but no {INDEX}; which tensors belong to the model is not known")
            weight_map = None
        else:
            self.files[INDEX] = index_file
            weight_map = read_json(index_file).get("weight_map")
            self._check_index(index_file, weight_map, present)
        located: dict[str, TensorFile] = {}
        for name in present:
            file = self._open(name)
            for tensor in file.names():
                if tensor in located:
                    raise CheckpointError(f"{self.directory}: tensor {tensor!r} is in both {located[tensor].path.name} and {name}")
                located[tensor] = file
        if weight_map is not None:
            for tensor, name in sorted(weight_map.items()):
                if tensor not in located or located[tensor].path.name != name:
                    found = located[tensor].path.name if tensor in located else "no file"
                    raise CheckpointError(f"{index_file}: says tensor {tensor!r} is in {name}, it is in {found}: the index is stale")
            if extra := sorted(located.keys() - weight_map.keys()):
                raise CheckpointError(f"{index_file}: tensor {extra[0]!r} of {located[extra[0]].path.name} is not listed: the index is stale")
        return located

    def _check_index(self, index_file: Path, weight_map: Any, present: list[str]) -> None:
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise CheckpointError(f"{index_file}: weight_map must map tensor names to file names")
        wanted = set(weight_map.values())
        if missing := sorted(wanted - set(present)):
            raise CheckpointError(f"{index_file}: shard {missing[0]!r} is missing from {self.directory}")
        if stray := sorted(set(present) - wanted):
            raise CheckpointError(f"{self.directory}: {stray[0]} is not listed in {INDEX}; remove it, or mend the index")

    def _open(self, name: str) -> TensorFile:
        self.files[name] = self.directory / name
        try:
            return TensorFile(self.directory / name)
        except FormatError as error:
            raise CheckpointError(str(error)) from None


def _with_head(config: ModelConfig, says_tied: bool, tensors: dict[str, HuggingFaceTensor], directory: Path) -> ModelConfig:
    """Settles what the flag and the presence of a head mean together."""
    if not config.tie_word_embeddings:
        if HEAD not in tensors:
            reason = "tie_word_embeddings is false" if says_tied else "tie_word_embeddings is not given, which means false"
            raise CheckpointError(f"{directory}: tensor {HEAD!r} is missing, though {reason} in config.json")
        return config
    if HEAD in tensors and EMBEDDING in tensors:
        head, embedding = tensors[HEAD].read(), tensors[EMBEDDING].read()
        if head.shape != embedding.shape or head.tobytes() != embedding.tobytes():
            raise CheckpointError(
                f"{directory}: config.json says tie_word_embeddings, but {HEAD!r} differs from {EMBEDDING!r}; "
                "set tie_word_embeddings to false to use the stored head, or remove it"
            )
    return config


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint; CheckpointError naming the file."""
    try:
        if path.stat().st_size > JSON_LIMIT:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes is too large for this file")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; is {path.parent} a Hugging Face checkpoint?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, an object is expected")
    return value
