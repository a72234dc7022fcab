"""The GPT-2 byte alphabet: the 256 printable characters that stand for the 256 byte values in a byte-level vocabulary.

Knows nothing of tokenizers or files.
"""


def _make_alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    return tuple(chr(value) if value in printable else chr(256 + others.index(value)) for value in range(256))


BYTE_TO_CHAR: tuple[str, ...] = _make_alphabet()
CHAR_TO_BYTE: dict[str, int] = {char: value for value, char in enumerate(BYTE_TO_CHAR)}


def spell_bytes(text: str) -> bytes:
    """Return the bytes that a byte-level vocabulary entry stands for.

    An entry holding a character outside the alphabet (an added token) stands for its own UTF-8 bytes.
    """
    try:
        return bytes(CHAR_TO_BYTE[char] for char in text)
    except KeyError:
        return text.encode("utf-8")
