"""Write the tables of speed in README.md and docs/ from what is in results/.

Ratios are to the variants that the pages' words name, whatever baseline a folder's own report has.

A part lies between `<!-- NAME: ... -->` and `<!-- end of NAME -->`. README.md and docs/performance.md both
have the part speed. docs/scaling.md has the part scaling, and docs/semantics.md the part one call (of
several layers, beside a call of each). All others are in docs/performance.md.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ptb_lm.bench.findings import Group, Result, Summary, paired
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.summary import summarise
from ptb_lm.errors import UserError
from ptb_lm.results import optimisations, profiles, scoring
from ptb_lm.results.markdown import interval, ratio, table, write_part
from ptb_lm.results.measured import of_study, where

MEASURED = "bench-precisions-cpu"
AMX = "bench-precisions-xeon-cpu"
FLOAT32 = "bench-float32-cpu"
CONTENTION = "contention-medium-cpu"
PEAK = "bench-peak-cuda"
SCALING = "bench-scaling-cpu"
SEMANTICS = "bench-semantics-cpu"
LOOP = "plain-torch/cudnn"
PAGES = ("README.md", "docs/performance.md")  # with the part speed
# What the pages show, with what a reader calls it.
NAMES = {
    "plain-torch/cudnn": "the plain loop in torch",
    "plain-torch/cudnn/compile": "… under `torch.compile`",
    "plain-torch/cudnn-kept-memory": "… that keeps freed memory",
    "plain-torch/cudnn@bf16": "… under `torch.autocast`",
    "before-cudnn/custom": "`cudnn` before",
    "torch/cudnn": "`cudnn`",
    "before-block_fused/custom": "`block_fused` before",
    "torch/block_fused": "`block_fused`",
    "without-library/custom": "… with MKL's products",
    "without-kernels/custom": "… and without kernels of our own",
    "before-cudnn/custom@bf16": "`cudnn` before",
    "torch/cudnn@bf16": "`cudnn`",
    "before-block_fused/custom@bf16": "`block_fused` before",
    "torch/block_fused@bf16": "`block_fused`",
    "plain-tensorflow/keras": "the plain loop in Keras on TensorFlow",
    "plain-tensorflow/keras@bf16": "… with the policy `mixed_bfloat16`",
    "tensorflow/block_fused": "`block_fused` in TensorFlow",
}
SHORT = (
    "plain-torch/cudnn",
    "plain-torch/cudnn@bf16",
    "torch/cudnn",
    "torch/block_fused",
    "torch/cudnn@bf16",
    "torch/block_fused@bf16",
)


def write(root: Path) -> None:
    """Write the tables of speed of a checkout.

    Raises:
        UserError: Rows cannot be read, or a page lacks its markers.
    """
    results, docs = root / "results", root / "docs"
    speed = summarise(results / MEASURED, baseline=LOOP)
    for page in PAGES:
        front = page == "README.md"
        about = _about(speed, results / MEASURED, above="" if front else "../")
        text = f"{about}\n\n{_table(speed.groups, SHORT if front else tuple(NAMES))}"
        write_part(root / page, "speed", text)
    for name, text in {
        "speed with AMX": _with_source(results, AMX, LOOP, lambda groups: _table(groups, tuple(NAMES))),
        "speed in float32": _with_source(results, FLOAT32, LOOP, lambda groups: _table(groups, tuple(NAMES))),
        "contention": _of_contention(results / CONTENTION),
        "torch's changes": optimisations.torch_changes(results),
        "profile": profiles.markdown(results),
        "TensorFlow's models": optimisations.tensorflow_models(results),
        "TensorFlow's changes": optimisations.tensorflow_changes(results),
        "peak": _with_source(results, PEAK, f"{LOOP}@tf32", _of_variants),
        "scoring": scoring.markdown(results),
    }.items():
        write_part(docs / "performance.md", name, text)
    scaling = _with_source(results, SCALING, "torch/cudnn", _of_processes)
    write_part(docs / "scaling.md", "scaling", scaling)
    one_call = _with_source(results, SEMANTICS, "torch/cudnn", _of_one_call)
    write_part(docs / "semantics.md", "one call", one_call)


def _of_contention(folder: Path) -> str:
    """Return the table of the study contention, with where and how it was measured."""
    path = folder / "rows.jsonl"
    try:
        text = (folder / "table.md").read_text(encoding="utf-8").strip()
        facts = json.loads(path.read_text(encoding="utf-8").partition("\n")[0])
        return f"{text}\n\nMeasured on {of_study(facts)}, by `{facts['command']}`.\n"
    except (FileNotFoundError, ValueError, KeyError):
        raise UserError(
            f"{path} or the table beside it is missing, or is none of the study contention"
        ) from None


def _with_source(results: Path, folder: str, baseline: str, show: Callable[[Sequence[Group]], str]) -> str:
    """Return the table of a benchmark's folder, with where it was measured; for a page in docs/."""
    summary = summarise(results / folder, baseline=baseline)
    return f"{show(summary.groups)}\n{_measured(summary, results / folder, above='../')}\n"


