"""Checkpoints by hub id, through huggingface_hub (extra `hub`)."""

from __future__ import annotations

from pathlib import Path

from exactlm.errors import CheckpointError

PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def download(model_id: str, revision: str | None) -> Path:
    """Local directory of a hub model; CheckpointError says what to do when the extra or the network is missing."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(
            f"{model_id}: no such file or directory. To load it from the Hugging Face hub, install the extra: pip install 'exactlm[hub]'"
        ) from None
    try:
        return Path(snapshot_download(model_id, revision=revision, allow_patterns=PATTERNS))
    except Exception as error:  # the library's own errors, and those of the network beneath it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{model_id}: no such file or directory, and the Hugging Face hub gave no model of that name ({reason}). "
            "Offline? Download it elsewhere and pass the directory"
        ) from None
