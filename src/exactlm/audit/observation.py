"""One answer seen, and the file of all of them beside the report, from which an audit goes on after an interruption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from exactlm.journal import JournalFile

JOURNAL_VERSION = 1


@dataclass
class Observation:
    """What one request gave. tokens: ids, or texts where the engine tells no ids; None if it tells none. logprobs: of
    the chosen tokens. digest: of all logits, or of what determines them. max_difference, cosine: of the logits against
    the base answer's, over the steps that both computed from the same tokens. error: then there is no answer."""

    condition: str
    prompt: int
    text: str = ""
    tokens: list[Any] | None = None
    logprobs: list[float | None] | None = None
    digest: str | None = None
    max_difference: float | None = None
    cosine: float | None = None
    finish_reason: str | None = None
    seconds: float = 0.0
    error: str | None = None


NAMES = frozenset(field.name for field in fields(Observation))


class Journal:
    """Observations, notes and finished conditions as lines of JSON, written as they come."""

    def __init__(self, path: Path, header: Mapping[str, Any], is_fresh: bool = False) -> None:
        """header: what must be the same for the observations of an earlier run to count. ConfigError if it is not, and
        as JournalFile."""
        self.path, self.observations, self.done = path, list[Observation](), list[str]()
        self.notes: dict[str, Any] = {}
        whole = {"journal": JOURNAL_VERSION, **header}
        self._file = JournalFile(path, whole, "use another --output, or --restart", is_fresh)
        try:
            for line in self._file.lines:
                self._take(line)
        except (TypeError, KeyError) as error:
            self._file.close()
            raise self._file.refuse(f"holds what is no record of an audit ({error!r:.100})") from None

    def add(self, observation: Observation) -> None:
        """Keeps an observation."""
        self.observations.append(observation)
        self._file.append([{k: v for k, v in asdict(observation).items() if v is not None}])

    def note(self, condition: str, note: Mapping[str, Any]) -> None:
        """What else is known of a condition."""
        self.notes[condition] = dict(note)
        self._file.append([{"noted": condition, "note": dict(note)}])

    def finish(self, condition: str) -> None:
        """No more observations of this condition are wanted."""
        self.done.append(condition)
        self._file.append([{"done": condition}])

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _take(self, line: dict[str, Any]) -> None:
        """A line of an earlier run."""
        if "done" in line:
            self.done.append(line["done"])
        elif "noted" in line:
            self.notes[line["noted"]] = line["note"]
        else:
            self.observations.append(Observation(**{k: v for k, v in line.items() if k in NAMES}))
