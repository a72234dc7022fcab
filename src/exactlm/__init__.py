"""exactlm: deterministic LLM inference. Same prompt, same bytes.

from exactlm import LLM, SamplingParams, convert_to_deterministic
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exactlm.errors import ExactlmError

if TYPE_CHECKING:
    from exactlm.convert.converter import Converter, convert_to_deterministic
    from exactlm.engine.sampling_params import SamplingParams
    from exactlm.llm import LLM, RequestOutput
    from exactlm.two_stage import TwoStageOutput, write_in_two_stages

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Converter",
    "ExactlmError",
    "RequestOutput",
    "SamplingParams",
    "TwoStageOutput",
    "convert_to_deterministic",
    "write_in_two_stages",
]

_HOMES = {
    "LLM": "exactlm.llm",
    "RequestOutput": "exactlm.llm",
    "SamplingParams": "exactlm.engine.sampling_params",
    "Converter": "exactlm.convert.converter",
    "convert_to_deterministic": "exactlm.convert.converter",
    "TwoStageOutput": "exactlm.two_stage",
    "write_in_two_stages": "exactlm.two_stage",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: running a model needs nothing of the converter."""
    if name not in _HOMES:
        raise AttributeError(f"module 'exactlm' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
