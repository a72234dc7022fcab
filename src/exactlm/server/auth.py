"""Bearer keys: who may use the server. Keys are kept and compared as digests, in constant time. Knows no routes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from exactlm.errors import ConfigError
from exactlm.server.errors import ApiError


class KeyRing:
    """The keys that open the server; none at all: it is open to everyone who can reach it."""

    def __init__(self, keys: Iterable[str]) -> None:
        kept = []
        for key in keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError("an API key must be printable ASCII without spaces, and not empty")
            kept.append(_digest(key.encode("ascii")))
        self._digests = tuple(kept)

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        return not self._digests

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """ApiError 401 unless the headers bring a key. Takes as long for every wrong key, whichever is compared."""
        if self.is_open:
            return
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        candidate = _digest(key.strip())
        is_known = False
        for digest in self._digests:
            is_known |= hmac.compare_digest(candidate, digest)
        if not is_known or scheme.lower() != b"bearer":
            message = "this server needs a key: send the header `Authorization: Bearer KEY`"
            if given:
                message = "the API key is not one of this server's"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def read_keys(path: str | Path) -> list[str]:
    """The keys in a file, one a line; empty lines and lines that begin with # are left out."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a list of API keys: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigError(f"{path}: holds no API key; write one a line")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
