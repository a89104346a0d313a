"""Saved tensors: back to the bit, or a sentence."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from runs import disk_with_room_for, files

from ptb_lm.errors import UserError
from ptb_lm.training import tensors

ARRAYS = {
    "fp32": np.array([[0.1, -0.0, np.inf], [np.nan, 1e-45, 3e38]], np.float32),
    "fp64": np.array(0.1),
    "bytes": np.arange(5, dtype=np.uint8),
    "empty": np.zeros((0, 3), np.int64),
}
METADATA = {"progress": {"epoch": 3, "rows": [{"x": 0.1}]}, "name": 'ü"\n', "best": float("inf")}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    tensors.save(path, ARRAYS, METADATA)
    return path


def test_arrays_come_back_to_the_bit(saved: Path) -> None:
    arrays, _ = tensors.load(saved)
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert array.tobytes() == ARRAYS[name].tobytes()


def test_metadata_come_back(saved: Path) -> None:
    assert tensors.load(saved)[1] == METADATA


@pytest.mark.parametrize("view", ["transposed", "every second column"])
def test_a_view_is_saved_as_what_it_shows(view: str, tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = array.T if view == "transposed" else array[:, ::2]
    tensors.save(tmp_path / "a", {"x": array}, {})
    np.testing.assert_array_equal(tensors.load(tmp_path / "a")[0]["x"], array)


def test_others_can_read_the_file(saved: Path) -> None:
    np.testing.assert_array_equal(safetensors.numpy.load_file(saved)["fp32"], ARRAYS["fp32"])


def test_saving_again_replaces_all(saved: Path) -> None:
    tensors.save(saved, {"x": np.zeros(1)}, {})
    assert tensors.load(saved) == ({"x": np.zeros(1)}, {})


def test_a_failure_keeps_the_older_file(saved: Path) -> None:
    before = files(saved.parent)
    with disk_with_room_for(1000), pytest.raises(OSError, match="File too large"):
        tensors.save(saved, {"x": np.zeros(1000)}, {})
    assert files(saved.parent) == before


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, -1])
def test_a_truncated_file_is_refused(kept: int, saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"a\.safetensors is truncated or not a safetensors file"):
        tensors.load(saved)


def test_bytes_after_the_end_are_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"a\.safetensors is truncated or not a safetensors file"):
        tensors.load(saved)


@pytest.mark.parametrize("content", [b"text\n" * 100, b"PK\x03\x04" + bytes(200), b"\x80\x04" + bytes(200)])
def test_another_kind_of_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(UserError, match="a is truncated or not a safetensors file"):
        tensors.load(path)


@pytest.mark.parametrize(
    "header",
    [None, {"format": "pt"}, {"ptb_lm": "3"}],
    ids=["no metadata", "another program's", "metadata that is no table"],
)
def test_anothers_safetensors_are_refused(header: dict[str, str] | None, tmp_path: Path) -> None:
    safetensors.numpy.save_file(ARRAYS, tmp_path / "a", metadata=header)
    with pytest.raises(UserError, match="a was not written by ptb_lm"):
        tensors.load(tmp_path / "a")


@pytest.mark.parametrize("header", [{"ptb_lm": ""}, {"ptb_lm": "{"}])
def test_damaged_metadata_are_refused(header: dict[str, str], tmp_path: Path) -> None:
    safetensors.numpy.save_file(ARRAYS, tmp_path / "a", metadata=header)
    with pytest.raises(UserError, match="a is truncated or not a safetensors file"):
        tensors.load(tmp_path / "a")


def test_numbers_that_numpy_lacks_are_refused(tmp_path: Path) -> None:
    header = {
        "__metadata__": {tensors.KEY: "{}"},
        "x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(2))
    with pytest.raises(UserError, match="a is truncated or not a safetensors file"):
        tensors.load(tmp_path / "a")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a is missing"):
        tensors.load(tmp_path / "a")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is truncated or not a safetensors file"):
        tensors.load(tmp_path)
