"""The table of published figures in results/README.md: each row of the documents that this began with.

A row says what measures it here, the published figure, and our own, which is read from what is kept in
results/; or why there is none. Where something else computed it than the row's name says, its cell says what:
a CPU has no cuDNN.
"""

import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ptb_lm.bench.findings import Group, Result, Summary
from ptb_lm.bench.reporting import formats, published
from ptb_lm.bench.reporting.publication import Figure, Source
from ptb_lm.bench.rows import FILE
from ptb_lm.bench.summary import summarise
from ptb_lm.results.markdown import table
from ptb_lm.results.measured import where
from ptb_lm.training.run_directory import RunDirectory

PART = "published figures"
NOT_MEASURED = "not measured"
TITLES = ("row", "published", "here: command", "here: measured")
# A published source that none of the documents is.
LATER = ("TensorFlow models, pull request 2276, 2017",)
# Where a workload's rows are kept; -DEVICE follows.
FOLDERS = {
    "small": "bench-ptb",
    "large": "bench-ptb-large",
    "word_language_model": "bench-ptb-word-language-model",
    "small-batch-40": "bench-scaling",
    "3x256": "bench-stacked-lm",
    "1x320-CE-short": "bench-acoustic-short",
    "1x320-CE-long": "bench-acoustic-long",
    "4x320-CE-long": "bench-acoustic-deep",
    "4x320-CTC-long": "bench-acoustic-deep-ctc",
    "3x1024": "bench-semantics",
    "1024-1024-512": "bench-semantics",
}
# Where a variant is kept that is in none of them: at a smaller batch, if it takes long, or beside few others.
SECOND_FOLDERS = {
    "bench-acoustic-deep": "bench-acoustic-deep-batch-2",
    "bench-acoustic-deep-ctc": "bench-acoustic-deep-batch-2",
    "bench-acoustic-long": "bench-acoustic-pytensor",
}
DEVICES = ("cpu", "cuda")
# Of rnn_benchmarks, whose results are pictures: who is in them, and the variant that answers. Four layers in
# both directions were measured only where a framework stacks them by itself, and by Lasagne.
_ONE_DIRECTION = {
    "Lasagne LSTMLayer": "pytensor/scan",
    "Keras/TensorFlow LSTM": "keras-tensorflow/lstm",
    "Keras/TensorFlow cuDNNLSTM": "keras-tensorflow/cudnn",
    "Keras/Theano LSTM": "",
}
_OF_ALL = {
    "PyTorch LSTMCell-basic": "torch/basic",
    "PyTorch LSTMCell-fused": "torch/block",
    "PyTorch cuDNNLSTM": "torch/cudnn",
    "TensorFlow LSTMCell": "tensorflow/basic/graph/loop",
    "TensorFlow LSTMBlockCell": "tensorflow/block/graph/loop",
    "TensorFlow LSTMBlockFusedCell": "tensorflow/block_fused",
    "TensorFlow cuDNNLSTM": "tensorflow/cudnn",
}
_STACKED = ("PyTorch cuDNNLSTM", "TensorFlow LSTMCell", "TensorFlow LSTMBlockCell", "TensorFlow cuDNNLSTM")
_DEEP = {**{name: _OF_ALL[name] for name in _STACKED}, "Lasagne LSTMLayer": ""}
PICTURED: Mapping[str, Mapping[str, str]] = {
    "1x320-CE-short": {**_OF_ALL, **_ONE_DIRECTION},
    "1x320-CE-long": {**_OF_ALL, **_ONE_DIRECTION},
    "4x320-CE-long": _DEEP,
    # TensorFlow's cuDNNLSTM took no sequences of different lengths.
    "4x320-CTC-long": {name: of for name, of in _DEEP.items() if name != "TensorFlow cuDNNLSTM"},
}
WHY_NOT = {
    "Lasagne LSTMLayer": "Theano is no longer maintained; its heir has layers of one direction",
    "Keras/Theano LSTM": "Keras 3 has no Theano",
}
# Figures that have no variant of their own suite, and (suite, workload, variant) of what answers. The
# tutorial gives each GPU a whole batch.
ELSEWHERE = {"BasicLSTMCell, two GPUs": ("scaling", "small-batch-40", "torch-2-processes/basic")}
CUT = re.compile(r"^batch (\d+) of \d+$")  # how a row's `cut` says it
SCORES = re.compile(r"test accuracy ([\d.]+), AUC ([\d.]+)")


