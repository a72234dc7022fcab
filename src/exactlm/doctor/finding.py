"""What the doctor says of one thing. Knows nothing of how it was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OURS, FLOAT, NOBODY = "exactlm", "float engines", "nobody"
OK, NOTE, FAIL = "ok", "note", "FAIL"


@dataclass(frozen=True)
class Finding:
    """`needed_by`: OURS, FLOAT or NOBODY. `state`: OK; NOTE, if whoever needs it should look at it; FAIL, if exactlm
    does not work as promised. `why`: what it is good for. `why_not`: why exactlm does not need it, where that is so."""

    topic: str
    name: str
    value: str
    needed_by: str
    why: str
    state: str = OK
    why_not: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
