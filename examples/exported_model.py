"""Use a trained run outside of this package: export it to ONNX, and score sentences by onnxruntime.

    python examples/exported_model.py checkpoints/RUN examples/sentences.txt

It prints each sentence's log-probability in nats, by onnxruntime and by ptb_lm.

Shapes: B = 1, T = words of a sentence and <eos>, V = vocabulary, L = layers, H = hidden units.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import ptb_lm
from ptb_lm.common import cli
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.data import text_file

PROG = "examples/exported_model.py"


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = cli.Parser(prog=PROG, description="Score sentences by onnxruntime and by ptb_lm.")
    parser.add_argument("run", type=Path, help="a run directory, or demo")
    parser.add_argument("sentences", type=Path, help="a file with one sentence per line")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a sentence differs by more than float32 rounds, 2 if a word is unknown.

    If the run cannot be exported, the status is export's, which has said why.
    """
    return cli.run(PROG, lambda: _compare(parse(given)))


def _compare(arguments: argparse.Namespace) -> int:
    try:
        import onnxruntime
    except ImportError:
        raise UserError(f"onnxruntime is not installed; {how_to_install('export')}") from None

    sentences = [line.rstrip("\r\n") for line in text_file.lines(text_file.TextSlice(arguments.sentences))]
    # It splits the text as that of the training was split, and refuses a word that the model cannot read.
    model = ptb_lm.load(arguments.run)
    scores, ids = model.score(sentences), model.vocabulary.ids
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        export = [sys.executable, "-m", "ptb_lm.export", str(arguments.run), "--format", "onnx"]
        exported = subprocess.run([*export, "--out", str(file)], stdout=subprocess.DEVNULL)
        if exported.returncode:
            return exported.returncode
        session = onnxruntime.InferenceSession(file)
    furthest = 0.0
    print("onnxruntime\tptb_lm\tsentence")
    for sentence, scored in zip(sentences, scores, strict=True):
        # As ptb_lm scores it: after an <eos>, its own <eos> too, unknown words as <unk>.
        tokens = ["<eos>", *scored.words]
        total = _log_probability(session, np.array([ids.get(t, ids.get("<unk>")) for t in tokens]))
        furthest = max(furthest, abs(total - scored.total))
        print(f"{total:.4f}\t{scored.total:.4f}\t{sentence}")
    print(f"the largest difference is {'below' if furthest < 1e-3 else 'not below'} 0.001 nats")
    return int(furthest >= 1e-3)


def _log_probability(session: "onnxruntime.InferenceSession", ids_T: np.ndarray) -> float:  # type: ignore[name-defined]  # noqa: F821
    """Return the log-probability of all words but the first, in nats."""
    names = [each.name for each in session.get_inputs()]
    layers, _, hidden = session.get_inputs()[1].shape
    zero_LBH = np.zeros((layers, 1, hidden), np.float32)
    logits_BTV = session.run(None, dict(zip(names, (ids_T[None, :-1], zero_LBH, zero_LBH), strict=True)))[0]
    logits_TV = logits_BTV[0].astype(np.float64)
    logits_TV -= logits_TV.max(axis=1, keepdims=True)
    log_p_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
    return float(log_p_TV[np.arange(len(ids_T) - 1), ids_T[1:]].sum())


if __name__ == "__main__":
    sys.exit(main())
