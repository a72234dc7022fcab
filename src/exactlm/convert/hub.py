"""Checkpoints by hub id, through huggingface_hub (extra `hub`)."""

from __future__ import annotations

from pathlib import Path

from exactlm.errors import CheckpointError

PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
IGNORED = ["consolidated*", "original/*", "onnx/*"]  # second copies of the weights in other layouts


def download(model_id: str, revision: str | None) -> Path:
    """Local directory of a hub model; CheckpointError says what to do when the extra or the network is missing."""
    absent = f"{model_id}: no such file or directory"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        hint = "To load it from the Hugging Face hub, install the extra: pip install 'exactlm[hub]'"
        raise CheckpointError(f"{absent}. {hint}") from None
    try:
        return Path(snapshot_download(model_id, revision=revision, allow_patterns=PATTERNS, ignore_patterns=IGNORED))
    except Exception as error:  # the library's own errors, and those of the network beneath it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "Offline? Download it elsewhere and pass the directory"
        raise CheckpointError(f"{absent}, and the Hugging Face hub gave none of that name ({reason}). {hint}") from None
