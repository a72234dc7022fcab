"""The order in which weight codes are stored: tiles of 16 outputs, four consecutive k together, bytes biased by 128.

spec/format.md clause 3. One order serves every instruction set with contiguous loads, so a model file is used as it
lies on disk.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.numerics.code import limbs
from exactlm.numerics.weight import GROUP, W8, W16

TILE = 16
MULTIPLIER_ALIGN = 32


def _pad(x: NDArray[np.generic], rows: int, columns: int) -> NDArray[np.generic]:
    return np.pad(x, ((0, -len(x) % rows), (0, -x.shape[1] % columns)))


def pack_w16(weight: W16) -> NDArray[np.uint8]:
    """Bytes [tiles, K4/4, 2, 16, 4] (hi, then lo limbs) of codes [N, K]."""
    hi, lo = limbs(np.asarray(_pad(weight.codes, TILE, 4), np.int16))
    planes = np.stack([hi, lo]).reshape(2, len(hi) // TILE, TILE, -1, 4)
    biased: NDArray[np.uint8] = np.ascontiguousarray(planes.transpose(1, 3, 0, 2, 4)).view(np.uint8) ^ np.uint8(128)
    return biased


def pack_w8(weight: W8) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Bytes [tiles, K32/4, 16, 4] and multipliers [tiles, K32/32, 16]."""
    codes = _pad(weight.codes, TILE, GROUP)
    tiled = codes.reshape(len(codes) // TILE, TILE, -1, 4).transpose(0, 2, 1, 3)
    multipliers = _pad(weight.multipliers, TILE, 1)
    order = multipliers.reshape(len(multipliers) // TILE, TILE, -1).transpose(0, 2, 1)
    packed = np.ascontiguousarray(tiled).astype(np.int8, copy=False).view(np.uint8) ^ np.uint8(128)
    return packed, np.ascontiguousarray(order).astype(np.uint16, copy=False)


def flat_multipliers(order: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Multipliers in stored order as one row, zero-filled to a multiple of 32 values (64 bytes)."""
    return np.pad(order.reshape(-1), (0, -order.size % MULTIPLIER_ALIGN))


def pack_scales(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Row scales padded with zeros to whole tiles."""
    return np.pad(scales, (0, -len(scales) % TILE))


def unpack_w16(packed: NDArray[np.uint8], scales: NDArray[np.float32], n: int, k: int) -> W16:
    """The inverse of pack_w16; packed may be flat."""
    stored = packed.reshape(-1, (k + 3) // 4, 2, TILE, 4)
    if not stored[:, :, 0].all():
        raise ValueError("a stored code is outside the range of spec/numerics.md 2.3")
    planes = (stored ^ np.uint8(128)).view(np.int8).astype(np.int16)
    codes = (planes[:, :, 0] * 256 + planes[:, :, 1]).transpose(0, 2, 1, 3)
    return W16(np.ascontiguousarray(codes.reshape(codes.shape[0] * TILE, -1)[:n, :k]), scales[:n])


def unpack_w8(
    packed: NDArray[np.uint8], multipliers: NDArray[np.uint16], scales: NDArray[np.float32], n: int, k: int
) -> W8:
    """The inverse of pack_w8; packed and multipliers may be flat."""
    groups = (k + GROUP - 1) // GROUP
    tiled = (packed.reshape(-1, groups * GROUP // 4, TILE, 4) ^ np.uint8(128)).view(np.int8).transpose(0, 2, 1, 3)
    codes = np.ascontiguousarray(tiled).reshape(-1, groups * GROUP)[:n]
    order = np.ascontiguousarray(multipliers.reshape(-1, groups, TILE).transpose(0, 2, 1)).reshape(-1, groups)[:n]
    return W8(codes, order, scales[:n])
