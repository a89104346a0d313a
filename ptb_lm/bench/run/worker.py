"""A process that the benchmark asks in lines of JSON: `python -m ptb_lm.bench.run.worker`.

A line of stdin is a request, and each has a line of stdout as its reply. A reply with a "status" and a
"reason" is a refusal, and the last. The requests are:

- {"import": "MODULE:FUNCTION"}: whether --add can use it. The reply has a digest of its source.
- {"order": a job}: build the job's variant. The reply has its facts.
- {"check": true}: compare it with the reference. The reply has more facts.
- {"pass": ..., "steps": ..., "untimed": ...}: time a block of steps.
- {"confirm": the first losses of a process that was compared, or null}: compare it, again if it was compared
  before, unless its own first losses are the "same". The reply has these, and more facts.
"""

import contextlib
import gc
import importlib
import json
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from ptb_lm.bench import check, variants
from ptb_lm.bench.rows import check_facts
from ptb_lm.bench.run import machine, record, timed_steps
from ptb_lm.bench.run.process import end_with_asker
from ptb_lm.bench.selection import Options
from ptb_lm.bench.suites import SUITES
from ptb_lm.common import host
from ptb_lm.common.errors import OutOfMemoryError, UserError


class BlockTimer:
    """Times a variant's blocks of steps, and measures memory and disturbance beside them."""

    def __init__(self, steps: timed_steps.TimedSteps) -> None:
        self._steps = steps
        self._peaks: dict[tuple[str, str], int] = {}  # by memory and pass, from the pass's first step on

    def block(self, pass_name: str, steps: int, *, untimed: int) -> dict[str, Any]:
        """Do steps of a pass; return their "seconds", "others" in cores, and "peak_memory" of the pass."""
        _reset_peak()
        load = host.Load(machine.seconds_of_others)
        seconds = self._steps.block(pass_name, steps, untimed=untimed)
        others = load.busy_cores()
        found = {"host_bytes": host_memory(), "device_bytes": self._steps.model.device_memory()}
        for memory, peak in found.items():
            if peak is not None:  # None where there is no such memory
                key = memory, pass_name
                self._peaks[key] = max(peak, self._peaks.get(key, 0))
        peaks = {memory: self._peaks.get((memory, pass_name)) for memory in found}
        return {"seconds": seconds, "others": others, "peak_memory": peaks}


class BuiltVariant:
    """A variant that is built, compared with the reference, and then ready to be timed.

    Attributes:
        task: The workload's task, at the batch size of the options.
        precision: The variant's precision: that of its name, or else of the options.
        steps: The steps that are timed.
        build_seconds: Seconds that it took to build it.

    Args:
        options: Options of the run, with "cpu" or "cuda" as the device.
        workload: Name of a workload of the suite.
        variant: Name of the variant.

    Raises:
        UserError: It cannot be built.
    """

    def __init__(self, options: Options, workload: str, variant: str) -> None:
        for added in options.added:
            variants.add(added)
        named = variants.Variant(variant)
        (declared,) = (each for each in SUITES[options.suite].workloads if each.name == workload)
        task, batch_size = declared.task, options.batch_size
        self.task = task if batch_size is None else task.with_batch_size(batch_size)
        self.precision = named.precision or options.precision
        self._variant, self._passes, self._seed = variant, declared.passes, options.seed
        self._result: check.CheckResult | None = None
        start = time.perf_counter()
        self._build = named.builder(
            self.task.registry, device=options.device, precision=self.precision, seed=options.seed
        )
        self.steps = timed_steps.prepare(self.task, self._build, seed=options.seed)
        self.build_seconds = time.perf_counter() - start
        if declared.needs_native_precision and (options.device, self.precision) == ("cpu", "bf16"):
            from ptb_lm.torch_backend import cpu  # behind the variant, which may set up torch otherwise

            if not cpu.bfloat16_products():
                raise UserError("this CPU does not multiply in bfloat16 itself: a step would take minutes")

    def facts(self) -> dict[str, Any]:
        """Return the variant's description of itself, for its rows.

        Raises:
            ValueError: A fact that reports read is not of its type.
        """
        environment = {**host.environment(), **self.steps.model.environment()}
        check_facts(environment, {})
        return {
            "engine": self._engine(),
            "environment": environment,
            "build_seconds": self.build_seconds,
        }

    def _engine(self) -> str:
        engine = self.steps.model.engine
        if not isinstance(engine, str):  # of somebody's own program
            raise ValueError(f"its engine must be a string, not {engine!r:.40}")
        return engine

    def check(self) -> dict[str, Any]:
        """Compare it with the reference, again if it was; return facts about the comparison.

        Afterwards it is at a training run's initial weights, without the comparison's memory and peaks.

        Raises:
            WrongError: It computes something else than the reference.
        """
        start, earlier = time.perf_counter(), self._result
        check.check_shapes(self.steps.model.export_weights(), self.task.shapes)
        if earlier:
            self.steps.restart()  # to the masks of dropout that the reference has answered with
        self._result = result = check.check(
            self.task,
            self._build,
            self.steps.model,
            precision=self.precision,
            seed=self._seed,
            passes=self._passes,
            earlier=earlier,
        )
        self._begin_anew()
        if earlier:
            return {}
        return {
            "engine": self._engine(),
            "parity": result.errors,
            "check": {**result.what, "variant": self._variant, "engine": self._engine()},
            "loss": result.loss,
            "check_seconds": time.perf_counter() - start,
            "first_step_seconds": result.first_step_seconds,
        }

    def _begin_anew(self) -> None:
        """Go back to a training run's initial weights, without the comparison's memory and peaks."""
        self.steps.restart()
        gc.collect()
        _reset_peak()
        self.steps.model.device_memory()

    def confirm(self, first_losses: Sequence[float] | None) -> dict[str, Any]:
        """Compare it after its warm-up, unless its first losses are those of a process that was compared.

        If these are losses without dropout, because nobody knows its masks, its dropout is checked here.

        Raises:
            WrongError: It computes something else than the reference.
        """
        start = time.perf_counter()
        own = self.steps.first_losses(self._passes)
        same = own is not None and own == first_losses
        try:
            if same:
                check.check_unknown_dropout(
                    self.task, self.steps.model, precision=self.precision, seed=self._seed
                )
                self._begin_anew()
                facts = {"engine": self._engine(), "check_seconds": time.perf_counter() - start}
            else:
                facts = self.check()
        except check.WrongError as error:
            raise check.WrongError(f"after its warm-up, {error}") from None
        return {**facts, "first_losses": own, "same": same}


