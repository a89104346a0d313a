"""Where the milliseconds of a step went, from the profiles in results/: a table of docs/performance.md."""

import re
from collections.abc import Mapping
from pathlib import Path

from ptb_lm.errors import UserError
from ptb_lm.results.markdown import table

FOLDERS = {
    "plain loop": "profile-medium-plain-torch-cudnn-cpu",
    "`cudnn`": "profile-medium-torch-cudnn-cpu",
    "`block_fused`": "profile-medium-torch-block_fused-cpu",
}
# What operations of torch's profiler do; what is not among them is "everything else".
KINDS: Mapping[str, frozenset[str]] = {
    "LSTM: oneDNN's layers; in `block_fused` the loop over time": frozenset(
        {
            *("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"),
            *("ptb_lm::lstm_forward", "ptb_lm::lstm_backward"),
        }
    ),
    "matrix products: the softmax's, and in `block_fused` the layers'": frozenset(
        {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "ptb_lm::multiply"}
    ),
    "log-softmax, exponential, their gradients": frozenset(
        {"aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::exp", "ptb_lm::cross_entropy"}
    ),
    "random numbers of masks": frozenset({"aten::bernoulli_", "aten::random_"}),
}
MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
# "aten::mm  21.30%  511.481ms ...": a name, its share, and its own time.
OPERATION = re.compile(r"^ *(\S.*?) +[\d.]+% +([\d.]+)(us|ms|s) ", re.M)
TOTAL = re.compile(r"^Self CPU time total: ([\d.]+)(us|ms|s)$", re.M)
STEPS = re.compile(r", (\d+) steps, ")
MACHINE = re.compile(r"^Measured on (.*), commit (\S{1,7})", re.M)  # older profiles have no such line


def markdown(results: Path) -> str:
    """Return the table, in milliseconds of a step, and where and how each column was measured.

    Raises:
        UserError: A profile is missing, or is none.
    """
    paths = {name: results / folder / "profile.txt" for name, folder in FOLDERS.items()}
    texts = {name: _read(path) for name, path in paths.items()}
    profiles = [_of(text, paths[name]) for name, text in texts.items()]
    rows = [[kind, *(f"{of[kind]:.0f}" if of[kind] else "–" for of in profiles)] for kind in profiles[0]]
    measured = "".join(f"- {name}: {_where(text)}\n" for name, text in texts.items())
    return f"{table(['ms per step', *(f'{name}:' for name in FOLDERS)], rows)}\nMeasured on:\n\n{measured}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None


def _where(text: str) -> str:
    """Return machine, commit and command of a profile."""
    found = MACHINE.search(text)
    where = f"{found[1]}, commit {found[2]}" if found else "processor and commit not recorded"
    return f"{where}, by `{text.splitlines()[0]}`"


def _of(text: str, path: Path) -> dict[str, float]:
    """Return the milliseconds of a step by kind of operation, then of everything else, then in total."""
    steps, total = STEPS.search(text), TOTAL.search(text)
    if steps is None or total is None:
        raise UserError(f"{path} is no profile: it names no steps or no total")
    found = [(name, float(value) * MILLISECONDS[unit]) for name, value, unit in OPERATION.findall(text)]
    spent = {kind: sum(ms for name, ms in found if name in names) for kind, names in KINDS.items()}
    whole = float(total[1]) * MILLISECONDS[total[2]]
    spent["everything else"] = whole - sum(spent.values())
    spent["total"] = whole
    return {kind: ms / int(steps[1]) for kind, ms in spent.items()}
