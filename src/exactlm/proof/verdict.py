"""What is found of a receipt. spec/receipts.md 5. Knows nothing of how it was found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What was found of one receipt. `differs`: None if it is identical, else the first thing of spec/receipts.md 5
    that is not: "form", "digest", "signature", "spec", "model", "request", "steps", "token_ids", "sampling",
    "finish_reason", "stop_reason", "text" or "output.digest"; `position`: at which generated token, from 0, where that
    makes sense; `reason`: found and expected, for people. `altered`: where the digest does not fit, what else differs,
    by the same names; None if nothing that is computed does. `is_checked`: False where this engine has no room to
    compute the answer again, which says nothing of the receipt; `reason` says what it needs."""

    index: int
    differs: str | None = None
    position: int | None = None
    reason: str = ""
    altered: str | None = None
    is_checked: bool = True

    @property
    def is_identical(self) -> bool:
        return self.is_checked and self.differs is None


def printable(words: str) -> str:
    """A receipt's own words may hold what no terminal should be sent, and what no file can hold."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


class Mismatch(Exception):  # noqa: N818  # a finding, not an error: it becomes a Verdict
    """The first thing that differs; arguments as the members of Verdict."""

    def __init__(self, differs: str, reason: str, position: int | None = None) -> None:
        super().__init__(printable(reason))
        self.differs, self.position = differs, position


def judge(index: int, broken_digest: str | None, error: Mismatch | None = None) -> Verdict:
    """broken_digest: what is to be said of a digest that does not fit. error: what differs besides."""
    if broken_digest is None:
        return Verdict(index) if error is None else Verdict(index, error.differs, error.position, str(error))
    if error is None:
        rest = "all that is computed agrees, so it is the digest itself, or a parameter that changes nothing here"
        return Verdict(index, "digest", None, f"{broken_digest}; {rest}")
    where = "" if error.position is None else f" at token {error.position}"
    reason = f"{broken_digest}; what differs is {error.differs}{where}: {error}"
    return Verdict(index, "digest", error.position, reason, error.differs)
