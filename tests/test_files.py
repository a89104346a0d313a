"""Atomic writing: the old file or the new one, and nothing else left behind."""

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest
from runs import disk_with_room_for, files

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import absolute, atomic_path, atomic_write, cache_folder, lock


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("new\r\nü\n", "new\r\nü\n".encode()),
        ("path \udc80", b"path \\udc80"),
        (b"\x00\r\n\xff", b"\x00\r\n\xff"),
    ],
    ids=["text", "a surrogate", "bytes"],
)
def test_the_new_content_replaces_the_old(content: str | bytes, written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old, and longer than the new")
    atomic_write(path, content)
    assert files(tmp_path) == {"a": written}


def test_the_new_content_is_on_the_disk_before_it_replaces_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed, flush = tmp_path / "a", list[tuple[int, bytes]](), os.fsync
    path.write_bytes(b"old")

    def noted(descriptor: int) -> None:
        flush(descriptor)
        flushed.append((os.fstat(descriptor).st_size, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", noted)
    atomic_write(path, bytes(1001))
    assert flushed == [(1001, b"old")]


class StopHereError(Exception):
    pass


@pytest.mark.parametrize("error", [StopHereError, KeyboardInterrupt, OSError])
def test_a_failure_in_the_middle_leaves_the_old_file_only(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            assert path.read_bytes() == b"old"
            raise error

    with pytest.raises(error):
        write_half()
    assert files(tmp_path) == {"a": b"old"}


def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with disk_with_room_for(1000), pytest.raises(OSError, match="File too large") as caught:
        atomic_write(path, bytes(1001))
    assert caught.value.filename == str(path)
    assert files(tmp_path) == {"a": b"old"}


def test_of_several_files_the_one_that_fails_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    with (
        pytest.raises(OSError, match="File too large") as caught,
        disk_with_room_for(1000),
        atomic_path(first),
    ):
        atomic_write(second, bytes(1001))
    assert caught.value.filename == str(second)
    assert files(tmp_path) == {}


def test_a_copy_that_fails_is_named_by_where_it_goes(tmp_path: Path) -> None:
    """shutil's error names both files, first the one that is read."""
    source, path = tmp_path / "source", tmp_path / "a"
    source.write_bytes(bytes(1001))
    with pytest.raises(OSError, match="File too large") as caught, disk_with_room_for(1000):  # noqa: SIM117
        with atomic_path(path) as temporary:
            shutil.copyfile(source, temporary)
    assert caught.value.filename == str(path)


def test_an_absolute_path_does_not_hang_on_where_the_user_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell reads it: a link's `..` is that of the folder that it names; a link at the end stays."""
    (tmp_path / "real" / "inside").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "real" / "inside")
    monkeypatch.chdir(tmp_path / "here")
    given = {
        "a": tmp_path / "here" / "a",
        "link": tmp_path / "here" / "link",
        "../b/a": tmp_path / "b" / "a",
        "link/../a": tmp_path / "real" / "a",
        "../here/link": tmp_path / "here" / "link",
        "..": tmp_path,
    }
    assert {path: absolute(Path(path)) for path in given} == given


def test_a_folder_that_is_missing_or_in_the_files_place_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(path, "text")
    assert caught.value.filename == str(path)
    folder = tmp_path / "a"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_write(folder, "text")
    assert list(tmp_path.rglob("*")) == [folder]


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
        pytest.raises(UserError, match=f"^another process is using {tmp_path}; wait .* another folder$"),
        lock(tmp_path),
    ):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_without(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock(tmp_path):
        assert str(tmp_path) in capsys.readouterr().err


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
