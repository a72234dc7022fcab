"""Which model an answer comes from, as a receipt names it, and that its weights are the ones named. Knows no engine."""

from __future__ import annotations

import threading

from exactlm.errors import FormatError
from exactlm.format.reader import ModelDirectory


class Identity:
    """The member `model` of a receipt (spec/receipts.md 2) as `members`."""

    def __init__(self, directory: ModelDirectory) -> None:
        files = directory.manifest["files"]
        template = files.get("chat_template.jinja")
        self.members: dict[str, str | None] = {
            "fingerprint": directory.fingerprint,
            "model": directory.model_digest,
            "tokenizer": files["tokenizer.json"]["sha256"],
            "text": files["text.json"]["sha256"],
            "template": template["sha256"] if template else None,
            "adapter": None,
        }
        self._unread: ModelDirectory | None = directory
        self._damaged = ""
        self._lock = threading.Lock()

    def vouch(self) -> dict[str, str | None]:
        """`members`, once every weight has been read and is what the manifest says; the first call takes a second for
        each gigabyte or so. FormatError names a weight that is not."""
        with self._lock:
            if self._unread is not None and not self._damaged:
                self._damaged = next((name for name, is_sound in self._unread.verify_tensors() if not is_sound), "")
            if self._damaged and self._unread is not None:
                where = f"{self._unread.path}: {self._damaged}"
                raise FormatError(f"{where} is not what manifest.json says; convert the checkpoint again")
            self._unread = None
        return dict(self.members)