class Row(NamedTuple):
    """A row of a document's table, as its titles say."""

    row: str
    published: str
    command: str
    measured: str


def markdown(results: Path) -> str:
    """Return a table for each document, below a list of where the benchmarks that they quote were measured.

    Args:
        results: The folder with what is kept.

    Raises:
        UserError: Rows of a benchmark cannot be read.
    """
    kept = _Kept(results)
    of_documents: dict[str, list[Row]] = {}
    found = (_figures(kept), _pictures(kept), _claims(kept), _perplexities(results), _templates(results))
    for source, row in itertools.chain(*found):
        of_documents.setdefault(source.name, []).append(row)
    tables = [
        f"### [{source.name}]({source.url})\n\n{table(TITLES, of_documents[source.name])}"
        for source in published.SOURCES
        if source.name in of_documents
    ]
    return "\n".join(filter(None, [kept.machines(), *tables]))


class _Kept:
    """The benchmarks in a folder of results, each read once."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._quoted: dict[str, None] = {}  # folders, in the order of their rows
        self._summaries: dict[str, Summary] = {}
        names = [*FOLDERS.values(), *SECOND_FOLDERS.values()]
        for folder in dict.fromkeys(f"{name}-{device}" for name in names for device in DEVICES):
            if (results / folder / FILE).is_file():
                self._summaries[folder] = summarise(results / folder)

    def found(self, workload: str, pass_name: str, variant: str) -> Iterator[tuple[str, Group, Result]]:
        """Yield (folder, group, result) of each device that measured a variant."""
        name = FOLDERS[workload]
        for device in DEVICES:
            folders = [f"{each}-{device}" for each in (name, SECOND_FOLDERS.get(name)) if each]
            measured = (each for each in self._asked(folders, workload, pass_name, variant) if each[2].blocks)
            yield from itertools.islice(measured, 1)

    def _asked(
        self, folders: Sequence[str], workload: str, pass_name: str, variant: str
    ) -> Iterator[tuple[str, Group, Result]]:
        """Yield (folder, group, result) of each folder that has rows of a variant, measured or not."""
        for folder in folders:
            for group in self._summaries[folder].groups if folder in self._summaries else ():
                result = group.result(variant)
                if (group.workload, group.pass_name) == (workload, pass_name) and result:
                    yield folder, group, result

    def shown(self, workload: str, pass_name: str, variant: str, *, rate: bool) -> str:
        """Return what was measured of a variant, in the unit of what was published."""
        cells = []
        for folder, group, result in self.found(workload, pass_name, variant):
            cut = f" ({', '.join(group.cuts)})" if group.cuts else ""
            by = f", by {result.engine.replace('; ', ', ')}" if _is_another(variant, result) else ""
            self._quoted[folder] = None
            cells.append(f"[{_of(group, result, rate=rate)}{cut}{by}]({folder}/report.md)")
        return "; ".join(cells) or self._why_not(workload, pass_name, variant)

    def command(self, suite: str, workload: str, pass_name: str, variant: str) -> str:
        """Return what measures a variant as it was measured: at the batch size of what is shown."""
        if not variant:
            return formats.NOTHING
        command = f"python -m ptb_lm.bench run {suite} --workloads {workload} --variants {variant}"
        cuts = [group.cuts for _, group, _ in self.found(workload, pass_name, variant)] or [[]]
        batches = [[f" --batch-size {found[1]}" for cut in of if (found := CUT.match(cut))] for of in cuts]
        return "; ".join(dict.fromkeys(f"`{command}{''.join(batch)}`" for batch in batches))

    def machines(self) -> str:
        """Return a list of the machines and commits of what `shown` has quoted so far."""
        alike: dict[str, list[str]] = {}
        for folder in self._quoted:
            place = where(self._summaries[folder], self._results / folder)
            alike.setdefault(place, []).append(f"[{folder}]({folder}/report.md)")
        return "".join(f"- {place}: {', '.join(folders)}\n" for place, folders in alike.items())

    def _why_not(self, workload: str, pass_name: str, variant: str) -> str:
        """Return why a variant was not measured, as far as rows say it."""
        folders = [f"{FOLDERS[workload]}-{device}" for device in DEVICES]
        reasons = [result.reason for _, _, result in self._asked(folders, workload, pass_name, variant)]
        return next((f"{NOT_MEASURED}: {reason}" for reason in reasons if reason), NOT_MEASURED)


def _is_another(variant: str, result: Result) -> bool:
    """Return whether something else computed than the row's name says: no cuDNN, or another framework."""
    no_cudnn = "cudnn" in variant and " on cpu" in result.engine
    return no_cudnn or variant in (answer for _, _, answer in ELSEWHERE.values())


