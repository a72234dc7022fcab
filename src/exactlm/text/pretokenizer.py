"""Pre-tokenizers by the name that a GGUF file gives them (`tokenizer.ggml.pre`).

A wrong split costs quality without any visible error, so an unknown name is refused. Regular expressions as in
llama.cpp and the models' own tokenizer.json. Knows nothing of vocabularies.
"""

from dataclasses import dataclass
from typing import Any

from exactlm.errors import UnsupportedError

Json = dict[str, Any]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LLAMA3_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_LLAMA3_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_LLAMA3_TAIL}"
_TEKKEN_UPPER, _TEKKEN_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_TEKKEN_UPPER}*{_TEKKEN_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_TEKKEN_UPPER}+{_TEKKEN_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_TEKKEN_UPPER}*{_TEKKEN_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_TEKKEN_UPPER}+{_TEKKEN_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@dataclass(frozen=True)
class PreTokenizer:
    """How a family splits text into words. `ignores_merges`: a word that is in the vocabulary is taken whole."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False  # the family's habit, used only where the file has no add_bos_token

    def to_json(self) -> Json:
        """Return the `pre_tokenizer` object of a tokenizer.json."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*map(_split, self.patterns), byte_level]}


_GPT2_FAMILY = PreTokenizer((_GPT2,))
_DIGIT_FAMILY = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_FAMILY = PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True)
_QWEN2_FAMILY = PreTokenizer((_QWEN2,))

_BY_NAME: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "gigachat"), _GPT2_FAMILY),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGIT_FAMILY),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3_FAMILY),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "stablelm2", "megrez", "deepseek-r1-qwen"), _QWEN2_FAMILY),
    "tekken": PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK3)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
}


def find_pretokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer called `name`; UnsupportedError lists the known names otherwise."""
    try:
        return _BY_NAME[name]
    except KeyError:
        known = ", ".join(sorted(_BY_NAME))
        raise UnsupportedError(
            f"tokenizer.ggml.pre = {name!r}: unknown pre-tokenizer; a guess would change the token ids silently. "
            f"Known: {known}. Convert from the Hugging Face checkpoint (tokenizer.json) instead"
        ) from None
