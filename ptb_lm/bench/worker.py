"""A variant in a process of its own: python -m ptb_lm.bench.worker, spoken to in lines of JSON.

The first line on stdin is an Order. The answer says whether the variant is ready, with its facts, or why not.
Each further line asks for a block of steps and is answered with its seconds, or for another comparison with
the reference and is answered with nothing, or with why the variant is wrong.
"""

import contextlib
import gc
import json
import math
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from ptb_lm.bench import check, disturbance, timed_steps, variants
from ptb_lm.bench.selection import Options
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.timed_steps import TimedSteps
from ptb_lm.bench.workloads import Task, Workload
from ptb_lm.common import host
from ptb_lm.common.errors import OutOfMemoryError, UserError


@dataclass(frozen=True)
class Order:
    """What a worker is to be."""

    suite: str
    workload: str
    variant: str
    batch_size: int | None  # another than the workload's
    device: str
    precision: str  # where the variant's name gives none
    seed: int
    added: tuple[str, ...]  # NAME=MODULE:FUNCTION

    @classmethod
    def of(cls, options: Options, workload: str, variant: str, *, device: str) -> "Order":
        """Return the order for a variant, as the options want it.

        Args:
            options: What was asked for.
            workload: A name of the suite's.
            variant: Its name.
            device: "cpu" or "cuda".
        """
        return cls(
            suite=options.suite,
            workload=workload,
            variant=variant,
            batch_size=options.batch_size,
            device=device,
            precision=options.precision,
            seed=options.seed,
            added=options.added,
        )

    @property
    def task(self) -> Task:
        """The workload's task, at this order's batch size."""
        task = self._declared.task
        return task if self.batch_size is None else task.with_batch_size(self.batch_size)

    @property
    def computed_in(self) -> str:
        """The precision: the name's, where it gives one."""
        return variants.declared_precision(self.variant) or self.precision

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that are timed."""
        return self._declared.passes

    @property
    def _declared(self) -> Workload:
        (found,) = (each for each in SUITES[self.suite].workloads if each.name == self.workload)
        return found

    def to_json(self) -> str:
        """Return the order as a line."""
        return json.dumps(asdict(self))


class Peaks:
    """The peak of a memory in each pass, from its first step on: warm-up allocates, too."""

    def __init__(self) -> None:
        self._by_pass: dict[str, int] = {}

    def after(self, pass_name: str, peak: int | None) -> int | None:
        """Return the pass's peak so far, given that of a block of it; None where there is no such memory."""
        if peak is not None:
            self._by_pass[pass_name] = max(peak, self._by_pass.get(pass_name, 0))
        return self._by_pass.get(pass_name)


class Blocks:
    """A variant's blocks of steps, with what is measured beside them."""

    def __init__(self, steps: TimedSteps) -> None:
        self._steps = steps
        self._host, self._device = Peaks(), Peaks()

    def block(self, pass_name: str, steps: int, *, untimed: int) -> dict[str, Any]:
        """Do steps of a pass; return their "seconds", "others" in cores, and "peak_memory" of the pass."""
        _reset_peak()
        others = disturbance.Others()
        seconds = self._steps.block(pass_name, steps, untimed=untimed)
        taken = others.cores()
        memory = {
            "host_bytes": self._host.after(pass_name, host_memory()),
            "device_bytes": self._device.after(pass_name, self._steps.device_memory()),
        }
        return {"seconds": seconds, "others": taken, "peak_memory": memory}


def main() -> int:
    """Answer until stdin ends; return the exit status."""
    with answers_apart() as answers:
        try:
            order = Order(**json.loads(sys.stdin.readline()))
            steps, checked, facts = _ready(order)
            _answer(answers, status="ready", **facts)
            blocks = Blocks(steps)
            for line in sys.stdin:
                asked = json.loads(line)
                if "pass" not in asked:
                    _compare_again(order, steps, checked)
                    _answer(answers)
                    continue
                _answer(answers, **blocks.block(asked["pass"], asked["steps"], untimed=asked["untimed"]))
        except OutOfMemoryError as error:
            # Perhaps there is enough without the other variants: a failure is tried again alone.
            _answer(answers, status="failed", reason=str(error))
        except UserError as error:
            _answer(answers, status="unavailable", reason=str(error))
        except check.WrongError as error:
            _answer(answers, status="wrong", reason=str(error))
        except Exception as error:
            # Whatever it is, it becomes this variant's row; the others go on.
            traceback.print_exc()
            _answer(answers, status="failed", reason=f"{type(error).__name__}: {error}".split("\n")[0])
    return 0


def _ready(order: Order) -> tuple[TimedSteps, check.Checked, dict[str, Any]]:
    for added in order.added:
        variants.add(added)
    task = order.task
    start = time.perf_counter()
    variant = variants.Variant(order.variant, "")
    precision = order.computed_in
    build = variant.builder(task.registry, device=order.device, precision=precision, seed=order.seed)
    steps = timed_steps.prepare(task, build, seed=order.seed)
    built = time.perf_counter()
    checked = check.check(
        task, build, precision=precision, seed=order.seed, passes=order.passes, model=steps.model
    )
    _begin(steps)
    parameters = sum(weights.size for weights in steps.export_weights().values())
    declared = sum(math.prod(shape) for shape in task.shapes.values())
    if parameters != declared:
        raise check.WrongError(f"it has {parameters:,} parameters, the workload {declared:,}")
    facts = {
        "engine": steps.engine,
        "environment": {**host.environment(), **steps.environment()},
        "parity": checked.errors,
        "check": {**checked.what, "variant": order.variant, "engine": steps.engine},
        "loss": checked.loss,
        "check_seconds": time.perf_counter() - built,
        "build_seconds": built - start,
        "first_step_seconds": checked.first_step_seconds,
    }
    return steps, checked, facts


def _compare_again(order: Order, steps: TimedSteps, checked: check.Checked) -> None:
    """Compare what has done steps meanwhile once more.

    Raises:
        WrongError: It computes something else by now.
    """
    try:
        check.check_again(
            order.task,
            steps.model,
            checked,
            precision=order.computed_in,
            seed=order.seed,
            passes=order.passes,
        )
    except check.WrongError as error:
        raise check.WrongError(f"after its warm-up {error}") from None
    _begin(steps)


def _begin(steps: TimedSteps) -> None:
    """Let what was compared begin a training run; no peak of memory is the comparison's."""
    steps.restart()
    gc.collect()  # what was compared is not to take memory beside what is timed
    _reset_peak()
    steps.device_memory()


def _answer(answers: TextIO, **values: Any) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


@contextlib.contextmanager
def answers_apart() -> Iterator[TextIO]:
    """Yield what stdout was; whatever else prints there, prints on stderr from now on."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        yield answers


def _reset_peak() -> None:
    """Let the peak of host memory begin anew, so that what the reference took is not in it; Linux can."""
    for folder, _ in disturbance.session_processes():
        with contextlib.suppress(OSError):
            (folder / "clear_refs").write_text("5")


def host_memory() -> int:
    """Return the peak of the host memory in bytes, since `_reset_peak` where that is possible.

    Of a variant of several processes it is the sum of their peaks.
    """
    peaks = []
    for folder, _ in disturbance.session_processes():
        with contextlib.suppress(OSError):
            found = re.search(r"^VmHWM:\s*(\d+) kB$", (folder / "status").read_text(), re.MULTILINE)
            if found:
                peaks.append(int(found[1]) * 1024)
    if peaks:
        return sum(peaks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB


if __name__ == "__main__":
    sys.exit(main())
