"""Runs a suite: all variants of a workload in interleaved rounds, each in a process of its own.

The processes of all variants live side by side for two rounds, as a rule. The second is in the reverse order
of the first: of A B C C B A each variant's mean is that of the same moment, so that a drift of the machine
cancels. What processes draw once does not cancel, and stays in the intervals (intervals.py).

How many processes there are is planned after some of them, by the time they took and by how much their ratios
differ. Then it stays: an interval of a run that stops when it looks narrow would be too narrow.
"""

import contextlib
import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from ptb_lm.bench import intervals
from ptb_lm.bench.results import distinct, group_by_key
from ptb_lm.bench.rows import Row
from ptb_lm.bench.run.machine import Machine
from ptb_lm.bench.run.measurement import Measurement
from ptb_lm.bench.run.record import Record
from ptb_lm.bench.selection import Options
from ptb_lm.bench.summary import summarise
from ptb_lm.bench.workloads import ROUNDS_OF_A_PROCESS, Workload
from ptb_lm.common import cli, streams

LINE_SECONDS = 30.0  # between lines on progress, where no bar can be drawn
PILOT = 4  # processes of each variant before their number is planned
LEAST, MOST = 8, 60  # processes of a plan, if there is time for them
RESOLUTION = 0.05  # the half-width of an interval from which on more processes are not worth their time
RATIOS_FOR_A_SPREAD = 3


def run(
    options: Options, workloads: Sequence[Workload], record: Record, machine: Machine, *, command: str
) -> None:
    """Measure what the record lacks. Where a round lacks something, its baseline is measured again.

    Raises:
        UserError: The machine's rates cannot be measured, or a row of the record lacks a fact.
        OSError: The disk is full.
    """
    session = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    count, said = 0, time.monotonic()
    with cli.progress_bar(sum(map(_count_blocks, workloads)), options.suite) as bar:
        for workload in workloads:
            measurement = Measurement(options, workload, record, machine, session=session, command=command)
            for variant, reason in measurement.wrong.items():
                cli.print_line(
                    f"{workload.name} {variant} was wrong before, so it is not measured again ({reason}); "
                    "after a fix, choose another --out"
                )
            with contextlib.closing(measurement.pool):
                for done in _rounds(measurement):
                    bar.total += _count_blocks(measurement.workload) - _count_blocks(workload)
                    workload = measurement.workload
                    bar.set_description(f"{options.suite}: {workload.name} {done}")
                    bar.update()
                    count += 1
                    if bar.disable and time.monotonic() >= said + LINE_SECONDS:
                        streams.print_to_stderr(
                            f"{options.suite}: {workload.name} {done}, block {count} of {bar.total}"
                        )
                        said = time.monotonic()


def _count_blocks(workload: Workload) -> int:
    return len(workload.variants) * len(workload.passes) * workload.rounds


def _rounds(measurement: Measurement) -> Iterator[str]:
    """Measure; yield a name after each block, whether it was measured, was there, or cannot be."""
    laps = _take_over(measurement)
    for process in itertools.count():
        workload = measurement.workload
        if workload.minutes is not None and process >= PILOT:
            if laps:
                left = int(min((60 * workload.minutes - sum(laps.values())) / _mean_lap(laps), MOST))
                ratios = _ratios(measurement)
                count = count_processes(ratios, least=workload.processes, affordable=process + max(0, left))
                workload = measurement.workload = _with_processes(workload, count)
                described = f"{_describe_plan(count, ratios)}, {_describe_time(count, laps)}"
                cli.print_line(f"{workload.name}: {described}")
            elif planned := _planned_rows(measurement):
                # What was no part of that plan cannot be measured.
                laps = _keep_plan(measurement, planned)
                workload = measurement.workload
        if process >= workload.processes:
            return
        begin, before = time.monotonic(), len(measurement.record.measured_rows())
        yield from _rounds_of_a_process(measurement, workload.rounds_by_process[process])
        if len(measurement.record.measured_rows()) > before:
            laps[process] = laps.get(process, 0.0) + time.monotonic() - begin


