"""Saved tensors: back to the bit, or a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from runs import disk_with_room_for, files

from ptb_lm.common.errors import UserError
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


def test_arrays_and_metadata_come_back_to_the_bit(saved: Path) -> None:
    arrays, metadata = tensors.load(saved)
    assert metadata == METADATA
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert array.tobytes() == ARRAYS[name].tobytes()
    np.testing.assert_array_equal(safetensors.numpy.load_file(saved)["fp32"], ARRAYS["fp32"])


@pytest.mark.parametrize("view", ["transposed", "every second column"])
def test_a_view_is_saved_as_what_it_shows(view: str, tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = array.T if view == "transposed" else array[:, ::2]
    tensors.save(tmp_path / "a", {"x": array}, {})
    np.testing.assert_array_equal(tensors.load(tmp_path / "a")[0]["x"], array)


def test_saving_again_replaces_all(saved: Path) -> None:
    tensors.save(saved, {"x": np.zeros(1)}, {})
    assert tensors.load(saved) == ({"x": np.zeros(1)}, {})


def test_a_failure_keeps_the_older_file(saved: Path) -> None:
    before = files(saved.parent)
    with disk_with_room_for(1000), pytest.raises(OSError, match="File too large"):
        tensors.save(saved, {"x": np.zeros(1000)}, {})
    assert files(saved.parent) == before


def test_every_flipped_bit_is_refused_or_changes_nothing(saved: Path) -> None:
    """In the tensors none may pass; in the header one may be another way to write the same."""
    content, (arrays, metadata) = saved.read_bytes(), tensors.load(saved, known=METADATA)
    header = 8 + int.from_bytes(content[:8], "little")
    taken = []
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        saved.write_bytes(damaged)
        try:
            found, said = tensors.load(saved, known=METADATA)
        except UserError:
            continue
        taken.append(bit // 8)
        assert said == metadata
        assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in found.items()} == {
            name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
        }
    assert all(place < header for place in taken)
    assert len(taken) < 8  # \u00fc may be written \u00FC


def test_a_file_whose_hash_was_removed_is_read(tmp_path: Path) -> None:
    header = {tensors.METADATA_KEY: json.dumps(METADATA)}
    safetensors.numpy.save_file(ARRAYS, tmp_path / "a", metadata=header)
    arrays, metadata = tensors.load(tmp_path / "a", known=METADATA)
    assert (arrays.keys(), metadata) == (ARRAYS.keys(), METADATA)


@pytest.mark.parametrize("what", ["names", "shape", "type", "metadata"])
def test_the_hash_is_of_all_that_a_file_says(what: str, saved: Path) -> None:
    """Whoever writes such a file anew with another program needs its hash, too."""
    with safetensors.safe_open(saved, framework="numpy") as file:
        header = dict(file.metadata())
    arrays = dict(ARRAYS)
    if what == "names":
        arrays["renamed"] = arrays.pop("bytes")
    elif what == "shape":
        arrays["fp32"] = arrays["fp32"].reshape(3, 2)
    elif what == "type":
        arrays["fp32"] = arrays["fp32"].view(np.int32)
    else:
        header[tensors.METADATA_KEY] = header[tensors.METADATA_KEY].replace('"epoch": 3', '"epoch": 4')
    safetensors.numpy.save_file(arrays, saved, metadata=header)
    with pytest.raises(UserError, match=r"a\.safetensors has changed"):
        tensors.load(saved)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_too_little_address_space_is_told(saved: Path) -> None:
    """safetensors itself hangs or aborts; the limits are below what the arrays need."""
    pytest.importorskip("resource")
    tensors.save(saved, {"x": np.zeros(2**24, np.float32)}, {})
    code = (
        "import resource, sys; from pathlib import Path; from ptb_lm.training import tensors\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**20 * int(sys.argv[1]),) * 2)\n"
        "try:\n    tensors.load(Path(sys.argv[2]))\nexcept MemoryError:\n    print('told')"
    )
    for room in (30, 70, 130, 180):
        command = [sys.executable, "-c", code, str(room), str(saved)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert (done.stdout, done.stderr) == ("told\n", "")


def with_metadata(header: dict[str, str] | None) -> bytes:
    """Return a file of safetensors' own."""
    return safetensors.numpy.save(ARRAYS, metadata=header)


# Of a type that NumPy lacks.
BFLOAT16 = b'{"__metadata__": {"ptb_lm": "{}"}, "x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}'
WHOLE = safetensors.numpy.save(ARRAYS, metadata={tensors.METADATA_KEY: json.dumps(METADATA)})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((WHOLE[:kept], "truncated") for kept in (0, 1, 7, 8, 9, 100, -1)),
        (WHOLE + b"x", "truncated"),
        (b"text\n" * 100, "truncated"),
        (b"PK\x03\x04" + bytes(200), "truncated"),
        (b"\x80\x04" + bytes(200), "truncated"),
        (len(BFLOAT16).to_bytes(8, "little") + BFLOAT16 + bytes(2), "truncated"),
        *((with_metadata({tensors.METADATA_KEY: text}), "truncated") for text in ("", "{")),
        *(
            (with_metadata(header), "no metadata")
            for header in (None, {"format": "pt"}, {tensors.METADATA_KEY: "3"})
        ),
        (None, "missing"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(content: bytes | None, problem: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match=f"a .*{problem}"):
        tensors.load(tmp_path / "a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_not_called_missing(saved: Path) -> None:
    saved.chmod(0)
    with pytest.raises(UserError, match="not be read"):
        tensors.load(saved)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a safetensors file"):
        tensors.load(tmp_path)
