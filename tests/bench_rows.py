"""A benchmark's rows with known ratios, as the runner would have written them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptb_lm.bench.reporting.report import build
from ptb_lm.bench.summary import summarise
from ptb_lm.common.markdown_tables import Name, Table
from ptb_lm.pages.document import Document, Section

WORK = {
    "parameters": 4_651_600,
    "flops_per_step": 1.1e10,
    "items_per_step": 400,
    "unit": "words",
    "precision": "fp32",
    "device": "cpu",
    "description": "2 × 200 units, vocabulary 10,000, batch 20 × 20 steps",
    "bytes_per_step": {"products": 20_000_000, "update": 30_000_000},
}
STACKED = {
    **WORK,
    "flops_per_step": 2.6e10,
    "items_per_step": 128,
    "unit": "sequences",
    "parameters": 4_966_929,
}
ENVIRONMENT = {
    "python": "3.12.3",
    "cpu": "A Processor @ 2.50GHz",
    "threads": 2,
    "torch": "2.13.0",
    "commit": None,
}
EVIL = "<script>alert('x')</script> & $5 | `a` _b_"


def row(**changes: Any) -> dict[str, Any]:
    """Return a row of small's training pass, measured, with some of it changed; `pass_` stands for "pass"."""
    changed = {"pass" if key == "pass_" else key: value for key, value in changes.items()}
    variant = changed.get("variant", "torch/basic")
    return {
        "suite": "quick",
        "workload": "small",
        "pass": "train",
        "session": "2026-11-21T06:00:00+00:00",
        "variant": variant,
        "label": variant,
        "baseline": "torch/basic",
        "round": 0,
        "process": 1,
        "status": "measured",
        "reason": None,
        "steps": 40,
        "seconds": 2.0,
        "work": WORK,
        "planned_rounds": 1,
        "note": None,
        "loss": 9.2,
        "parity": {"loss_error": 1e-8, "gradient_error": 1e-7, "gradient_bound": 1e-4, "steps": 2},
        "startup": {"build_seconds": 1.2, "warm_up_seconds": 3.4, "warm_up_steps": 3},
        "others": 0.01,
        "peak_memory": {"host_bytes": 9e8, "device_bytes": None},
        "gemm_gflops": 3000.0,
        "gemm_library": "torch.mm (MKL)",
        "gemm_shape": "2048 × 2048 × 2048",
        "gemm_threads": 2,
        "copy_gbytes": 100.0,
        "engine": "an engine",
        "environment": ENVIRONMENT,
        "command": "python -m ptb_lm.bench run quick --out OUT",
        "time": "2026-11-21T06:00:00+00:00",
        **changed,
    }


def unmeasured(status: str, reason: str, **changes: Any) -> dict[str, Any]:
    """Return a row that says why there is no measurement."""
    kept = ("suite", "workload", "pass", "session", "variant", "label", "baseline", "planned_rounds", "work")
    full = row(**changes)
    return {**{key: full[key] for key in (*kept, "environment")}, "status": status, "reason": reason}


def rounds(
    speeds: Mapping[str, float], *, count: int = 5, noise: float = 0.02, seed: int = 0, **changes: Any
) -> Iterator[dict[str, Any]]:
    """Yield `count` rounds of variants that are `speeds` times as fast as the baseline.

    The machine drifts by 30 % from round to round, which pairing takes out; `noise` is a variant's own.
    A process each round.
    """
    rng = np.random.default_rng(seed)
    process = 0
    for number in range(count):
        drift = rng.uniform(1, 1.3)
        for variant in rng.permutation(list(speeds)):
            process += 1
            seconds = 2 * drift / speeds[variant] * np.exp(noise * rng.standard_normal())
            yield row(
                **{
                    "variant": str(variant),
                    "round": number,
                    "process": process,
                    "seconds": float(seconds),
                    "planned_rounds": count,
                    "loss": 9.2 + 0.01 * rng.uniform(),
                    **changes,
                }
            )


def document(folder: Path, rows: Any, **chosen: Any) -> Document:
    """Return the report of some rows, before it is written."""
    return build(summarise(write(folder, rows), **chosen))


def section(report: Document, title: str) -> Section:
    """Return the part of a report with some title."""
    (found,) = (each for each in report.sections if each.title == title)
    return found


def cells(table: Table | None) -> dict[str, dict[str, str]]:
    """Return the cells of each row by their columns' titles; rows by their variants, in order."""
    titles = [column.title for column in table.columns[1:]]
    named = {row[0].code if isinstance(row[0], Name) else row[0]: row[1:] for row in table.rows}
    assert len(named) == len(table.rows)
    return {name: dict(zip(titles, map(str, row), strict=True)) for name, row in named.items()}


def results(report: Document, title: str = "small") -> dict[str, dict[str, str]]:
    """Return the cells of a workload's first table."""
    return cells(section(report, title).tables[0].table)


def write(folder: Path, rows: Any, *, end: str = "") -> Path:
    """Write rows.jsonl, with what follows its last line; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows) + end)
    return folder


PTB = {
    "torch/basic": 0.8,
    "torch/block": 0.7,
    "torch/cudnn": 1.6,
    "tensorflow/basic": 1.0,
    "tensorflow/block": 1.1,
    "tensorflow/block_fused": 1.3,
    "tensorflow/basic/eager": 0.15,
}
STACKED_SPEEDS = {
    "torch/basic/eager": 1.0,
    "torch/basic/jit": 1.4,
    "torch/block/eager": 1.2,
    "torch/cudnn/eager": 5.0,
    "tensorflow/basic": 2.2,
    "tensorflow/basic/graph/loop": 2.0,
    "tensorflow/basic/eager": 0.12,
}
ACOUSTIC = {"torch/basic": 1.0, "torch/block": 1.3, "torch/cudnn": 4.0, "keras-jax/cudnn": 2.5}


def rich() -> list[dict[str, Any]]:
    """Return the rows of three suites in which everything happens that may."""
    ptb: dict[str, Any] = {"suite": "ptb", "baseline": "tensorflow/basic"}
    lm: dict[str, Any] = {"suite": "stacked-lm", "workload": "3x256", "baseline": "torch/basic/eager"}
    speech: dict[str, Any] = {"suite": "acoustic", "workload": "1x320-CE-short"}
    forward = {**STACKED, "flops_per_step": STACKED["flops_per_step"] / 3}
    return [
        *rounds(PTB, **ptb),
        unmeasured("unavailable", "XLA cannot compile LSTMBlockCell", variant="tensorflow/block/xla", **ptb),
        unmeasured("failed", EVIL, variant="mine/custom", label=f"Mine {EVIL}", **ptb),
        unmeasured("wrong", "its gradient is off by 0.03", variant="mine/wrong", **ptb),
        *rounds(STACKED_SPEEDS, work=forward, pass_="forward", seed=1, **lm),
        *rounds(STACKED_SPEEDS, work=STACKED, seed=2, note="cut: batch 16 of 128", **lm),
        row(variant="torch/block/jit", work=STACKED, planned_rounds=5, seconds=1.7, **lm),
        unmeasured("failed", "out of memory", variant="torch/block/jit", planned_rounds=5, **lm),
        *(
            unmeasured("unavailable", "needs a GPU", variant="tensorflow/cudnn", pass_=each, **lm)
            for each in ("forward", "train")
        ),
        *rounds(ACOUSTIC, work={**STACKED, "items_per_step": 64}, seed=3, count=4, **speech),
    ]
