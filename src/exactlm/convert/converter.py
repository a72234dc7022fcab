"""convert_to_deterministic: a checkpoint in, a model directory out, reproducible byte for byte."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from exactlm.convert.checkpoint import open_checkpoint
from exactlm.convert.quantise import store_matrix, store_vector
from exactlm.convert.source import Checkpoint
from exactlm.errors import CheckpointError, ConfigError, UnsupportedError
from exactlm.format.digest import file_json, sha256_file, sha256_json
from exactlm.format.writer import ModelWriter
from exactlm.models.config import ModelConfig
from exactlm.models.weights import Vector, plan, stored_shapes
from exactlm.text.gguf_tokenizer import build_from_gguf
from exactlm.text.hf_tokenizer import build_from_directory
from exactlm.text.tokenizer import Tokenizer, write_text_files

TextFiles = tuple[str, dict[str, Any], str | None]  # tokenizer.json, settings, chat template
PRECISIONS = ("fp16", "int8")
KV_CACHES = ("int16", "int8")


class Converter:
    """One checkpoint with the options it will be converted with.

    `report` says what was done, once save_pretrained has run.
    """

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self.checkpoint, self.config = checkpoint, config
        self.report: dict[str, Any] = {}

    def save_pretrained(self, path: str | Path, *, overwrite: bool = False, progress: bool | None = None) -> Path:
        """Writes the model directory at `path` and returns it.

        An interrupted conversion leaves nothing at `path`. `progress` shows a bar on standard error (None: if that is
        a terminal). Raises FormatError if `path` exists and may not be overwritten, CheckpointError if the checkpoint
        is damaged.
        """
        items = list(plan(self.config))
        text = build_text(self.checkpoint)
        config = dataclasses.replace(self.config, num_tokens=_num_tokens(text, self.config))
        shapes = {name: entry for item in items for name, entry in stored_shapes(item, config.precision).items()}
        tensors: dict[str, Any] = {}
        with _progress(progress) as bar, ModelWriter(Path(path), shapes, overwrite=overwrite) as writer:
            task = bar.add_task("converting", total=len(items))
            for item in items:
                sources = self.checkpoint.tensors
                stored = (
                    store_vector(item, sources)
                    if isinstance(item, Vector)
                    else store_matrix(item, sources, config.precision)
                )
                for name, array in stored.arrays.items():
                    writer.write_tensor(name, array)
                tensors[item.name] = stored.report
                bar.advance(task)
            writer.write_file("config.json", file_json(config.to_dict()))
            write_text_files(writer.directory, *text)
            source = {
                "kind": self.checkpoint.kind,
                "files": {n: sha256_file(p) for n, p in sorted(self.checkpoint.files.items())},
            }
            report = {"precision": config.precision, "kv_cache": config.kv_cache, "tensors": tensors}
            writer.finish(source, report)
        self.report = {**report, "source": source, "config_sha256": sha256_json(config.to_dict())}
        return Path(path)


def convert_to_deterministic(
    model_name: str | Path,
    precision: str = "fp16",
    quant_method: str = "none",
    attention_window: int | None = None,
    kv_cache: str = "int16",
    revision: str | None = None,
) -> Converter:
    """Opens a checkpoint for conversion: a Hugging Face directory, a .gguf file, or a hub id (extra `hub`).

    precision: "fp16" (16-bit weights, the default) or "int8" (8-bit, groups of 32). kv_cache: "int16" or "int8".
    attention_window: tokens each position sees; a smaller window is a different model and is digested as such.
    Raises CheckpointError, ConfigError or UnsupportedError.
    """
    _check_choice("precision", precision, PRECISIONS)
    _check_choice("kv_cache", kv_cache, KV_CACHES)
    _check_choice("quant_method", quant_method, ("none",))
    checkpoint = open_checkpoint(model_name, revision=revision)
    config = dataclasses.replace(checkpoint.config, precision=precision, kv_cache=kv_cache)
    if attention_window is not None:
        if type(attention_window) is not int or attention_window < 1:
            raise ConfigError(f"attention_window={attention_window!r}: use a number of tokens from 1 up")
        if config.attention_window is not None and attention_window > config.attention_window:
            own = config.attention_window
            raise ConfigError(f"attention_window={attention_window} is wider than the model's own {own}")
        config = dataclasses.replace(config, attention_window=attention_window)
    config.check(f"{model_name}")
    return Converter(checkpoint, config)


def build_text(checkpoint: Checkpoint) -> TextFiles:
    """Tokenizer, settings and chat template of a checkpoint."""
    if checkpoint.gguf_metadata is not None:
        return build_from_gguf(checkpoint.gguf_metadata)
    if checkpoint.directory is None:
        raise CheckpointError(f"{checkpoint.path}: has neither GGUF metadata nor a directory with tokenizer files")
    return build_from_directory(checkpoint.directory)


def _num_tokens(text: TextFiles, config: ModelConfig) -> int:
    """Ids the tokenizer has; rows of the embedding beyond them are padding and are never chosen."""
    num_tokens = Tokenizer(*text).num_tokens
    if num_tokens > config.vocab_size:
        raise CheckpointError(f"the tokenizer has {num_tokens} tokens, the embedding only {config.vocab_size} rows")
    return num_tokens


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnsupportedError(f"{name}={value!r} is not available; use one of: {', '.join(choices)}")


def _progress(show: bool | None) -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tensors"),
        TimeRemainingColumn(),
    )
    is_shown = console.is_terminal if show is None else show
    return Progress(*columns, console=console, disable=not is_shown)