def _of(group: Group, result: Result, *, rate: bool) -> str:
    if rate and result.rate is not None and group.work is not None:
        return f"{formats.significant(result.rate.median)} {group.work.unit} a second"
    return f"{formats.significant(statistics.median(row.seconds_per_step for row in result.blocks) * 1e3)} ms"


def _figures(kept: _Kept) -> Iterator[tuple[Source, Row]]:
    """Yield the rows that have numbers, what was measured on several machines together."""
    for source in published.SOURCES:
        if source.name in LATER:
            continue
        alike: dict[tuple[str, str, str, str], list[Figure]] = {}
        for figure in source.figures:
            key = (figure.workload, figure.pass_name, figure.variant, figure.name)
            alike.setdefault(key, []).append(figure)
        for (workload, pass_name, variant, name), figures in alike.items():
            rate = figures[0].seconds_per_step is None
            suite, measured, answer = ELSEWHERE.get(name, (source.suite, workload, variant))
            yield (
                source,
                Row(
                    f"{workload}, {pass_name}: {name}",
                    "; ".join(f"{_number(figure)} ({figure.hardware})" for figure in figures),
                    kept.command(suite, measured, pass_name, answer),
                    kept.shown(measured, pass_name, answer, rate=rate),
                ),
            )


def _number(figure: Figure) -> str:
    if figure.seconds_per_step is not None:
        return f"{figure.seconds_per_step * 1e3:,.6g} ms"
    return f"{figure.rate:,.6g} words a second"


def _pictures(kept: _Kept) -> Iterator[tuple[Source, Row]]:
    (source,) = (each for each in published.SOURCES if each.suite == "acoustic")
    for workload, variants in PICTURED.items():
        for name, variant in variants.items():
            measured = kept.shown(workload, "train", variant, rate=False) if variant else WHY_NOT[name]
            command = kept.command(source.suite, workload, "train", variant)
            yield source, Row(f"{workload}, train: {name}", "a picture", command, measured)


def _claims(kept: _Kept) -> Iterator[tuple[Source, Row]]:
    """Yield what the thread on cuDNN says of three sizes, without numbers."""
    source = next(each for each in published.SOURCES if each.suite == "semantics")
    for workload, text in (("1024-1024-512", "faster than 3x1024"), ("3x1024", "slower than 1024-1024-512")):
        yield (
            source,
            Row(
                f"{workload}, train: TensorFlow",
                f"{text}, without numbers",
                kept.command(source.suite, workload, "train", "tensorflow/cudnn"),
                kept.shown(workload, "train", "tensorflow/cudnn", rate=False),
            ),
        )


def _perplexities(results: Path) -> Iterator[tuple[Source, Row]]:
    source = next(each for each in published.SOURCES if "large" in each.references and each.name not in LATER)
    cells = []
    for device in DEVICES:
        folder = f"large-tutorial-cudnn-{device}"
        if found := RunDirectory(results / folder).read_result():
            cells.append(f"[{found['final_test_perplexity']:.2f}]({folder})")
    yield (
        source,
        Row(
            "large: test perplexity",
            "78.04",
            "`scripts/reproduce large-tutorial`",
            "; ".join(cells) or f"{NOT_MEASURED}: no run of large by the tutorial's recipe has ended",
        ),
    )


def _templates(results: Path) -> Iterator[tuple[Source, Row]]:
    """Yield the scores of the template program, with each cell of both frameworks."""
    for framework in ("torch", "tensorflow"):
        for model in ("basic", "block", "block_fused", "cudnn"):
            cells = []
            for device in DEVICES:
                folder = f"template-{framework}-{model}-{device}"
                if scores := _scores(results / folder / "log.txt"):
                    cells.append(f"[accuracy {scores[0]}, AUC {scores[1]}]({folder}/log.txt)")
            yield (
                published.SOURCES[0],
                Row(
                    f"the template: test accuracy and ROC AUC, {framework} {model}",
                    "not given",
                    f"`python examples/sequence_classification.py --framework {framework} --model {model}`",
                    "; ".join(cells) or NOT_MEASURED,
                ),
            )


def _scores(log: Path) -> Sequence[str]:
    """Return (accuracy, AUC) of a template's log; nothing if there is none."""
    found = SCORES.search(log.read_text(encoding="utf-8")) if log.is_file() else None
    return found.groups() if found else ()
