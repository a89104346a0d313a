"""The reference's answers, in float64: each is computed once for all variants, and kept in a cache.

An answer is some named arrays: losses and norms, and sketches of gradients (`count_sketch`), which are small
enough to keep. A large question is computed in a process of its own, because the memory that it leaves behind
would count as the variant's.
"""

import contextlib
import hashlib
import inspect
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from ptb_lm.bench.run.process import describe_end
from ptb_lm.common import files
from ptb_lm.common.errors import UserError
from ptb_lm.training import tensors

Answer = dict[str, NDArray[np.float64]]

INLINE = 1e8  # multiply-adds of a forward pass that are computed here
# Sums of a sketch. It is prime, so that no row or column of a matrix falls into a few sums.
WIDTH = 16_381
CACHED_ANSWERS = 64  # the newest; one is 4 MB as a rule, 9 of four layers of two directions
# What an answer depends on beside its question: the files that compute it.
SOURCES = (
    *("model/**/*.py", "bench/check/*.py"),
    "bench/workloads.py",  # tells the factors of the loss
    "data/corpus.py",  # cuts the windows
)


@dataclass(frozen=True)
class Question(ABC):
    """A question to the reference; it can be pickled."""

    @property
    @abstractmethod
    def multiply_adds(self) -> float:
        """Multiply-adds of a forward pass."""

    @abstractmethod
    def arrays(self) -> Iterable[NDArray[Any]]:
        """Return the arrays that the answer depends on: the weights, the data, the masks."""

    @abstractmethod
    def answer(self) -> Answer:
        """Compute the answer."""

    def facts(self) -> Iterable[bytes]:
        """Return all that the answer depends on: what its fields say, and the arrays."""
        yield repr(self).encode()
        for array in self.arrays():
            yield np.ascontiguousarray(array).tobytes()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: not what can be drawn again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class GradientError(NamedTuple):
    """The error of a tensor's gradient.

    Attributes:
        whole: Norm of the difference from the reference's.
        length: Part of that along the reference's: by how much the gradient is too long or too short. The
            rounding of half precision points in every direction and hardly changes it. So a wrong factor
            shows here that is smaller than the error of the whole may be. It matters only where its bound is
            tighter: in bfloat16.
    """

    whole: float
    length: float


def answer(question: Question) -> Answer:
    """Return the reference's answer, from the cache if it is there and whole."""
    key = _key(question)
    path = files.cache_folder() / f"reference-{key}.safetensors"
    with contextlib.suppress(UserError):  # it is not there, or is not as it was written
        found, metadata = tensors.load(path, known=("question",))
        if metadata == {"question": key}:
            return found
    found = _compute(question)
    with contextlib.suppress(OSError):  # no disk to keep it on: it is computed again
        tensors.save(path, found, {"question": key})
        kept = sorted(path.parent.glob("reference-*.safetensors"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-CACHED_ANSWERS]:
            old.unlink(missing_ok=True)
    return found


def count_sketch(tensor: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return a small linear image of a tensor, by which the norm of a difference is found.

    The gradients of a large model fill a gigabyte, which is too much to keep for every workload. The image is
    a count sketch (Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", 2002): each
    element is added to, or subtracted from, one of WIDTH sums. It is linear, so the image of a difference is
    the difference of the images. The squares of an image sum up to those of its tensor, within a per cent or
    so, wherever the differences are.

    Returns:
        The image in float64, at most [WIDTH]. A tensor that is no larger is its own image.
    """
    flat = np.ravel(tensor)
    if flat.size <= WIDTH:
        return flat.astype(np.float64)
    # The same signs for all tensors of a size.
    bits = np.unpackbits(np.frombuffer(np.random.default_rng(flat.size).bytes(-(-flat.size // 8)), np.uint8))
    sums = np.zeros(WIDTH)
    for begin in range(0, flat.size, WIDTH):
        part = flat[begin : begin + WIDTH]
        sign = 1.0 - 2.0 * bits[begin : begin + part.size]
        sums[: part.size] += sign * part
    return sums


def gradients(prefix: str, gradients: Mapping[str, NDArray[np.floating]]) -> Answer:
    """Return what is kept of gradients: of each its norm, and its sketch."""
    norms = {f"{prefix}.norm of {name}": np.array(np.linalg.norm(g)) for name, g in gradients.items()}
    return {**norms, **{f"{prefix}.{name}": count_sketch(gradient) for name, gradient in gradients.items()}}


def gradient_errors(
    answer: Answer,
    prefix: str,
    found: Mapping[str, NDArray[np.float64]],
    rounding: Mapping[str, float] | None = None,
) -> dict[str, GradientError]:
    """Return the errors of each tensor's gradient, relative to its norm.

    A gradient far smaller than the others is known less well, relative to itself: its errors are relative to
    a hundredth of all of them together.

    Args:
        answer: Holds what `gradients` returned for the prefix.
        prefix: Prefix of names.
        found: Sketches of a variant's gradients, by name.
        rounding: Norm of the rounding error of the weights that a gradient was read off, by name. It is
            subtracted whole from both errors: in no direction can it be larger.
    """
    norms = {name: float(answer[f"{prefix}.norm of {name}"]) for name in found}
    whole = float(np.sqrt(sum(norm**2 for norm in norms.values())))
    errors = {}
    for name, image in found.items():
        right = answer[f"{prefix}.{name}"]
        off, rounded = image - right, rounding[name] if rounding else 0.0
        sizes = (np.linalg.norm(off), abs(off @ right) / (np.linalg.norm(right) or 1.0))
        # np.maximum keeps NaN, which is wrong.
        relative = (float(np.maximum(size - rounded, 0.0)) / max(norms[name], whole / 100) for size in sizes)
        errors[name] = GradientError(*relative)
    return errors


def _key(question: Question) -> str:
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[2]
    for pattern in SOURCES:
        for source in sorted(package.glob(pattern)):
            digest.update(source.read_bytes())
    digest.update(inspect.getsource(sys.modules[type(question).__module__]).encode())
    digest.update(np.__version__.encode())  # its random streams may change
    for fact in question.facts():
        digest.update(hashlib.sha256(fact).digest())
    return digest.hexdigest()[:32]


def _compute(question: Question) -> Answer:
    if question.multiply_adds <= INLINE:
        return question.answer()
    program = f"from {__name__} import write_answer; write_answer()"
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(question), capture_output=True)
    if done.returncode:
        stderr = done.stderr.decode(errors="replace")
        sys.stderr.write(stderr)
        raise ChildProcessError(f"the reference's process {describe_end(done.returncode, stderr)}")
    return safetensors.numpy.load(done.stdout)


def write_answer() -> None:
    """Write the answer to a pickled question of this program's own, which stdin has, to stdout."""
    question: Question = pickle.load(sys.stdin.buffer)  # noqa: S301
    arrays = {name: np.asarray(value) for name, value in question.answer().items()}  # some are scalars
    sys.stdout.buffer.write(safetensors.numpy.save(arrays))
