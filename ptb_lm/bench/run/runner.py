"""Runs a suite: all variants of a workload in interleaved rounds, each in a process of its own."""

import contextlib
import random
import time
from collections.abc import Iterator, Sequence

from ptb_lm.bench.run.machine import Machine
from ptb_lm.bench.run.measurement import Measurement
from ptb_lm.bench.run.record import Record
from ptb_lm.bench.selection import Options
from ptb_lm.bench.workloads import Workload
from ptb_lm.common import cli, streams

LINE_SECONDS = 30.0  # between lines on progress, where no bar can be drawn


def run(
    options: Options, workloads: Sequence[Workload], record: Record, machine: Machine, *, command: str
) -> None:
    """Measure what the record lacks. Where a round lacks something, its baseline is measured again.

    Raises:
        UserError: The machine's rates cannot be measured.
        OSError: The disk is full.
    """
    blocks = sum(len(w.variants) * len(w.passes) * w.rounds for w in workloads)
    session = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    count, said = 0, time.monotonic()
    with cli.progress_bar(blocks, options.suite) as bar:
        for workload in workloads:
            measurement = Measurement(options, workload, record, machine, session=session, command=command)
            for variant, reason in measurement.wrong.items():
                cli.say(
                    f"{workload.name} {variant}: was wrong before and is not measured again ({reason}); "
                    "once it is mended, choose another --out"
                )
            with contextlib.closing(measurement.pool):
                for done in _rounds(measurement):
                    bar.set_description(f"{options.suite}: {workload.name} {done}")
                    bar.update()
                    count += 1
                    if bar.disable and time.monotonic() >= said + LINE_SECONDS:
                        streams.tell(f"{options.suite}: {workload.name} {done}, block {count} of {blocks}")
                        said = time.monotonic()


def _rounds(measurement: Measurement) -> Iterator[str]:
    """Measure; yield a name after each block, whether it was measured, was there, or cannot be."""
    workload = measurement.workload
    for index in range(workload.rounds):
        todo = _todo(measurement, index)
        for variant in random.sample(workload.variants, len(workload.variants)):
            for pass_name in random.sample(workload.passes, len(workload.passes)):
                if (variant.name, pass_name) in todo and not measurement.should_skip(
                    variant.name, pass_name, index
                ):
                    measurement.measure(variant, pass_name, index)
                yield f"{variant.name} {pass_name}"
            if workload.is_last_of_process(index):
                measurement.pool.drop(variant.name)


def _todo(measurement: Measurement, index: int) -> set[tuple[str, str]]:
    """Return the variants and passes to measure in a round.

    These are those that the round lacks, and the baseline beside them: rows of two sessions make no ratio. If
    the baseline is lacking, every variant of that pass is measured again. In a round that was begun before,
    the processes of what is lacking are started and checked first: nothing is measured beside what fails
    there.
    """
    workload = measurement.workload
    every = {(variant.name, pass_name) for variant in workload.variants for pass_name in workload.passes}
    found = {(variant, of) for _, of, variant, round_ in measurement.measured if round_ == index}
    lacking = {key for key in every - found if not measurement.should_skip(*key, index)}
    if found:
        for variant in workload.variants:
            if any(name == variant.name for name, _ in lacking):
                measurement.prepare(variant)
        lacking = {key for key in lacking if not measurement.should_skip(*key, index)}
    without_baseline = {pass_name for variant, pass_name in lacking if variant == workload.baseline}
    return (
        lacking
        | {(workload.baseline, pass_name) for _, pass_name in lacking}
        | {(variant, pass_name) for variant, pass_name in every if pass_name in without_baseline}
    )
