"""Constrained output: which token ids may come next so that the text fits a JSON schema, a regex or a grammar.

llguidance reads the grammar and walks it; this module gives it the bytes of our vocabulary and turns its answers into
masks. Knows nothing of logits, sampling or requests.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import ConfigError, RequestError
from exactlm.text.deep_call import call_deeply
from exactlm.text.guide_source import read_grammar, read_regex, read_schema
from exactlm.text.guide_vocabulary import GuideVocabulary
from exactlm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

# Counts of work, not seconds, so that what is refused does not depend on the machine. The worst step measured: 0.5 s.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 10_000,
    "max_items_in_row": 1_000,
    "max_lexer_states": 20_000,  # about 3 kB of memory each
    "max_grammar_size": 20_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
# Without this line llguidance picks the tokens itself where the text is forced; the model shall pick them.
_HEADER = '%llguidance {"no_forcing": true}\n'

Mask = NDArray[np.bool_]


class GuideFactory:
    """Makes guides for one tokenizer. Building it takes some tenths of a second: make one for each model and keep it.

    ConfigError if llguidance is not installed. May be shared between threads.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._llguidance = _import_llguidance()
        self._vocabulary = GuideVocabulary(tokenizer)
        self._trie: llguidance.LLTokenizer = self._llguidance.LLTokenizer(self._vocabulary.take_tokens())
        self._limits = self._llguidance.LLParserLimits(**_LIMITS)

    def make(
        self,
        json_schema: Mapping[str, Any] | str | bool | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> Guide:
        """A guide at the beginning of a text. Exactly one of the three must be given.

        json_schema: a schema, or its JSON text; {"type": "object"} for any JSON object, True for any JSON value.
        regex: what the whole text must match, in the syntax of Rust's regex crate; \\d and \\w are ASCII, as in JSON
        Schema. grammar: in llguidance's variant of Lark. RequestError says why one is refused: it is malformed, uses
        what llguidance lacks, or is too large or too complex.
        """
        given = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            raise RequestError(f"{' and '.join(names) or 'none'} given: give one of {', '.join(given)}")
        if json_schema is not None:
            source = f"start: %json {read_schema(json_schema)}\n"
        elif regex is not None:
            source = f"start: /{self._llguidance.regex_to_lark(read_regex(regex), 'dw')}/\n"
        else:
            source = read_grammar(grammar)
        guide = Guide(names[0], self._vocabulary, lambda: self._compile(names[0], source))
        guide.mask()  # what is too complex for the first token is refused here, not in a step that others share
        return guide

    def _compile(self, name: str, source: str) -> llguidance.LLMatcher:
        kind = self._llguidance.LLMatcher
        # llguidance recurses along references between rules, of which a small text can hold thousands.
        matcher: llguidance.LLMatcher = call_deeply(
            lambda: kind(self._trie, kind.grammar_from_lark(_HEADER + source), log_level=0, limits=self._limits)
        )
        if matcher.is_error():
            raise RequestError(f"{name} is refused: {_reason(name, matcher)}")
        return matcher


class Guide:
    """Where one text stands in its grammar. What it answers depends on the grammar and the accepted ids alone.

    The text is what `Tokenizer.decode` makes of the accepted ids. Not safe for several threads at once. Copies of
    llguidance's own kind share a table that grows and is limited, so that one could fail by what another has seen;
    here every guide has its own, and walks it in one way: mask, accept, mask, accept.
    """

    def __init__(
        self, name: str, vocabulary: GuideVocabulary, compile_source: Callable[[], llguidance.LLMatcher]
    ) -> None:
        self._name, self._vocabulary, self._compile_source = name, vocabulary, compile_source
        self._matcher = compile_source()
        self._strips_space, self._is_ended = vocabulary.strips_space, False
        self._accepted: list[int] = []
        self._mask: Mask | None = None

    @property
    def is_accepting(self) -> bool:
        """Whether the text is complete as it stands."""
        return self._is_ended or self._matcher.is_accepting()

    def mask(self) -> Mask:
        """bool [num_tokens], not to be written to: True for every id that may come next.

        Ids that end a generation are allowed exactly where the text is complete, and alone where nothing more fits.
        RequestError if the text is not complete and no token fits, since the vocabulary cannot spell what must follow;
        or if a limit is reached.
        """
        if self._mask is None:
            self._mask = self._compute_mask()
            self._mask.setflags(write=False)
        return self._mask

    def accept(self, token_id: int) -> None:
        """Takes in the next token. RequestError if it is not allowed here; the guide is then as it was."""
        v = self._vocabulary
        if not 0 <= token_id < v.num_tokens or not self.mask()[token_id]:
            raise RequestError(f"{self._name}: token {token_id} is not allowed here")
        self._accepted.append(token_id)
        self._mask = None
        if token_id in v.ends:
            self._is_ended = True
            return
        known: int | None = token_id
        if self._strips_space and not v.is_special(token_id):
            self._strips_space = False
            known = v.stripped.get(token_id, token_id)
        if known is not None and not self._matcher.consume_token(known):
            self._fail()

    def fork(self) -> Guide:
        """An independent copy. It costs what making the guide and coming here again costs: fork at the beginning."""
        twin = Guide(self._name, self._vocabulary, self._compile_source)
        for token_id in self._accepted:
            twin.accept(token_id)
        twin.mask()
        return twin

    def _compute_mask(self) -> Mask:
        v = self._vocabulary
        mask = np.zeros(v.num_tokens, np.bool_)
        is_accepting = self.is_accepting
        if not self._is_ended and not self._matcher.is_stopped():
            packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            bits = np.unpackbits(packed, bitorder="little").view(np.bool_)
            mask[:] = bits[: v.num_tokens]
            if self._strips_space:
                mask[v.spaced_ids] = bits[v.stripped_ids]
                mask[v.space_ids] = True
            mask[v.unsampled_ids] = False
        if self._matcher.is_error():
            self._fail()
        mask[v.end_ids] = is_accepting
        return mask

    def _fail(self) -> None:
        reason = _reason(self._name, self._matcher)
        if reason.startswith("NoExtension"):
            reason = "the text is not complete, and no token of this vocabulary can follow"
        raise RequestError(f"{self._name}: {reason}")


def _reason(name: str, matcher: llguidance.LLMatcher) -> str:
    """llguidance's words on what the caller wrote, without what was written around it."""
    place, _, told = matcher.get_error().strip().partition(": ")
    found = re.fullmatch(r"(?:at )?(\d+)\((\d+)\)", place)
    if found is None:
        return f"{place}: {told}"[:600].removesuffix(": ")
    lines = told.splitlines()
    said = list(itertools.takewhile(lambda line: not line.lstrip().startswith("1 | "), lines))
    where = f"line {int(found[1]) - 1}, column {found[2]}: " if name == "grammar" else ""
    return (where + "\n".join(said))[:600]


def guide_version() -> str:
    """The version of llguidance: which whitespace JSON may hold, say, is defined by it."""
    return str(_import_llguidance().__version__)


def _import_llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ConfigError(
            'json_schema, regex and grammar need the package llguidance: pip install "exactlm[server]"'
        ) from None
    return llguidance
