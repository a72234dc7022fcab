"""What the soak calls flat."""

from __future__ import annotations

import pytest

from tests.integration.load.soak import MIB, measure_growth


def test_a_leak_is_told_from_unrest() -> None:
    settled = [200 * MIB + (i % 3) * MIB // 4 for i in range(120)]
    growth, allowed = measure_growth([100 * MIB, 150 * MIB, *settled])
    assert growth <= allowed
    # 200 KiB at every sample of ten seconds: 24 MiB in 20 minutes.
    leaking = [size + i * MIB // 5 for i, size in enumerate(settled)]
    growth, allowed = measure_growth(leaking)
    assert growth > allowed
    with pytest.raises(ValueError, match="too few"):
        measure_growth(settled[:7])
