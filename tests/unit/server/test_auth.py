"""Keys: the right one opens, everything else does not, and files of keys are read or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm.errors import ConfigError
from exactlm.server.auth import KeyRing, read_keys
from exactlm.server.errors import ApiError


def header(value: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", value)]


@pytest.mark.parametrize("value", [b"Bearer alpha", b"bearer beta", b"BEARER alpha", b"Bearer  alpha"])
def test_each_key_opens(value: bytes) -> None:
    KeyRing(["alpha", "beta"]).check(header(value))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        header(b""),
        header(b"alpha"),
        header(b"Bearer"),
        header(b"Bearer "),
        header(b"Bearer alph"),
        header(b"Bearer alphaa"),
        header(b"Bearer ALPHA"),
        header(b"Bearer alpha beta"),
        header(b"Basic alpha"),
        header(b"Bearer \xff"),
        [*header(b"Bearer alpha"), *header(b"Bearer alpha")],
    ],
)
def test_everything_else_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ApiError) as caught:
        KeyRing(["alpha", "beta"]).check(headers)
    assert caught.value.status == 401
    assert caught.value.headers == {"WWW-Authenticate": "Bearer"}
    assert "alpha" not in str(caught.value)


def test_without_keys_everyone_is_let_in() -> None:
    ring = KeyRing([])
    assert ring.is_open
    ring.check([])


@pytest.mark.parametrize("key", ["", "a b", "key\n", "schl\u00fcssel"])
def test_keys_that_no_header_can_carry_are_refused(key: str) -> None:
    with pytest.raises(ConfigError):
        KeyRing([key])


def test_files_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# staff\nalpha\n\n  beta  \n")
    assert read_keys(path) == ["alpha", "beta"]
    path.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="holds no API key"):
        read_keys(path)
    with pytest.raises(ConfigError, match="absent"):
        read_keys(tmp_path / "absent")