def _rounds_of_a_process(measurement: Measurement, rounds: Sequence[int]) -> Iterator[str]:
    """Measure the rounds of a process of each variant, every other one in the reverse order."""
    workload = measurement.workload
    order = [
        (variant, pass_name)
        for variant in random.sample(workload.variants, len(workload.variants))
        for pass_name in random.sample(workload.passes, len(workload.passes))
    ]
    todo = {key for index in rounds for key in pairs_to_measure(measurement, index)}
    # Nothing is measured beside what fails in its start, or in the check.
    measurement.prepare(
        distinct(variant for variant, pass_name in order if (variant.name, pass_name) in todo)
    )
    for index in rounds:
        todo = pairs_to_measure(measurement, index)
        for variant, pass_name in order:
            key = (variant.name, pass_name)
            if key in todo and not measurement.should_skip(*key, index):
                measurement.measure(variant, pass_name, index)
            yield f"{variant.name} {pass_name}"
        order.reverse()
    measurement.pool.close()


def pairs_to_measure(measurement: Measurement, index: int) -> set[tuple[str, str]]:
    """Return the variants and passes to measure in a round, as pairs.

    These are the pairs that the round lacks and that can be measured, and the baseline beside them, because a
    ratio needs both from one session. If the baseline is lacking, every variant of that pass is measured
    again.
    """
    workload = measurement.workload
    every = {
        (variant.name, pass_name)
        for variant in workload.variants
        for pass_name in workload.passes
        if not measurement.should_skip(variant.name, pass_name, index)
    }
    found = {
        (variant, pass_name) for variant, pass_name, round_ in measurement.paired_rounds() if round_ == index
    }
    lacking = every - found
    beside = {(workload.baseline, pass_name) for _, pass_name in lacking}
    whole = {pass_name for _, pass_name in lacking & beside}
    return {key for key in every if key in lacking | beside or key[1] in whole}


def _take_over(measurement: Measurement) -> dict[int, float]:
    """Take over the plan of the last run that made one, unless a variant of this one was not part of it.

    Returns:
        The seconds of each process of all variants, side by side, that earlier runs have measured for the
        plan that holds, or for the one that is to be made.
    """
    workload, rows = measurement.workload, measurement.record.rows_of(measurement.workload.name)
    planned = _planned_rows(measurement)
    if workload.minutes is None or not planned:
        return _earlier_laps(_measured_rows(measurement))
    sessions = distinct(row.session for row in rows)
    later = sessions[sessions.index(planned[-1].session) + 1 :]
    known = {row.variant for row in rows if row.session not in later}
    if not known >= {variant.name for variant in workload.variants}:
        return _earlier_laps([row for row in _measured_rows(measurement) if row.session in later])
    return _keep_plan(measurement, planned)


def _measured_rows(measurement: Measurement) -> list[Row]:
    """Return the measured rows of the workload, the newest of each round."""
    measured = measurement.record.measured_rows().values()
    return [row for row in measured if row.workload == measurement.workload.name]


def _planned_rows(measurement: Measurement) -> list[Row]:
    """Return the rows that were measured after a plan, the newest last."""
    rows = measurement.record.rows_of(measurement.workload.name)
    return [row for row in rows if row.is_measured and row.round >= PILOT * ROUNDS_OF_A_PROCESS]


def _keep_plan(measurement: Measurement, planned: Sequence[Row]) -> dict[int, float]:
    """Follow the plan of some rows, the newest last; return the seconds of each process so far."""
    laps = _earlier_laps(_measured_rows(measurement))
    count = planned[-1].planned_rounds // ROUNDS_OF_A_PROCESS
    measurement.workload = _with_processes(measurement.workload, count)
    described = f"{_describe_plan(count, [])} as planned before, {_describe_time(count, laps)}"
    cli.print_line(f"{measurement.workload.name}: {described}")
    return laps


