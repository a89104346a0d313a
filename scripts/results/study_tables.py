"""The tables of studies: profiles, scoring, contention, divergence, and how near the implementations are."""

from pathlib import Path
from typing import Any

import pandas as pd

from ptb_lm.bench.studies import scoring as study
from results import store
from results.markdown import table

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
CONTENTION = "contention-medium-cpu"
STEPS = (0, 10, 20, 40, 60, 80, 100, 150)  # of divergence, that are shown


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
        f"- {name}: {facts.loc[study, 'machine']}, commit {facts.loc[study, 'commit'][:7]}, "
        f"by `{facts.loc[study, 'command']}`\n"
        for name, study in PROFILES.items()
    ]
    titles = ["ms per step", *(f"{name}:" for name in PROFILES)]
    return f"{table(titles, rows)}\nMeasured on:\n\n{''.join(lines)}"


def _facts(results: Path) -> pd.DataFrame:
    return store.read(results, store.STUDIES).set_index("id")


def _where(results: Path, name: str) -> str:
    facts: Any = _facts(results).loc[name]
    torch = [] if pd.isna(facts["torch"]) else [f"torch {facts['torch']}"]
    return ", ".join([facts["machine"], f"{facts['cores']} cores", *torch, f"commit {facts['commit'][:7]}"])


def scoring(results: Path) -> str:
    """Return how much faster sentences are scored side by side, and whether the goal is reached."""
    found, parts = store.read(results, "studies/scoring.csv"), []
    for precision, name in SCORING.items():
        rows = found[found["id"] == name]
        ratios = (rows["batched"] / rows["alone"]).groupby(rows["longest"]).median()
        goals = [
            f"{'reached' if value >= GOAL else 'missed'} for sentences of 1 to {longest} words"
            for longest, value in ratios.items()
        ]
        shown = study.table(rows.to_dict("records"))
        goal = f"The goal, {GOAL} times as fast, is {', and '.join(goals)}."
        parts.append(f"In {precision} ({_where(results, name)}):\n\n{shown}\n\n{goal}")
    return "\n\n".join(parts)


def contention(results: Path) -> str:
    """Return what a busy process costs a training, by how threads wait."""
    found = store.read(results, "studies/contention.csv")
    found = found[found["id"] == CONTENTION]
    rates = found.groupby(["way", "neighbour"], sort=False)["words_per_second"].agg(["median", "min", "max"])
    neighbours = list(dict.fromkeys(found["neighbour"]))
    rows = []
    for way in dict.fromkeys(found["way"]):
        cells = [rates.loc[(way, neighbour)] for neighbour in neighbours]
        rows.append([way, *(f"{c['median']:,.0f} ({c['min']:,.0f} to {c['max']:,.0f})" for c in cells)])
    titles = ["words a second: median (lowest to highest)", *(f"{each}:" for each in neighbours)]
    command = _facts(results).loc[CONTENTION, "command"]
    return f"{table(titles, rows)}\nMeasured on {_where(results, CONTENTION)}, by `{command}`.\n"


def divergence(results: Path) -> str:
    """Return how far losses are from those of `basic` in float64, at some steps."""
    found = store.read(results, "studies/divergence.csv")
    titles = {
        "cudnn/fp64": "cudnn, float64:",
        "basic/fp64/nudged": "basic, float64, one weight moved by 1 ulp of float32:",
        "cudnn/fp32": "cudnn, float32:",
        "basic/fp32": "basic, float32:",
    }
    shown = found[found["step"].isin(STEPS)]
    rows = [[str(row["step"]), *(f"{row[name]:.0e}" for name in titles)] for row in shown.to_dict("records")]
    return table(["step:", *titles.values()], rows)


def templates(results: Path) -> str:
    """Return the scores of the example that classifies sequences, by framework and cell."""
    found = store.read(results, "studies/templates.csv").dropna(subset="test/auc")
    rows = [
        [f"`{row['id']}`", f"{row['test/accuracy']:.4f}", f"{row['test/auc']:.4f}", str(row["epoch"])]
        for row in found.to_dict("records")
    ]
    return table(["id", "test accuracy:", "ROC AUC:", "best epoch:"], rows)


def gate(results: Path) -> str:
    """Return how near the implementations are to the reference: the largest error of each kind in a suite."""
    found = store.read(results, "studies/gate.csv")
    columns = [name for name in ("loss", "norm", "gradient", "bias", "length") if name in found]
    rows = []
    for (name, precision), of in found[found["result"] == "agrees"].groupby(["id", "precision"], sort=False):
        cells = [max(of[kind].dropna(), key=_error, default="–") for kind in columns]
        rows.append([name.removeprefix("gate-"), precision, str(len(of)), *cells])
    return table(
        ["suite", "precision", "variants that agree:", *(f"largest {kind} error:" for kind in columns)], rows
    )


def _error(cell: str) -> float:
    return float(cell.partition(" of ")[0])
