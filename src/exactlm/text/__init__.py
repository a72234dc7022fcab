"""Text in and out: tokenizers, chat templates, UTF-8-safe streaming, stop strings.

Turns text into token ids and back. Knows nothing of checkpoints, models or the engine: it receives plain
metadata dictionaries or directories, and raises the errors of `exactlm.errors`.
"""
