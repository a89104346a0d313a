"""The time of a torch training step, operation by operation.

    python -m benchmarks.studies profile torch/cudnn --config medium --out DIR

A variant is named as in the benchmark: torch/MODEL[/EXECUTION], plain-torch/cudnn or plain-awd/cudnn. Prints
the operations by their own time (on a GPU, its kernels); --out keeps that in profile.txt, the times of all in
rows.jsonl, and with --trace in trace.json for Perfetto.
"""

import argparse
from typing import Any

from benchmarks.studies import prepare, write_rows
from ptb_lm.common import host
from ptb_lm.common.errors import UserError

WARM_UP = 5


def run(arguments: argparse.Namespace) -> int:
    """Profile some steps on random words of Penn Treebank's frequencies; return the exit status."""
    if arguments.trace and not arguments.out:
        raise UserError("--trace writes OUT/trace.json, and --out is not given")
    if not arguments.variant.startswith(("torch/", "plain-torch/", "plain-awd/")):
        raise UserError(
            f"{arguments.variant}: only torch's variants can be profiled, torch/MODEL[/EXECUTION], "
            "plain-torch/cudnn and plain-awd/cudnn"
        )

    timed = prepare(
        arguments.variant,
        recipe=arguments.recipe,
        config=arguments.config,
        device=arguments.device,
        precision=arguments.precision,
    )
    # Imported after `prepare`, which sets OpenMP for the package's models: torch reads that when it comes.
    import torch
    from torch import profiler

    model = timed.model
    on_gpu = model.device.type == "cuda"
    timed.losses("train", WARM_UP)
    activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    with profiler.profile(activities=activities, acc_events=True) as profiled:
        timed.losses("train", arguments.steps)
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    averages = profiled.key_averages()
    table = averages.table(sort_by=order, row_limit=25, max_name_column_width=60)
    facts = {**host.environment(), **model.environment()}
    text = (
        f"{arguments.command}\ntorch {torch.__version__}, {arguments.steps} steps, {model.engine}\n"
        f"Measured on {facts['processor']}, {facts['cores']} cores, {facts['device']}, "
        f"commit {facts['commit'] or 'unknown'}\n"
        f"{table}\n"
    )
    print(text)
    if arguments.out:
        about = {"command": arguments.command, **facts, "engine": model.engine}
        rows = [{**row, "steps": arguments.steps} for row in _rows(averages, "device" if on_gpu else "cpu")]
        write_rows(arguments.out, (about, *rows), profile_txt=text)
        if arguments.trace:
            profiled.export_chrome_trace(str(arguments.out / "trace.json"))
    return 0


def _rows(averages: Any, device: str) -> list[dict[str, Any]]:
    """Return the milliseconds of each operation, or kernel of a GPU, and of all of them."""
    kind = "CPU" if device == "cpu" else "CUDA"
    rows = [
        {
            "operation": each.key,
            "self_ms": getattr(each, f"self_{device}_time_total") / 1e3,
            "total_ms": getattr(each, f"{device}_time_total") / 1e3,
            "calls": each.count,
        }
        for each in averages
        if each.device_type.name == kind and not (device == "device" and each.is_user_annotation)
    ]
    return [*rows, {"operation": "total", "self_ms": sum(row["self_ms"] for row in rows)}]
