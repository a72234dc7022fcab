"""The writer leaves a whole model or nothing, and replaces nothing but a model."""

import os
from pathlib import Path

import numpy as np
import pytest

from exactlm.errors import FormatError
from exactlm.format.tensorfile import TensorFile
from exactlm.format.writer import ModelWriter

SHAPES = {"a": ("F32", (16,)), "b": ("U8", (2, 64))}
A, B = np.arange(16, dtype=np.float32), np.arange(128, dtype=np.uint8).reshape(2, 64)
SOURCE = {"kind": "gguf", "files": {}}


def write(target: Path, *, overwrite: bool = False) -> None:
    with ModelWriter(target, SHAPES, overwrite=overwrite) as writer:
        writer.write_tensor("a", A)
        writer.write_tensor("b", B)
        writer.write_file("config.json", b"{}\n")
        writer.finish(SOURCE, {})


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_tensors_lie_aligned_and_in_order(tmp_path: Path) -> None:
    write(tmp_path / "m")
    raw = (tmp_path / "m" / "model.safetensors").read_bytes()
    assert (8 + int.from_bytes(raw[:8], "little")) % 64 == 0
    file = TensorFile(tmp_path / "m" / "model.safetensors")
    assert file.names() == ["a", "b"]
    np.testing.assert_array_equal(file.array("a"), A)
    np.testing.assert_array_equal(file.array("b"), B)
    assert left_in(tmp_path) == ["m"]


@pytest.mark.parametrize(
    ("name", "array"), [("b", B), ("c", B), ("a", A[:15]), ("a", A.astype(np.float64)), ("a", A.astype(">f4"))]
)
def test_a_tensor_out_of_the_plan_is_refused(name: str, array: np.ndarray, tmp_path: Path) -> None:
    with (
        ModelWriter(tmp_path / "m", SHAPES) as writer,
        pytest.raises(FormatError, match="not the next one of the plan"),
    ):
        writer.write_tensor(name, array)
    assert left_in(tmp_path) == []


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    with ModelWriter(tmp_path / "m", SHAPES) as writer:
        writer.write_tensor("a", A)
        with pytest.raises(FormatError, match="'b' was announced"):
            writer.finish(SOURCE, {})
    assert left_in(tmp_path) == []


def test_sizes_are_whole_lines(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="'a' has 60 bytes"), ModelWriter(tmp_path / "m", {"a": ("F32", (15,))}):
        pass
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_interrupted_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def interrupted() -> None:
        with ModelWriter(tmp_path / "m", SHAPES) as writer:
            writer.write_tensor("a", A)
            raise error

    with pytest.raises(error):
        interrupted()
    assert left_in(tmp_path) == []


def test_interrupted_replacement_keeps_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "m")
    before = (tmp_path / "m" / "manifest.json").stat().st_ino
    rename = Path.rename

    def fail_second(self: Path, target: Path) -> Path:
        if target == tmp_path / "m" and self.name.startswith(".m.") and "old" not in str(self):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_second)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "m", overwrite=True)
    assert (tmp_path / "m" / "manifest.json").stat().st_ino == before
    assert left_in(tmp_path) == ["m"]


def test_existing_target_is_refused_unless_asked(tmp_path: Path) -> None:
    write(tmp_path / "m")
    with pytest.raises(FormatError, match="exists already; choose another directory, or allow overwriting"):
        write(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("old")
    write(tmp_path / "m", overwrite=True)
    assert (tmp_path / "m" / "config.json").read_text() == "{}\n"
    assert left_in(tmp_path) == ["m"]


def test_a_target_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    with ModelWriter(tmp_path / "m", SHAPES) as writer:
        writer.write_tensor("a", A)
        writer.write_tensor("b", B)
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "precious").touch()
        with pytest.raises(FormatError, match="exists already"):
            writer.finish(SOURCE, {})
    assert left_in(tmp_path / "m") == ["precious"]
    assert left_in(tmp_path) == ["m"]


def test_only_models_of_ours_are_replaced(tmp_path: Path) -> None:
    target = tmp_path / "m"
    target.mkdir()
    for text, message in (
        (None, "is not an exactlm model"),
        ('{"name": "web app"}', "is not an exactlm model"),
        ("no JSON", "is not an exactlm model"),
    ):
        if text is not None:
            (target / "manifest.json").write_text(text)
        with pytest.raises(FormatError, match=message):
            write(target, overwrite=True)
        assert left_in(target) == ([] if text is None else ["manifest.json"])


def test_a_model_with_foreign_files_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "m")
    (tmp_path / "m" / "notes.txt").touch()
    with pytest.raises(FormatError, match=r"holds 'notes\.txt', which exactlm did not write"):
        write(tmp_path / "m", overwrite=True)
    assert "notes.txt" in left_in(tmp_path / "m")


def test_files_and_links_are_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "m")
    (tmp_path / "file").touch()
    os.symlink(tmp_path / "m", tmp_path / "link")
    os.symlink(tmp_path / "nothing", tmp_path / "broken")
    for name in ("file", "link", "broken"):
        with pytest.raises(FormatError, match="exists already"):
            write(tmp_path / name)
        with pytest.raises(FormatError, match="not a directory"):
            write(tmp_path / name, overwrite=True)
    assert left_in(tmp_path) == ["broken", "file", "link", "m"]


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FormatError, match="cannot be written"):
        write(tmp_path / "file" / "m")
    with pytest.raises(FormatError, match="cannot be written"):
        write(tmp_path / ("x" * 300))
