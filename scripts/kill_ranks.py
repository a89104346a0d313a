"""Kill one of two processes that train together, again and again: does the job end as if nothing had been?

    python scripts/kill_ranks.py --times 10

Each time torchrun --max-restarts 1 trains a small model with dropout on random text; a rank chosen at random
is killed at a random time after its first epoch, within an epoch too. The run must end with the numbers of a
run that nobody disturbed. The exit status is 0 if all did.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ptb_lm.common import cli

ROOT = Path(__file__).resolve().parent.parent
EPOCHS = 10
FLAGS = [
    *("--hidden-size", "6", "--num-steps", "5", "--batch-size", "4", "--epochs", str(EPOCHS)),
    *("--keep-prob", "0.8", "--precision", "fp64", "--device", "cpu"),
]
# One agent and two processes on this machine.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAIN = ["-m", "ptb_lm.train"]
NUMBERS = ("test_perplexity", "valid_perplexity", "final_test_perplexity", "best_epoch", "epochs")


def main() -> int:
    """Run the trials; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=cli.whole_number(1), default=10, help="trials (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the random times and ranks (default: 1)")
    arguments = parser.parse_args()
    rng, right = random.Random(arguments.seed), 0  # noqa: S311 (no secret)
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(Path(folder) / "text")
        start(text, Path(folder) / "expected").wait()
        expected = result(Path(folder) / "expected")
        for trial in range(1, arguments.times + 1):
            run = Path(folder) / f"run-{trial}"
            rank, epoch = rng.randrange(2), rng.randrange(1, EPOCHS // 2)
            status, killed_at = train_and_kill(text, run, rank=rank, epoch=epoch + rng.random())
            same = status == 0 and result(run) == expected
            right += same
            print(
                f"trial {trial}: rank {rank} killed after epoch {killed_at:.1f}, torchrun ended with "
                f"{status}: {'the same numbers' if same else 'OTHER NUMBERS'}",
                flush=True,
            )
            if not same:
                print(log(run).read_text())
    print(f"{right} of {arguments.times} jobs ended as if nothing had been: {expected}")
    return 0 if right == arguments.times else 1


def write_text(folder: Path) -> Path:
    """Write a few hundred random words as a corpus."""
    folder.mkdir()
    rng = random.Random(0)  # noqa: S311 (no secret)
    for split, lines in (("train", 90), ("valid", 25), ("test", 20)):
        words = [[f"w{min(int(rng.paretovariate(0.5)), 25)}" for _ in range(6)] for _ in range(lines)]
        (folder / f"{split}.txt").write_text("".join(" ".join(line) + " <unk>\n" for line in words))
    return folder


def start(text: Path, run: Path, *launcher: str) -> "subprocess.Popen[bytes]":
    """Start a training of two processes; by default torchrun starts them, and once more if one of them dies.

    What it says goes to a file beside the run, with .log after its name.
    """
    launcher = launcher or (*TORCHRUN, "--max-restarts", "1", *TRAIN)
    command = [*launcher, "--data", str(text), "--run-dir", str(run), *FLAGS]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with log(run).open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)


def start_nodes(text: Path, run: Path) -> list["subprocess.Popen[bytes]"]:
    """Start the same training as two nodes do, with an agent and a process each, all on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", run.name),
        *("--max-restarts", "1", *TRAIN),
    ]
    return [start(text, run, *node) for _ in range(2)]


def log(run: Path) -> Path:
    """Return the file with what a training said."""
    return run.with_name(f"{run.name}.log")


def train_and_kill(text: Path, run: Path, *launcher: str, rank: int, epoch: float) -> tuple[int, float]:
    """Train, and kill a rank after some epochs; return the launcher's status, and when that was, in epochs.

    A fraction of an epoch is one of the seconds that the steps of the epoch before took.
    """
    process = start(text, run, *launcher)
    wait_for_epoch(process, run, int(epoch))
    done, part = epochs(run), epoch % 1
    time.sleep(part * seconds_of_last_epoch(run))
    os.kill(ranks(process.pid)[rank], signal.SIGKILL)
    return process.wait(), done + part


def wait_for_epoch(process: "subprocess.Popen[bytes]", run: Path, epoch: int) -> None:
    """Wait until a training has done an epoch, or has ended."""
    while process.poll() is None and epochs(run) < epoch:
        time.sleep(0.01)


def epochs(run: Path) -> int:
    """Return how many epochs a run has done."""
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def seconds_of_last_epoch(run: Path) -> float:
    """Return the seconds that the steps of the last finished epoch took."""
    *_, last = (run / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(last)["seconds"])


def ranks(launcher: int) -> dict[int, int]:
    """Return the process ids of the ranks that a launcher has started and that still run."""
    found = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        for variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                found[int(variable.removeprefix(b"RANK="))] = int(child)
    return found


def result(run: Path) -> dict[str, float]:
    """Return the numbers that a run ended with."""
    whole = json.loads((run / "result.json").read_text())
    return {name: whole[name] for name in NUMBERS}


if __name__ == "__main__":
    sys.exit(main())