def _measured(summary: Summary, folder: Path, *, above: str) -> str:
    """Say where a folder was measured, for a page that has results/ in the folder `above`."""
    return f"Measured on {where(summary, folder)} ([report]({above}results/{folder.name}/report.md))."


def _of_processes(groups: Sequence[Group]) -> str:
    """Return words a second by one process and by two, for each workload and model, and their ratio."""
    titles = ["workload", "model", "1 process:", "2 processes:", "times as fast (95 % interval):"]
    rows = []
    for group in groups:
        for model in ("cudnn", "block_fused", "basic"):
            one, two = (group.result(f"{kind}/{model}") for kind in ("torch", "torch-2-processes"))
            if one and two and one.rate and two.rate:
                rates = [f"{result.rate.median:,.0f}" for result in (one, two) if result.rate]
                rows.append([group.workload, f"`{model}`", *rates, ratio(paired(two, one))])
    return table(titles, rows)


def _of_variants(groups: Sequence[Group]) -> str:
    """Return words a second and the ratio to the baseline of each variant, the fastest first."""
    baseline = groups[0].label(groups[0].baseline)
    titles = ["", "words a second:", "ms a step:", f"times as fast as {baseline} (95 % interval):"]
    rows = []
    for group in groups:
        for result in group.candidates:
            if result.rate and result.seconds:
                times = "1" if result.variant == group.baseline else ratio(result.ratio)
                ms = formats.significant(result.seconds.median * 1e3)
                rows.append([f"{group.workload}: {result.label}", f"{result.rate.median:,.0f}", ms, times])
    return table(titles, rows)


def _of_one_call(groups: Sequence[Group]) -> str:
    """Return how much faster one call of all layers is than a call of each, by pass."""
    titles = ["pass", "one call: times as fast as a call of each layer:", "95 % interval:"]
    rows = []
    for group in groups:
        result = group.result("one-call-torch/cudnn")
        if result and result.ratio and result.ratio.interval:
            shown = formats.times(result.ratio.estimate), interval(result.ratio.interval)
            rows.append([group.pass_name, *shown])
    return table(titles, rows)


def _about(summary: Summary, folder: Path, *, above: str) -> str:
    lines = (
        "Each row is a training step by the tutorial's recipe. The plain loop is that of pytorch/examples'",
        "word_language_model: torch's modules and SGD. The first number is words per second (the median of",
        "the rounds). The ratio compares each round with the same round of the plain loop in float32 (the",
        "geometric mean over processes, with its 95 % interval), so it is not the quotient of two medians.",
        "The share of peak is relative to the machine's fastest matrix products.",
        _measured(summary, folder, above=above),
    )
    return "\n".join(lines)


def _table(groups: Sequence[Group], names: Sequence[str]) -> str:
    titles = ["", "precision"]
    for group in groups:
        titles += [f"{group.workload}:", "ratio:", "share of peak:"]
    rows = []
    for name in names:
        found = [group.result(name) for group in groups]
        known = next((result for result in found if result and result.blocks), None)
        if known is None or known.blocks[0].work is None:
            continue
        cells = [NAMES[name], known.blocks[0].work.precision]
        for group, result in zip(groups, found, strict=True):
            cells += _cells(group, result)
        rows.append(cells)
    return table(titles, rows)


def _cells(group: Group, result: Result | None) -> list[str]:
    if result is None or result.rate is None:
        return ["", "", ""]
    times = "" if result.variant == group.baseline else ratio(result.ratio)
    fraction = ""
    if result.gemm_fraction is not None:
        reached = result.gemm_fraction.median
        fraction = f"{reached:.0%}" if reached <= 1 else formats.UNDERESTIMATED
    return [f"{result.rate.median:,.0f}", times, fraction]
