"""The machine and the process: busy cores, freed memory, the record of both."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT

from ptb_lm.common import control_groups, host

needs_proc = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's /proc/stat")


@pytest.mark.slow
@needs_proc
def test_a_busy_process_counts() -> None:
    """At least what it had; other tests may be at work beside it."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(0.2)
        measured, before, start = host.Load(), _seconds_of(busy.pid), time.perf_counter()
        time.sleep(1.0)
        taken, share = measured.busy_cores(), (_seconds_of(busy.pid) - before) / (time.perf_counter() - start)
        busy.kill()
    assert taken is not None
    assert taken > share - 0.15


@pytest.mark.slow
@needs_proc
def test_this_process_does_not_count() -> None:
    """However long it computes, and what it has started: the others have the rest of the cores at most."""
    count, wall = len(host.cores()), time.perf_counter()
    before, own = host._seconds_of_other_processes(), sum(os.times()[:4])
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    while sum(os.times()[:4]) - own < 0.6:
        pass
    after, computed = host._seconds_of_other_processes(), sum(os.times()[:4]) - own
    assert before is not None
    assert after is not None
    assert after - before <= count * (time.perf_counter() - wall) - computed + 0.1


NICE = """
import os
from ptb_lm.common import host
os.nice(5)
def measure():
    return host._seconds_of_other_processes(), host.seconds_of_cores((1, 2, 3)), sum(os.times()[:4])
before = measure()
while sum(os.times()[:4]) - before[2] < 0.6:
    pass
others, all_work, own = (after - earlier for after, earlier in zip(measure(), before))
print(all_work - own - others)
"""


@pytest.mark.slow
@needs_proc
def test_a_process_of_lower_priority_is_not_taken_from_the_others() -> None:
    """Its own time is that of nice work, so all nice work is counted before it is taken away."""
    done = subprocess.run([sys.executable, "-c", NICE], check=True, capture_output=True, text=True)
    assert abs(float(done.stdout)) < 0.1


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / host.HERTZ


def test_nothing_is_held_back_from_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with host.hold_back_stderr():
        assert sys.stderr is None


