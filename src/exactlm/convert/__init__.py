"""Checkpoints in (Hugging Face safetensors, GGUF), our model directory out."""