def serve(requests: TextIO, replies: TextIO) -> None:
    """Serve requests until they end, or one is refused."""
    try:
        for reply in _replies(map(json.loads, requests)):
            _write(replies, reply)
    except OutOfMemoryError as error:
        # Perhaps there is enough without the other variants: a failure is tried again alone.
        _write(replies, {"status": "failed", "reason": str(error)})
    except UserError as error:
        _write(replies, {"status": "unavailable", "reason": str(error)})
    except check.WrongError as error:
        _write(replies, {"status": "wrong", "reason": str(error)})
    except Exception as error:
        # Whatever it is, it becomes this variant's row; the others go on.
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        _write(replies, {"status": "failed", "reason": reason})


def _replies(requests: Iterator[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the replies: to one request about a module, or to a job and all after it."""
    first = next(requests)
    if "import" in first:
        yield _import_function(*first["import"].split(":"))
    else:
        job = first["order"]
        variant = BuiltVariant(Options(**job["options"]), job["workload"], job["variant"])
        yield variant.facts()
        blocks = BlockTimer(variant.steps)
        for request in requests:
            if "pass" in request:
                yield blocks.block(request["pass"], request["steps"], untimed=request["untimed"])
            elif "confirm" in request:
                yield variant.confirm(request["confirm"])
            else:
                yield variant.check()


def _import_function(module: str, function: str) -> dict[str, str]:
    """Import a function of the user's own.

    Returns:
        A digest of the text that is imported (record.module_digest).

    Raises:
        UserError: The module cannot be imported, or has no such function.
    """
    try:
        importlib.import_module(module)
    except Exception as error:
        # Whatever it is, it is the user's own code that cannot be imported.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"there is no module {error.name}; is it on PYTHONPATH?") from None
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UserError(f"the module {module} cannot be imported: {reason}") from None
    if not callable(getattr(sys.modules[module], function, None)):
        raise UserError(f"the module {module} has no function {function}")
    return {"digest": record.module_digest(module)}


def _write(replies: TextIO, reply: Mapping[str, Any]) -> None:
    """Write a reply; it may hold NumPy's numbers.

    Raises:
        ValueError: A number is not finite: no row could hold it.
        TypeError: A value is nothing that JSON has.
    """
    replies.write(json.dumps(reply, allow_nan=False, default=_to_python) + "\n")
    replies.flush()


def _to_python(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no row can hold {value!r:.40}")


@contextlib.contextmanager
def separate_pipes() -> Iterator[tuple[TextIO, TextIO]]:
    """Yield the process's stdin and stdout, for requests and replies alone.

    From now on whoever reads stdin finds its end, and takes no request; what prints to stdout goes to stderr.
    """
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with requests, replies:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

        def leave_pipes() -> None:
            """See to it that a child that goes on keeps no pipe open; what is buffered stays ours."""
            for pipe, instead in ((requests, 0), (replies, 2)):
                if not pipe.closed:
                    os.dup2(instead, pipe.fileno())

        os.register_at_fork(after_in_child=leave_pipes)
        yield requests, replies


def _reset_peak() -> None:
    """Reset the peak of host memory, where the system can: Linux."""
    for folder, _ in machine.session_processes():
        with contextlib.suppress(OSError):
            (folder / "clear_refs").write_text("5")


def host_memory() -> int:
    """Return the peak of the host memory in bytes, since `_reset_peak` where that is possible.

    The peaks of all processes of a variant are added.
    """
    peaks = []
    for folder, _ in machine.session_processes():
        with contextlib.suppress(OSError):
            found = re.search(r"^VmHWM:\s*(\d+) kB$", (folder / "status").read_text(), re.MULTILINE)
            if found:
                peaks.append(int(found[1]) * 1024)
    if peaks:
        return sum(peaks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB


if __name__ == "__main__":
    with separate_pipes() as pipes:
        end_with_asker(pipes[0])
        serve(*pipes)
