"""The pins are those of the definition, every instruction set finds them, and what computes otherwise is named."""

from __future__ import annotations

import numpy as np
import pytest

from exactlm.doctor.builtin import make_arrays, make_config
from exactlm.doctor.control import describe_control, hostile_control, is_default, read_control
from exactlm.doctor.finding import FAIL, OK
from exactlm.doctor.report import examine_selftest, find_wrong
from exactlm.doctor.selftest import MODELS, compute, make_values, prepare, read_pins
from exactlm.kernels.reference import ReferenceKernels
from exactlm.kernels.select import available_isas, select_kernels
from exactlm.models.weights import plan, stored_shapes


def test_pins_are_those_of_the_reference() -> None:
    """If this fails, bytes of answers have changed: that needs a new version of the spec, then tools/make_pins.py."""
    assert compute(ReferenceKernels()) == read_pins()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_instruction_set_finds_them(compiled_isa: str, threads: int) -> None:
    assert compute(select_kernels(compiled_isa, threads)) == read_pins()


def test_all_float16_values_are_in() -> None:
    for values in make_values():
        halves = values.astype(np.float16)
        assert len(set(halves.view(np.uint16).reshape(-1).tolist())) == 65536 - 2048
        assert np.array_equal(halves.astype(np.float32), values)


@pytest.mark.parametrize(("precision", "kv_cache"), MODELS)
def test_the_builtin_model_is_whole(precision: str, kv_cache: str) -> None:
    config = make_config(precision, kv_cache)
    config.check("builtin")
    arrays = make_arrays(config)
    expected = {name: shape for item in plan(config) for name, (_, shape) in stored_shapes(item, precision).items()}
    assert {name: array.shape for name, array in arrays.items()} == expected
    assert all(array.any() for array in arrays.values())


def test_pins_tell_operations_apart() -> None:
    assert len(set(read_pins().values())) == len(read_pins()) >= 10


class Careless(ReferenceKernels):
    """One ulp off, in one value of one operation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def add_bias(self, y, num_rows, bias) -> None:  # type: ignore[no-untyped-def]
        super().add_bias(y, num_rows, bias)
        if self._name == "add_bias":
            y[num_rows - 1, 5] = np.nextafter(y[num_rows - 1, 5], np.float32(np.inf))

    def rope_table(self, position, frequency, factor, cosine, sine, row) -> None:  # type: ignore[no-untyped-def]
        super().rope_table(position, frequency, factor, cosine, sine, row)
        if self._name == "rope_table" and position == 3:
            sine[row, 0] = np.nextafter(sine[row, 0], np.float32(0))

    def linear(self, weight, codes, scales, num_rows, y) -> None:  # type: ignore[no-untyped-def]
        super().linear(weight, codes, scales, num_rows, y)
        if self._name == "linear":
            y[0, :64] = y[0, :64] * np.float32(1 + 2**-20)


@pytest.mark.parametrize(
    ("name", "caught"),
    [("add_bias", "add_bias"), ("rope_table", "rope_table"), ("linear", "model fp16, int16 cache")],
)
def test_an_operation_that_computes_otherwise_is_named(name: str, caught: str) -> None:
    wrong = find_wrong(compute(Careless(name)), read_pins())
    assert caught in wrong
    assert "quantise" not in wrong


def test_findings() -> None:
    findings = list(examine_selftest())
    assert [f.name for f in findings] == [*available_isas(), "control word"]
    assert {f.state for f in findings} == {OK}


def test_a_wrong_pin_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {**read_pins(), "quantise": "0" * 64}
    monkeypatch.setattr("exactlm.doctor.report.read_pins", lambda: pins)
    findings = list(examine_selftest())
    assert {f.state for f in findings} == {FAIL}
    assert all("quantise" in f.value for f in findings)


def test_control_word_is_set_and_given_back(compiled_isa: str) -> None:
    prepare()
    before = read_control()
    with hostile_control() as is_set:
        if not is_set:
            pytest.skip("the control word cannot be set on this processor")
        assert not is_default(read_control())
        assert "rounds up" in describe_control(read_control())
        assert "FTZ on" in describe_control(read_control())
        assert np.float32(1) + np.float32(2.0**-30) > 1
        kernels = compute(select_kernels(compiled_isa, 2))
        assert not is_default(read_control())
        definition = compute(ReferenceKernels())
    assert read_control() == before
    assert is_default(before)
    assert np.float32(1) + np.float32(2.0**-30) == 1
    assert kernels == read_pins()
    assert len(find_wrong(definition, read_pins())) > 3  # the control: NumPy obeys it