@pytest.mark.parametrize(
    ("taken", "quota", "threads", "expected"),
    [
        (0.3, None, 8, None),
        (1.1, None, 1, None),
        (1.1, None, 6, None),
        (0.9, None, 8, "OMP_NUM_THREADS=7"),
        (20.0, None, 8, "OMP_NUM_THREADS=1"),
        (0.3, 2.5, 8, "2.5 of 8 cores: .*OMP_NUM_THREADS=2"),
        (0.3, 0.5, 2, "OMP_NUM_THREADS=1"),
        (0.3, 2.5, 2, None),
        (0.3, 12.0, 8, None),
        (3.0, 2.5, 8, "OMP_NUM_THREADS=2"),
        (6.0, 4.0, 8, "OMP_NUM_THREADS=2"),
    ],
)
def test_the_hint_names_the_threads_that_have_a_core_each(
    taken: float, quota: float | None, threads: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(control_groups, "cpu_quota", lambda: quota)
    monkeypatch.setattr(host.Load, "busy_cores", lambda self: taken)
    hint = host.Load().hint(threads)
    assert (hint is None) if expected is None else re.search(expected, hint or "")


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("", {"cpu.max": "150000 100000\n"}, 1.5),  # /proc is not mounted
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/slurm/job_7\n", {"slurm/job_7/cpu.max": "250000 100000\n"}, 2.5),
        (
            "0::/slurm/job_7\n",
            {"slurm/job_7/cpu.max": "max 100000\n", "slurm/cpu.max": "400000 100000\n"},
            4,
        ),
        ("0::/slurm/job_7\n", {"slurm/job_8/cpu.max": "250000 100000\n"}, None),
        # Characters that end a line for str.splitlines.
        ("0::/slurm/job\x85\u2028\n", {"slurm/cpu.max": "250000 100000\n"}, 2.5),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (  # a container by version 1, whose name the kernel knows, and its folders do not
            "4:cpu,cpuacct:/docker/0a:b\n0::/docker/0a:b\n",
            {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        ("0::/\n", {}, None),
    ],
)
def test_a_quota_of_cores_is_recorded(
    groups: str, files: dict[str, str], quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "groups")
    if groups:
        (tmp_path / "groups").write_text(groups)
    monkeypatch.setattr(host, "_git_commit", lambda: None)
    assert control_groups.cpu_quota() == quota
    assert host.environment().get("cpu_quota") == quota


# Each allocation on a thread of its own, as TensorFlow's are; the first ones may grow the heap.
FAULTS = """
import ctypes, resource, threading
from ptb_lm.common import host
{}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def use(size=2**25):
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
    ctypes.memset(block, 1, size)
    libc.free(block)
def step():
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS.format(first)], capture_output=True, text=True)
    assert done.stderr == ""
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told")
def test_freed_memory_is_not_faulted_in_again() -> None:
    given_back = faults("")
    if given_back < 1000:
        pytest.skip("this C library keeps its memory by itself, or its pages are huge")
    assert faults("host.keep_freed_memory()") < given_back / 20


# Of a Xeon, of a Neoverse N1, and of a machine with neither.
CPUINFO = {
    "processor\t: 0\nmodel name\t: A Xeon @ 2:1\n\nprocessor\t: 1\n": "A Xeon @ 2:1",
    (
        "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        "CPU part\t: 0xd0c\nCPU revision\t: 1\n\nprocessor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd0d\n"
    ): "ARM implementer 0x41 part 0xd0c",
    "processor\t: 0\nhart\t: 2\nisa\t: rv64imafdc\n": "riscv64",
}


@pytest.mark.parametrize("text", CPUINFO)
def test_a_processor_has_its_name_or_its_numbers(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "read_cpuinfo", lambda: text)
    monkeypatch.setattr(host.platform, "processor", lambda: "")
    monkeypatch.setattr(host.platform, "machine", lambda: "riscv64")
    assert host.environment()["processor"] == CPUINFO[text]


def test_memory_that_holds_files_for_a_while_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemTotal:       16 kB\nMemFree:         1 kB\nMemAvailable:   12 kB\nHugePages_Total:    3\n"
    monkeypatch.setattr(host, "_read", lambda file: text)
    assert host.machine_memory() == (12 * 1024, 16 * 1024)


@pytest.mark.slow
def test_the_commit_is_marked_when_the_code_has_changed_and_not_when_results_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    code, page = tmp_path / "ptb_lm" / "host.py", tmp_path / "results" / "README.md"
    kernels, new = tmp_path / "ptb_lm" / "native" / "kernels.cpp", tmp_path / "ptb_lm" / "new.py"
    for path in (code, page, kernels):
        path.parent.mkdir(exist_ok=True)
        path.write_text("first\n")
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *arguments], check=True)
    rev_parse = [*git, "rev-parse", "HEAD"]
    head = subprocess.run(rev_parse, check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(host, "PACKAGE", code.parent)
    monkeypatch.setenv("PTB_LM_COMMIT", "of no use here")
    for path in (page, tmp_path / "notes.py", tmp_path / "ptb_lm" / "notes.md"):
        path.write_text("no code of the package\n")
    assert host.environment()["commit"] == head
    for path in (code, kernels, new):
        path.write_text("second\n")
        assert host.environment()["commit"] == f"{head} with uncommitted changes"
        if path == new:
            path.unlink()
        else:
            path.write_text("first\n")
    # git would note such times in its index, under a lock that stays if the process is killed meanwhile.
    os.utime(code, (1, 1))
    index = (tmp_path / ".git" / "index").read_bytes()
    assert host.environment()["commit"] == head
    assert (tmp_path / ".git" / "index").read_bytes() == index
    subprocess.run([*map(os.fsencode, git), b"checkout", b"--quiet", b"-b", b"caf\xe9"], check=True)
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    assert host.environment()["commit"] == head
    monkeypatch.delenv("GIT_DIR")
    # Installed into the environment of another project, the package has no commit of its own.
    installed = tmp_path / "site-packages" / "ptb_lm"
    installed.mkdir(parents=True)
    monkeypatch.setattr(host, "PACKAGE", installed)
    monkeypatch.delenv("PTB_LM_COMMIT")
    assert host.environment()["commit"] is None


@pytest.mark.slow
def test_a_copy_without_git_is_told_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PACKAGE", tmp_path / "ptb_lm")
    monkeypatch.delenv("PTB_LM_COMMIT", raising=False)
    assert host.environment()["commit"] is None
    monkeypatch.setenv("PTB_LM_COMMIT", "0123abc")
    assert host.environment()["commit"] == "0123abc"
