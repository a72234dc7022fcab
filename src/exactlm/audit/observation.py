"""One answer seen, and the file of all of them beside the report, from which an audit goes on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from exactlm.errors import ConfigError

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


class Journal:
    """Observations as lines of JSON, written as they come. A line that an interruption cut is dropped."""

    def __init__(self, path: Path, header: Mapping[str, Any], is_fresh: bool = False) -> None:
        """header: what must be the same for the observations of an earlier run to count. ConfigError if it is not."""
        self.path, self.observations, self.done = path, list[Observation](), list[str]()
        self.notes: dict[str, Any] = {}
        try:
            if is_fresh or not path.exists() or not self._read(header):
                path.write_text(json.dumps({"journal": JOURNAL_VERSION, **header}) + "\n", encoding="utf-8")
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None

    def add(self, observation: Observation) -> None:
        self.observations.append(observation)
        self._write({k: v for k, v in asdict(observation).items() if v is not None})

    def note(self, condition: str, note: Mapping[str, Any]) -> None:
        """What else is known of a condition."""
        self.notes[condition] = dict(note)
        self._write({"noted": condition, "note": dict(note)})

    def finish(self, condition: str) -> None:
        """No more observations of this condition are wanted."""
        self.done.append(condition)
        self._write({"done": condition})

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _write(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value) + "\n")
        self._file.flush()

    def _read(self, header: Mapping[str, Any]) -> bool:
        """Takes in an earlier run; False if its file holds nothing."""
        text = self.path.read_text(encoding="utf-8", errors="replace")
        whole, _, cut = text.rpartition("\n")
        if not whole:
            return False
        if cut:
            self.path.write_text(whole + "\n", encoding="utf-8")
        try:
            lines = [json.loads(line) for line in whole.split("\n")]
            found = {k: v for k, v in lines[0].items() if k != "journal"}
            if lines[0].get("journal") != JOURNAL_VERSION or found != json.loads(json.dumps(dict(header))):
                differing = sorted(k for k in {*found, *header} if found.get(k) != header.get(k))
                raise ConfigError(
                    f"{self.path}: is of another audit ({', '.join(differing)} differ): "
                    "use another --output, or --restart"
                )
            names = {f.name for f in fields(Observation)}
            for line in lines[1:]:
                if "done" in line:
                    self.done.append(line["done"])
                elif "noted" in line:
                    self.notes[line["noted"]] = line["note"]
                else:
                    self.observations.append(Observation(**{k: v for k, v in line.items() if k in names}))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.path}: is no record of an audit ({error}): use another --output") from None
        return True
