"""Published figures, to stand beside ours: each with its source, hardware, and the variant it answers to.

Speeds of other years and machines are no measure of ours; what compares are the ratios within one source.
"""

from collections.abc import Iterator, Mapping

from ptb_lm.bench.reporting.publication import Figure, Source

_P40 = "Tesla P40"
_TITAN_X = "Titan X"
_GTX_1080 = "GTX 1080"
_CPU_6_CORES = "Intel CPU, 6 cores"
_RTX_2080_TI = "RTX 2080 Ti"

# Words a second with basic, block and cudnn.
_TITAN_X_RATES = {
    "small": (15_600, 17_200, 49_000),
    "medium": (12_600, 13_600, 24_200),
    "large": (5_000, 5_000, 10_500),
}


def _rates(workload: str, hardware: str, rows: Mapping[str, tuple[str, float]]) -> Iterator[Figure]:
    for variant, (name, rate) in rows.items():
        yield Figure(
            workload=workload, pass_name="train", variant=variant, name=name, hardware=hardware, rate=rate
        )


def _times(workload: str, hardware: str, rows: Mapping[str, tuple[str, float]]) -> Iterator[Figure]:
    for variant, (name, seconds) in rows.items():
        yield Figure(
            workload=workload,
            pass_name="train",
            variant=variant,
            name=name,
            hardware=hardware,
            seconds_per_step=seconds,
        )


# Variant, name, and for forward and train each: seconds a batch, seconds in all, sequences a second.
_STACKED_CPU = """
tensorflow/basic/eager      | TF Eager               | 1.5050 85.0492    75.2506 | 5.2381 261.9030   24.4365
tensorflow/basic            | TF Graph               | 0.2687 32.2603   476.3282 | 0.7869  39.3426  162.6734
tensorflow/basic/graph/loop | TF Graph whileop-lstm  | 0.2652 13.2582   482.7189 | 0.8653  43.2652  147.9247
torch/basic/eager           | PyTorch                | 0.4806 24.0279   266.3574 | 1.9554  97.7685   65.4607
outer-torch/basic/jit | PyTorch JIT | 0.4266 21.3289 300.0617 | 2.4091 120.4535 53.1325
tensorflow/block/eager      | TF Eager, static LSTM  | 1.2225 61.1254   104.7027 | 3.0802 154.0104   41.5556
tensorflow/block            | TF Graph, static LSTM  | 0.2970 14.8495   430.9899 | 0.8478  42.3902  150.9782
torch/block/eager           | PyTorch, static LSTM   | 0.3645 18.2256   351.1551 | 3.0368 151.8392   42.1498
outer-torch/block/jit | PyTorch JIT, static LSTM | 0.3761 18.8029 340.3738 | 2.3677 118.3856 54.0606
"""
_STACKED_GPU = """
tensorflow/basic/eager      | TF Eager               | 1.6109 79.4576    80.5460 | 5.6337 281.6842   22.7205
tensorflow/basic            | TF Graph               | 0.0590  2.9487  2170.4379 | 0.0916   4.5810 1397.0780
tensorflow/basic/graph/loop | TF Graph whileop-lstm  | 0.0721  3.6027  1776.4577 | 0.1858   9.2919  688.7714
torch/basic/eager           | PyTorch                | 0.1707  8.5327   750.0577 | 0.4738  23.6913  270.1419
outer-torch/basic/jit | PyTorch JIT | 0.0590 2.9511 2168.7047 | 0.2709 13.5444 472.5208
tensorflow/block/eager      | TF Eager, static LSTM  | 1.1988 59.9422   106.7695 | 3.0028 150.1442   42.6257
tensorflow/block            | TF Graph, static LSTM  | 0.0437  2.1837  2930.8486 | 0.0707   3.5330 1811.4876
torch/block/eager           | PyTorch, static LSTM   | 0.0331  1.6533  3871.1344 | 0.1091   5.4549 1173.2491
outer-torch/block/jit | PyTorch JIT, static LSTM | 0.0251 1.2549 5100.0342 | 0.1004 5.0185 1275.2917
tensorflow/cudnn/eager      | TF Eager, cuDNN LSTM   | 0.1469  7.3467   871.1441 | 0.5271  26.3526  242.8605
tensorflow/cudnn            | TF Graph, cuDNN LSTM   | 0.0297  1.4842  4312.2252 | 0.0311   1.5530 4120.9726
torch/cudnn/eager           | PyTorch, cuDNN LSTM    | 0.0086  0.4291 14916.2879 | 0.0236   1.1809 5419.7600
"""


def _stacked(hardware: str, table: str) -> Iterator[Figure]:
    for line in table.strip().splitlines():
        variant, name, *passes = (cell.strip() for cell in line.split("|"))
        for pass_name, numbers in zip(("forward", "train"), passes, strict=True):
            seconds, elapsed, rate = map(float, numbers.split())
            yield Figure(
                workload="3x256",
                pass_name=pass_name,
                variant=variant,
                name=name,
                hardware=hardware,
                seconds_per_step=seconds,
                elapsed=elapsed,
                rate=rate,
                remark=_MISFITS.get((hardware, name, pass_name), ""),
            )


_SWAPPED = "elapsed time and sequences a second look swapped in the source: 50 batches, 128 sequences each"
_MISFITS = {
    (_CPU_6_CORES, "TF Eager", "forward"): _SWAPPED,
    (_RTX_2080_TI, "TF Eager", "forward"): _SWAPPED,
    (_CPU_6_CORES, "TF Graph", "forward"): "the elapsed time is not that of 50 batches at this wall time",
}

