"""Ed25519 signatures of receipts, and the key files that make them. spec/receipts.md 4. Needs the extra `proof`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactlm.errors import ConfigError, ReceiptError
from exactlm.receipt import SIGNED_PREFIX, Receipt, canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "Ed25519"


def write_key(path: str | Path) -> str:
    """Makes a private key (PEM, readable by its owner only) in a new file; returns the public key in hexadecimal."""
    crypto = _import_cryptography()
    key = crypto.ed25519.Ed25519PrivateKey.generate()
    data = key.private_bytes(
        crypto.serialization.Encoding.PEM,
        crypto.serialization.PrivateFormat.PKCS8,
        crypto.serialization.NoEncryption(),
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already, and may be a key in use: name a new file") from None
    except OSError as error:
        raise ConfigError(f"{path}: the key cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return str(key.public_key().public_bytes_raw().hex())


def read_key(path: str | Path) -> Ed25519PrivateKey:
    """The private key of a PEM file. ConfigError if it is not an Ed25519 key."""
    crypto = _import_cryptography()
    try:
        key = crypto.serialization.load_pem_private_key(Path(path).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not a private key in PEM form: {error}") from None
    if not isinstance(key, crypto.ed25519.Ed25519PrivateKey):
        raise ConfigError(f"{path}: holds a {type(key).__name__}, an Ed25519 key is needed")
    made: Ed25519PrivateKey = key
    return made


def sign(receipt: Receipt, key: Ed25519PrivateKey) -> Receipt:
    """The receipt with a signature."""
    value = key.sign(_signed_bytes(receipt)).hex()
    public_key = key.public_key().public_bytes_raw().hex()
    return {**receipt, "signature": {"algorithm": ALGORITHM, "public_key": public_key, "value": value}}


def check_signature(receipt: Mapping[str, Any], public_key: str | None = None) -> None:
    """ReceiptError unless the receipt is signed, and by `public_key` if that is given."""
    signature = receipt["signature"]
    if not isinstance(signature, dict) or set(signature) != {"algorithm", "public_key", "value"}:
        raise ReceiptError("there is no signature" if signature is None else "signature: not as spec/receipts.md 4")
    if signature["algorithm"] != ALGORITHM:
        raise ReceiptError(f"signature.algorithm is {signature['algorithm']!r:.60}, expected {ALGORITHM!r}")
    for name, digits in (("public_key", 64), ("value", 128)):  # one spelling only: the digest does not cover them
        if not isinstance(signature[name], str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", signature[name]):
            raise ReceiptError(
                f"signature.{name} is {signature[name]!r:.160}, not {digits} lower-case hexadecimal digits"
            )
    if public_key is not None and signature["public_key"] != public_key:
        raise ReceiptError(f"signed by {signature['public_key']!r:.80}, expected {public_key!r:.80}")
    crypto = _import_cryptography()
    try:
        key = crypto.ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        key.verify(bytes.fromhex(signature["value"]), _signed_bytes(receipt))
    except (crypto.InvalidSignature, ValueError):
        raise ReceiptError("the signature does not fit the receipt") from None


def _signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    return SIGNED_PREFIX + canonical({key: value for key, value in receipt.items() if key != "signature"})


def _import_cryptography() -> Any:
    try:
        from types import SimpleNamespace

        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ConfigError('signatures need the package cryptography: pip install "exactlm[proof]"') from None
    return SimpleNamespace(InvalidSignature=InvalidSignature, serialization=serialization, ed25519=ed25519)
