"""Write a digest of what every model computes, to show that a change leaves all numbers as they are.

    git stash && python scripts/digests.py /tmp/before && git stash pop
    python scripts/digests.py /tmp/after && diff /tmp/before /tmp/after

Each line is a model of a framework, in a precision, with a kind of dropout: the SHA-256 of its training
state after 20 steps, of that after 20 more in a resumed run, of every perplexity, and of a text's scores.
The script uses only commands, run directories and ptb_lm.load, so that it runs at any commit. Two machines
may differ. It takes some minutes.
"""

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

SIZES = "--config test --hidden-size 24 --embedding-size 16 --batch-size 4 --num-steps 5"
STEPS = "--init-scale 0.3 --learning-rate 0.2"
FIRST, RESUMED, SPLITS = "--epochs 1", "--epochs 2", {"train": 404, "valid": 60, "test": 60}
REGULARISED = (
    "--keep-prob 0.7 --variational --embedding-keep-prob 0.9 --recurrent-keep-prob 0.8 --average-epochs 1"
)
MODELS = {
    "torch": {
        "lstm": "basic block block_fused cudnn persistent",
        "gru": "basic cudnn",
        "layer_norm_lstm": "basic",
        "mogrifier_lstm": "basic block_fused",
    },
    "tensorflow": {
        "lstm": "basic block block_fused cudnn",
        "layer_norm_lstm": "basic",
        "mogrifier_lstm": "basic",
    },
}
PRECISIONS = {"torch": "fp32 bf16 fp16 fp64", "tensorflow": "fp32 fp64"}
# The log-probabilities of a text in the precision of the run, to the last bit.
SCORE = """
import json, pathlib, sys, ptb_lm
run = pathlib.Path(sys.argv[1])
chosen = json.loads((run / "config.json").read_text())["model"]
model = ptb_lm.load(run, model=chosen, precision=sys.argv[3])
for sentence in model.score(pathlib.Path(sys.argv[2]).read_text()):
    print(sentence.log_probabilities.tobytes().hex())
"""
KINDS = {"plain": "--keep-prob 0.7", "regularised": REGULARISED}


def experiments() -> Iterator[tuple[str, str]]:
    """Yield (name, flags) of each run."""
    for framework, models in MODELS.items():
        for (cell, names), precision in itertools.product(models.items(), PRECISIONS[framework].split()):
            for model, (kind, flags) in itertools.product(names.split(), KINDS.items()):
                if (framework, model, precision) == ("tensorflow", "block_fused", "fp64"):
                    continue  # BlockLSTMV2 has no float64
                where = f"--framework {framework} --model {model} --cell {cell} --precision {precision}"
                yield f"{framework} {cell} {model} {precision} {kind}", f"{where} {flags}"
    tied = "--tie-weights --embedding-size 24 --keep-prob 0.7"
    yield "torch tied", f"--model block_fused {tied}"
    yield "tensorflow tied", f"--framework tensorflow --model block {tied}"
    for execution in ("compile", "jit"):
        yield f"torch {execution}", f"--model basic --execution {execution} --keep-prob 0.7"
    for execution in ("eager", "xla"):
        yield f"tensorflow {execution}", f"--framework tensorflow --model basic --execution {execution}"
    yield "torch two processes", "--model block_fused --devices 2 --device cpu --keep-prob 0.7"


def write_corpus(folder: Path) -> None:
    """Write three splits of random words; some are frequent, some rare."""
    random = np.random.default_rng(1)
    for split, size in SPLITS.items():
        ids = np.concatenate([np.arange(1, 41), random.zipf(1.3, size).clip(max=40)])[:size]
        lines = np.array_split(np.array([f"w{each}" for each in ids]), size // 9)
        (folder / f"{split}.txt").write_text("".join(" ".join(line) + "\n" for line in lines))


def run(*arguments: str) -> str:
    """Return what Python prints.

    Raises:
        RuntimeError: Python failed; the message ends in what it wrote to standard error.
    """
    line = [sys.executable, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}\n{done.stderr}")
    return done.stdout


def digest_weights(run_directory: Path) -> str:
    """Return the digest of all tensors of a run: the weights that it keeps and the newest training state."""
    content = hashlib.sha256()
    for file in sorted(run_directory.rglob("*.safetensors")):
        for name, array in sorted(load_file(file).items()):
            content.update(name.encode() + array.tobytes())
    return content.hexdigest()[:16]


def digest_perplexities(run_directory: Path) -> str:
    """Return the digest of all perplexities of a run, to the last bit."""
    rows = (run_directory / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(row) for row in (*rows, (run_directory / "result.json").read_text())]
    return digest(json.dumps([{k: v for k, v in row.items() if "perplexity" in k} for row in found]).encode())


def digest(content: bytes) -> str:
    """Return the first digits of a SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def measure(name: str, flags: str) -> str:
    """Train, resume and score one model; return its line."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_corpus(folder)
        directory = str(folder / "run")
        precision = flags.partition("--precision ")[2].partition(" ")[0] or "fp32"
        where = ["--data", str(folder), "--run-dir", directory]
        try:
            run("-m", "ptb_lm.train", *SIZES.split(), *STEPS.split(), *FIRST.split(), *flags.split(), *where)
            first = digest_weights(folder / "run")
            run("-m", "ptb_lm.train", "--resume", directory, *RESUMED.split())
            scores = run("-c", SCORE, directory, str(folder / "test.txt"), precision)
        except RuntimeError as error:
            return f"{name}: {str(error).splitlines()[-1]}"
        found = (first, digest_weights(folder / "run"), digest_perplexities(folder / "run"))
        return f"{name}: {' '.join(found)} {digest(scores.encode())}"


def main() -> None:
    """Write the digests, in the order of their names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="file to write; a line a model")
    parser.add_argument("--only", default="", help="word that a line's name must hold")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="models at a time")
    options = parser.parse_args()
    chosen = [each for each in experiments() if options.only in each[0]]
    if not chosen or options.jobs < 1:
        parser.error("--only names no line, or --jobs is below 1")
    options.out.touch()  # complains before the models are trained
    with ThreadPoolExecutor(options.jobs) as pool:
        lines = list(pool.map(lambda each: measure(*each), chosen))
    options.out.write_text("".join(line + "\n" for line in lines))
    print(f"{len(lines)} digests in {options.out}")


if __name__ == "__main__":
    main()
