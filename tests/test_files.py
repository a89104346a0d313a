"""Atomic writing: the old file or the new one, and nothing else left behind."""

import os
import stat
from pathlib import Path

import pytest
from runs import disk_with_room_for, files

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_path, atomic_write, cache_folder, lock


def test_the_new_content_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old, and longer than the new")
    atomic_write(path, "new\r\nü\n")
    assert files(tmp_path) == {"a.txt": "new\r\nü\n".encode()}


def test_a_surrogate_is_written_as_its_escape(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", "path \udc80")
    assert files(tmp_path) == {"a": b"path \\udc80"}


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", b"\x00\r\n\xff")
    assert files(tmp_path) == {"a": b"\x00\r\n\xff"}


class StopHereError(Exception):
    pass


@pytest.mark.parametrize("error", [StopHereError, KeyboardInterrupt, OSError])
def test_a_failure_in_the_middle_leaves_the_old_file_only(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert files(tmp_path) == {"a": b"old"}


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert files(tmp_path) == {"a": b"new"}


def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with disk_with_room_for(1000), pytest.raises(OSError, match="File too large") as caught:
        atomic_write(path, bytes(1001))
    assert caught.value.filename == str(path)
    assert files(tmp_path) == {"a": b"old"}


def test_a_folder_that_is_missing_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(path, "text")
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_files_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_write(path, "text")
    assert list(tmp_path.iterdir()) == [path]
    assert list(path.iterdir()) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_file_is_as_readable_as_the_users_others(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        atomic_write(tmp_path / "a", "text")
        assert os.umask(mask) == mask, "the mask itself is as it was"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_lock_is_for_one_and_what_blocks_within_it_is_another_error(tmp_path: Path) -> None:
    def write_to_a_full_pipe() -> None:
        with lock(tmp_path):
            raise BlockingIOError

    with pytest.raises(BlockingIOError):
        write_to_a_full_pipe()
    with (
        lock(tmp_path),
        pytest.raises(UserError, match=f"^another process is using {tmp_path}$"),
        lock(tmp_path),
    ):
        pass


def test_the_cache_is_where_only_this_user_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    assert folder == tmp_path / "ptb_lm"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o770)  # anybody's of a group
    elsewhere = cache_folder()
    assert elsewhere != folder
    assert elsewhere.is_dir()
    assert cache_folder() == elsewhere, "one for the whole process"