SOURCES = (
    Source(
        name="YJ Choe, TFCudnnLSTM, 2018",
        suite="ptb",
        url="https://github.com/yjchoe/TFCudnnLSTM",
        protocol="TensorFlow 1.8, PyTorch 0.4; one Tesla P40, 80 to 85 % utilised (96 % by PyTorch)",
        references={"small": "tensorflow/basic", "word_language_model": "tensorflow/cudnn"},
        figures=(
            *_rates(
                "small",
                _P40,
                {
                    "tensorflow/basic": ("BasicLSTMCell", 15_000),
                    "tensorflow/block": ("LSTMBlockCell", 17_000),
                    "tensorflow/cudnn": ("CudnnLSTM", 32_000),
                },
            ),
            *_rates("small", "2 × Tesla P40", {"": ("BasicLSTMCell, two GPUs", 25_000)}),
            *_times(
                "word_language_model",
                _P40,
                {
                    "plain-torch/cudnn": ("PyTorch's word_language_model", 0.100),
                    "tensorflow/cudnn": ("TensorFlow's tutorial", 0.120),
                },
            ),
        ),
        remark=(
            "words a second: the configuration is not named, small is the tutorial's default; times a batch: "
            "2 × 1500 units, 35,000 words, batch 20 × 35"
        ),
    ),
    Source(
        name="TensorFlow models, pull request 2276, 2017",
        suite="ptb",
        url="https://github.com/tensorflow/models/pull/2276",
        protocol="TensorFlow's tutorial with each of its cells, on a Titan X",
        references=dict.fromkeys(_TITAN_X_RATES, "tensorflow/basic"),
        figures=tuple(
            figure
            for workload, (basic, block, cudnn) in _TITAN_X_RATES.items()
            for figure in _rates(
                workload,
                _TITAN_X,
                {
                    "tensorflow/basic": ("BasicLSTMCell", basic),
                    "tensorflow/block": ("LSTMBlockCell", block),
                    "tensorflow/cudnn": ("CudnnLSTM", cudnn),
                },
            )
        ),
    ),
    Source(
        name="deeplearningathome.com, PyTorch vs TensorFlow, 2017",
        suite="ptb",
        url="http://deeplearningathome.com/2017/06/PyTorch-vs-Tensorflow-lstm-language-model.html",
        protocol="TensorFlow 1.2 (release candidate), PyTorch 0.1.12, Python 3, on a GTX 1080",
        references={"large": "tensorflow/basic"},
        figures=tuple(
            _rates(
                "large",
                _GTX_1080,
                {
                    "tensorflow/basic": ("the tutorial", 3_800),
                    "tensorflow/basic/xla": ("the tutorial with XLA", 3_420),
                    "plain-torch/cudnn": ("PyTorch", 7_400),
                },
            )
        ),
        remark="the configuration is not named; its test perplexity, 78.04, is that of large",
    ),
    Source(
        name="lcy-seso, Carrot: TensorFlow and PyTorch on a stacked LSTM, 2019",
        suite="stacked-lm",
        url="https://github.com/lcy-seso/Carrot/tree/master/benchmarks/rnnlm",
        protocol=(
            "TensorFlow 2.0 alpha, PyTorch 1.3, CUDA 10.0, cuDNN 7.6.2, Ubuntu 16.04; 50 batches of 128 "
            "sequences after 10 to warm up; on a GeForce RTX 2080 Ti, or an Intel CPU of 6 cores (family 6, "
            "model 63)"
        ),
        references={"3x256": "torch/basic/eager"},
        remark=(
            "its JIT is on the outer scope, all layers in one module; these figures are of an early version "
            "of the page"
        ),
        figures=(*_stacked(_CPU_6_CORES, _STACKED_CPU), *_stacked(_RTX_2080_TI, _STACKED_GPU)),
    ),
    Source(
        name="S. Braun, rnn_benchmarks, 2018",
        suite="acoustic",
        url="https://github.com/stefbraun/rnn_benchmarks",
        protocol=(
            "PyTorch 0.4.0, TensorFlow 1.8.0, Lasagne 0.2.1 (Theano 1.0.1), Keras 2.1.6, CUDA 9.0, on a "
            "Xeon W-2195 and a GTX 1080 Founders Edition; mean time of a batch, forward and backward, over "
            "400 runs after 100 to warm up"
        ),
        remark="its results are pictures without numbers",
    ),
    Source(
        name="NVIDIA developer forum, Use of cuDNN RNN",
        suite="semantics",
        url="https://forums.developer.nvidia.com/t/use-of-cudnn-rnn/49466",
        protocol="cuDNN from C++, batch 128, 8 steps, 1024 units a layer; neither GPU nor version is named",
        references={"3x1024": "torch/cudnn"},
        figures=tuple(
            _times(
                "3x1024",
                "a GPU that is not named",
                {
                    "one-call-torch/cudnn": ("one call of three layers", 0.017),
                    "torch/cudnn": ("three calls of one layer", 0.016),
                },
            )
        ),
        remark=(
            "its author first claimed that one call is twice as fast, and took that back as a mistake of "
            "measurement; these are the figures that replaced it, called a slight advantage of the one call, "
            "though its time is the longer one; which passes the times include is not said"
        ),
    ),
)


def for_workload(suite: str, workload: str) -> Iterator[tuple[Source, tuple[Figure, ...]]]:
    """Yield the sources that have figures of a workload, whichever suite it is part of, with these figures.

    A source without figures goes with every workload of its own suite.
    """
    for source in SOURCES:
        figures = tuple(figure for figure in source.figures if figure.workload == workload)
        if figures or (source.suite == suite and not source.figures):
            yield source, figures
