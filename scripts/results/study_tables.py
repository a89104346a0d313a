"""The tables of studies: those that tables.toml specifies, profiles, scoring, contention, and the gate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.studies import contention as contention_study
from benchmarks.studies import scoring as scoring_study
from ptb_lm.bench.reporting.doubts import shorten_commit
from ptb_lm.common.markdown_tables import write_markdown
from results import store

PROFILES = {
    "plain loop": "profile-medium-plain-torch-cudnn-cpu",
    "`cudnn`": "profile-medium-torch-cudnn-cpu",
    "`block_fused`": "profile-medium-torch-block_fused-cpu",
}
# What operations of torch's profiler do; what is not among them is "everything else".
KINDS = {
    "LSTM: oneDNN's layers; in `block_fused` the loop over time": (
        *("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"),
        *("ptb_lm::lstm_forward", "ptb_lm::lstm_backward"),
    ),
    "matrix products: the softmax's, and in `block_fused` the layers'": (
        *("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "ptb_lm::multiply"),
    ),
    "log-softmax, exponential, their gradients": (
        *("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::exp", "ptb_lm::cross_entropy"),
    ),
    "random numbers of masks": ("aten::bernoulli_", "aten::random_"),
}
SCORING = {"float32": "scoring-medium-fp32-cpu", "bfloat16": "scoring-medium-bf16-cpu"}
GOAL = 10  # times as fast side by side as one after the other
GOAL_SHARE = 0.85  # of the rate of the fastest products, where that is less than GOAL times as fast
CONTENTION = "contention-medium-cpu"


class _Blank(float):
    """A number that a row lacks."""

    def __format__(self, specification: str) -> str:
        return ""


def build(results: Path, spec: Mapping[str, Any]) -> str:
    """Return a table with a row for each row of a CSV.

    Args:
        results: The folder.
        spec: A table of tables.toml: the `file`, and another to `join` by id; `where` and `compute`, which
            pandas evaluates; and the `columns`, a text for each title in which {NAME} stands for a column's
            value.
    """
    frame = store.read(results, spec["file"])
    if "join" in spec:
        frame = frame.merge(store.read(results, spec["join"]), on="id", suffixes=("", " joined"))
    frame = frame.query(spec["where"]) if "where" in spec else frame
    frame = frame.eval(spec["compute"]) if "compute" in spec else frame
    found = ({k: _Blank() if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records"))
    titles, texts = list(spec["columns"]), spec["columns"].values()
    return write_markdown(titles, ([text.format_map(row) for text in texts] for row in found))


def profile(results: Path) -> str:
    """Return where the milliseconds of a step go, and where that was measured."""
    found = store.read(results, "studies/profiles.csv")
    kinds = {operation: kind for kind, operations in KINDS.items() for operation in operations}
    found["kind"] = found["operation"].map(kinds).fillna("everything else")
    found.loc[found["operation"] == "total", "kind"] = "total"
    found["ms"] = found["self_ms"] / found["steps"]
    spent = found.pivot_table(index="kind", columns="id", values="ms", aggfunc="sum", fill_value=0.0)
    spent.loc["everything else"] = spent.loc["total"] - spent.loc[[*KINDS]].sum()
    rows = [
        [kind, *(f"{ms:.0f}" if (ms := spent.loc[kind, name]) else "–" for name in PROFILES.values())]
        for kind in (*KINDS, "everything else", "total")
    ]
    facts = _facts(results)
    lines = [
        f"- {name}: {facts.loc[study, 'machine']}, commit {shorten_commit(facts.loc[study, 'commit'])}, "
        f"by `{facts.loc[study, 'command']}`\n"
        for name, study in PROFILES.items()
    ]
    titles = ["ms per step", *(f"{name}:" for name in PROFILES)]
    return f"{write_markdown(titles, rows)}\nMeasured on:\n\n{''.join(lines)}"


def _facts(results: Path) -> pd.DataFrame:
    return store.read(results, store.STUDIES).set_index("id")


def _where(results: Path, name: str) -> str:
    facts: Any = _facts(results).loc[name]
    torch = [] if pd.isna(facts["torch"]) else [f"torch {facts['torch']}"]
    return ", ".join(
        [facts["machine"], f"{facts['cores']} cores", *torch, f"commit {shorten_commit(facts['commit'])}"]
    )


def scoring(results: Path) -> str:
    """Return how much faster sentences are scored side by side, and whether the goal is reached."""
    found, parts = store.read(results, "studies/scoring.csv"), []
    for precision, name in SCORING.items():
        rows = found[found["id"] == name]
        verdicts = []
        for longest, some in rows.groupby("longest"):
            ratio, at_limit, share = (
                (some[fast] / some[slow]).median()
                for fast, slow in (("batched", "alone"), ("limit", "alone"), ("batched", "limit"))
            )
            reached = ratio >= GOAL or (at_limit < GOAL and share >= GOAL_SHARE)
            verdicts.append(f"{'reached' if reached else 'missed'} for sentences of 1 to {longest} words")
        shown = scoring_study.table(rows.to_dict("records"))
        goal = (
            f"The goal, {GOAL} times as fast, or {GOAL_SHARE:.0%} of the fastest products where these allow "
            f"less, is {', and '.join(verdicts)}."
        )
        parts.append(f"In {precision} ({_where(results, name)}):\n\n{shown}\n{goal}")
    return "\n\n".join(parts)


def contention(results: Path) -> str:
    """Return what a busy process costs a training, by how threads wait."""
    found = store.read(results, "studies/contention.csv")
    found = found[found["id"] == CONTENTION]
    shown = contention_study.table(found.to_dict("records"))
    command = _facts(results).loc[CONTENTION, "command"]
    return f"{shown}\nMeasured on {_where(results, CONTENTION)}, by `{command}`.\n"


def gate(results: Path) -> str:
    """Return how near the implementations are to the reference: the largest error of each kind in a check."""
    found = store.read(results, "studies/gate.csv")
    columns = [*found.columns.drop(["id", "workload", "variant", "precision", "result"])]
    rows = []
    agreeing = found[found["result"] == "agrees"]
    for (name, precision), part in agreeing.groupby(["id", "precision"], sort=False):
        cells = [max(part[kind].dropna(), key=_error, default="–") for kind in columns]
        rows.append([name.removeprefix("gate-"), precision, str(part["variant"].nunique()), *cells])
    errors = [f"largest {kind} error:" for kind in columns]
    return write_markdown(["check", "precision", "variants that agree:", *errors], rows)


def _error(cell: str) -> float:
    return float(cell.partition(" of ")[0])
