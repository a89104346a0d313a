"""Write the tables of speed in README.md and docs/ from what is in results/.

A part lies between `<!-- NAME: ... -->` and `<!-- end of NAME -->`. Speed is in README.md and
docs/performance.md, contention and scoring in docs/performance.md, scaling in docs/scaling.md, and one call
(of several layers, beside a call of each) in docs/semantics.md.
"""

from collections.abc import Sequence
from pathlib import Path

from ptb_lm.bench.findings import Group, Result, Summary
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.summary import summarise
from ptb_lm.results.markdown import table, write_part

MEASURED = "bench-precisions-cpu"
CONTENTION = "contention-medium-cpu"
SCORING = {"float32": "scoring-medium-fp32-cpu", "bfloat16": "scoring-medium-bf16-cpu"}
SCALING = "bench-scaling-cpu"
SEMANTICS = "bench-semantics-cpu"
PAGES = ("README.md", "docs/performance.md")  # with the part speed
# What the pages show, with what a reader calls it.
NAMES = {
    "plain-torch/cudnn": "the plain loop in torch",
    "plain-torch/cudnn/compile": "… under `torch.compile`",
    "plain-torch/cudnn-kept-memory": "… that keeps freed memory",
    "plain-torch/cudnn@bf16": "… under `torch.autocast`",
    "before-cudnn/custom": "`cudnn` before",
    "torch/cudnn": "`cudnn`",
    "torch/block_fused": "`block_fused`",
    "before-cudnn/custom@bf16": "`cudnn` before",
    "torch/cudnn@bf16": "`cudnn`",
    "before-block_fused/custom@bf16": "`block_fused` before",
    "torch/block_fused@bf16": "`block_fused`",
    "plain-tensorflow/keras": "the plain loop in Keras on TensorFlow",
    "plain-tensorflow/keras@bf16": "… with the policy `mixed_bfloat16`",
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
    summary = summarise(root / "results" / MEASURED)
    for page in PAGES:
        names = SHORT if page == "README.md" else tuple(NAMES)
        link = f"{'' if page == 'README.md' else '../'}results/{MEASURED}/report.md"
        write_part(root / page, "speed", f"{_where(summary, link)}\n\n{_table(summary, names)}")
    results, performance = root / "results", root / "docs" / "performance.md"
    write_part(performance, "contention", _kept(results / CONTENTION))
    scoring = [f"In {precision}, by {_kept(results / name)}" for precision, name in SCORING.items()]
    write_part(performance, "scoring", "\n\n".join(scoring))
    scaling = summarise(results / SCALING)
    report = f"[report](../results/{SCALING}/report.md)"
    part = f"{_machine(scaling)} ({report}).\n\n{_of_processes(scaling.groups)}"
    write_part(root / "docs" / "scaling.md", "scaling", part)
    semantics = summarise(results / SEMANTICS)
    report = f"[report](../results/{SEMANTICS}/report.md)"
    part = f"{_of_one_call(semantics.groups)}\n{_machine(semantics)} ({report}).\n"
    write_part(root / "docs" / "semantics.md", "one call", part)


def _kept(folder: Path) -> str:
    """Return the table of a study."""
    return (folder / "table.md").read_text(encoding="utf-8").strip()


def _of_processes(groups: Sequence[Group]) -> str:
    """Return words a second by one process and by two, for each workload and model."""
    titles = ["workload", "model", "1 process:", "2 processes:", "times as fast:"]
    rows = []
    for group in groups:
        for model in ("cudnn", "block_fused", "basic"):
            found = [group.result(f"{kind}/{model}") for kind in ("torch", "torch-2-processes")]
            rates = [result.rate.median for result in found if result and result.rate]
            if len(rates) == len(found):
                one, two = rates
                rows.append([group.workload, f"`{model}`", f"{one:,.0f}", f"{two:,.0f}", f"{two / one:.2f}"])
    return table(titles, rows)


def _of_one_call(groups: Sequence[Group]) -> str:
    """Return how much faster one call of all layers is than a call of each, by pass."""
    titles = ["pass", "one call: times as fast as a call of each layer:", "95 % interval:"]
    rows = []
    for group in groups:
        result = group.result("one-call-torch/cudnn")
        if result and result.ratio and result.ratio.interval:
            low, high = result.ratio.interval
            rows.append([group.pass_name, f"{result.ratio.estimate:.2f}", f"{low:.2f} to {high:.2f}"])
    return table(titles, rows)


def _machine(summary: Summary) -> str:
    facts = {name: "/".join(values) for name, values in summary.environment.items()}
    commit = facts["commit"].partition(" ")[0][:7]
    machine = f"{facts['processor']}, {facts['cores']} cores, torch {facts['torch']}"
    return f"Measured on {machine}, commit {commit}"


def _where(summary: Summary, link: str) -> str:
    lines = (
        "Each row is a training step by the tutorial's recipe. The first number is words per second (the",
        "median of the rounds). The ratio compares it with the plain loop in float32 (the mean of the",
        "rounds' ratios, with its 95 % interval). The share of peak is relative to the machine's fastest",
        "matrix products.",
        f"{_machine(summary)} ([report]({link})).",
    )
    return "\n".join(lines)


def _table(summary: Summary, names: Sequence[str]) -> str:
    groups = {group.workload: group for group in summary.groups}
    titles = ["", "precision"]
    for workload in groups:
        titles += [f"{workload}:", "ratio:", "share of peak:"]
    rows = []
    for name in names:
        found = [group.result(name) for group in groups.values()]
        known = next((result for result in found if result and result.blocks), None)
        if known is None or known.blocks[0].work is None:
            continue
        cells = [NAMES[name], known.blocks[0].work.precision]
        for group, result in zip(groups.values(), found, strict=True):
            cells += _cells(group, result)
        rows.append(cells)
    return table(titles, rows)


def _cells(group: Group, result: Result | None) -> list[str]:
    if result is None or result.rate is None:
        return ["", "", ""]
    ratio = ""
    if result.ratio is not None and result.variant != group.baseline:
        low, high = result.ratio.interval or (None, None)
        ratio = f"{result.ratio.estimate:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")
    fraction = ""
    if result.gemm_fraction is not None:
        reached = result.gemm_fraction.median
        fraction = f"{reached:.0%}" if reached <= 1 else formats.UNDERESTIMATED
    return [f"{result.rate.median:,.0f}", ratio, fraction]
