"""The error tree. Every message names the file, key or tensor, the value found, and what to do.

Knows nothing of the rest of the package; everything may raise these.
"""


class ExactlmError(Exception):
    """Base of every error that exactlm raises on purpose."""


class CheckpointError(ExactlmError):
    """A source checkpoint (GGUF, safetensors, its config) is damaged, incomplete or contradicts itself."""


class UnsupportedError(ExactlmError):
    """A sound input asks for something exactlm does not implement; the message names it."""


class ConfigError(ExactlmError):
    """A configuration key is missing, unknown or has a value out of range."""


class FormatError(ExactlmError):
    """An exactlm model directory is damaged or was written for another spec version."""


class TokenizerError(ExactlmError):
    """A tokenizer cannot be built, or a text or token id does not fit it."""


class TemplateError(ExactlmError):
    """A chat template is missing, fails, or exceeds its limits."""


class IsaError(ExactlmError):
    """The requested instruction set is unknown or this CPU lacks it."""


class RequestError(ExactlmError, ValueError):
    """A prompt or sampling parameter is invalid."""


class CapacityError(ExactlmError):
    """A request does not fit the engine's capacity (context length, KV pages, memory)."""


class InterruptedStepError(ExactlmError):
    """A step of the engine was interrupted (Ctrl-C, an error outside exactlm); its requests have no answer."""


class ReceiptError(ExactlmError):
    """A receipt is malformed, altered, or not signed as it should be."""


class LedgerError(ExactlmError):
    """A ledger cannot be opened, read or written, or has no such entry."""


class NumericError(ExactlmError):
    """A NaN or infinity reached a place where the spec forbids it; names the step or tensor."""