def _earlier_laps(measured: Sequence[Row]) -> dict[int, float]:
    """Return the seconds of each process of all variants, by its number.

    They are the seconds of its variants' starts, as if these came one after the other, and the time from its
    first row to its last, of each session that had a part in it: the pause between two does not count.
    """
    parts = group_by_key(((row.round // ROUNDS_OF_A_PROCESS, row.session), row) for row in measured)
    laps: dict[int, float] = {}
    for (process, _), rows in parts.items():
        # A process is built and checked once, and warmed up for each pass.
        starts = {
            (row.process, name, row.pass_name if name == "warm_up_seconds" else None): seconds
            for row in rows
            for name, seconds in row.startup.items()
            if name in ("build_seconds", "check_seconds", "warm_up_seconds")
        }
        times = [datetime.fromisoformat(row.time) for row in rows if row.time]
        between = (max(times) - min(times)).total_seconds() if times else 0.0
        laps[process] = laps.get(process, 0.0) + between + sum(starts.values())
    return laps


def _with_processes(workload: Workload, processes: int) -> Workload:
    return dataclasses.replace(
        workload, processes=processes, rounds=processes * ROUNDS_OF_A_PROCESS, minutes=None
    )


def count_processes(ratios: Sequence[intervals.LogMean], *, least: int, affordable: int) -> int:
    """Return how many processes of each variant to measure.

    They are as many as there is time for, or fewer if these resolve RESOLUTION in nine of ten runs. Those
    that were measured for the plan count in the intervals as well. That hardly matters (a test simulates it)
    where the spread of several ratios decides; of one or two it decides nothing.

    Args:
        ratios: Ratios to the baseline of the processes so far.
        least: Number of processes at least.
        affordable: Number of processes that there is time for.
    """
    needed = affordable = min(affordable, MOST)
    if len(ratios) >= RATIOS_FOR_A_SPREAD:
        # As they share the baseline, their variances correlate by a quarter.
        independent = 4 * len(ratios) / (len(ratios) + 3)
        needed = intervals.count_units(
            _spread(ratios),
            freedom=(min(ratio.units for ratio in ratios) - 1) * independent,
            half_width=math.log1p(RESOLUTION),
            most=affordable,
        )
    return max(least, min(affordable, max(LEAST, needed)))


def _ratios(measurement: Measurement) -> list[intervals.LogMean]:
    """Return the ratios to the baseline that have an error between processes."""
    groups = summarise(measurement.record.folder).groups
    results = [
        each for group in groups if group.workload == measurement.workload.name for each in group.results
    ]
    return [
        each.ratio for each in results if each.ratio and each.ratio.error and each.ratio.unit == "process"
    ]


def _spread(ratios: Sequence[intervals.LogMean]) -> float:
    """Return the standard deviation of a process's log ratio, that of all ratios together."""
    return math.sqrt(statistics.fmean(each.units * (each.error or 0.0) ** 2 for each in ratios))


def _describe_plan(processes: int, ratios: Sequence[intervals.LogMean]) -> str:
    """Say how many processes there will be, and what they should resolve."""
    what = f"{processes} processes of each variant"
    if not ratios:
        return what
    half = intervals.t_quantile(processes - 1) * _spread(ratios) / math.sqrt(processes)
    return f"{what}, to resolve differences of {max(0.1, 100 * math.expm1(half)):,.1f} %"


def _mean_lap(laps: Mapping[int, float]) -> float:
    """Return the seconds of a further process of all variants.

    The first lasts longer, because its programs are compared with the reference.
    """
    return statistics.fmean([seconds for process, seconds in laps.items() if process > 0] or laps.values())


def _describe_time(processes: int, laps: Mapping[int, float]) -> str:
    """Say how long so many processes of all variants take, with those that were measured."""
    seconds = sum(laps.values()) + _mean_lap(laps) * (processes - len(laps))
    return f"about {seconds / 60:.0f} minutes in all"
