"""Words whose embeddings are near each other: lists, a picture, and files for TensorBoard's projector.

V = vocabulary, E = embedding width.
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common import streams
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.common.files import atomic_write, output_problem
from ptb_lm.data.preparation import Tokenizer
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.inference.inputs import check_count, check_text
from ptb_lm.pages.plots import check_picture, letters_of_any_font

MISSING = f"is not installed; {how_to_install('neighbours')}"
NEIGHBOURS = 10  # words near another, unless `k` is given

# The files of TensorBoard's projector, and the content of the first.
CONFIG, VECTORS, METADATA = "projector_config.pbtxt", "vectors.tsv", "metadata.tsv"
PROJECTOR_CONFIG = (
    f'embeddings {{\n  tensor_name: "embedding"\n  tensor_path: "{VECTORS}"\n'
    f'  metadata_path: "{METADATA}"\n}}\n'
)


class Neighbour(NamedTuple):
    """A word near another."""

    word: str
    similarity: float  # the cosine of the angle between the two embeddings

    def __repr__(self) -> str:
        return f"Neighbour(word={self.word!r}, similarity={self.similarity:.4g})"


def find_nearest(
    embeddings_VE: NDArray[np.floating],
    vocabulary: Vocabulary,
    word: str,
    k: int | None,
    *,
    tokenizer: Tokenizer,
) -> list[Neighbour]:
    """Return the k words nearest to a word, the nearest first.

    Args:
        embeddings_VE: The words' vectors.
        vocabulary: The words.
        word: One of the vocabulary, or one that the tokenizer turns into one of the vocabulary.
        k: The number of others. None: 10, or all if the vocabulary has fewer.
        tokenizer: Turns text into words.

    Raises:
        UserError: The vocabulary lacks the word, or has fewer than k others.
    """
    check_text(word, name="the word")
    if word not in vocabulary.ids and len(words := tokenizer.words(word)) == 1:
        (word,) = words
    word_id = vocabulary.ids.get(word)
    if word_id is None:
        raise UserError(f"the word {word!r} is not in the vocabulary")
    others = len(vocabulary) - 1
    if k is None:
        k = min(NEIGHBOURS, others)
    else:
        check_count(k, others, name="k", noun="other words")
    norms_V = np.linalg.norm(embeddings_VE, axis=1)
    norms_V[norms_V == 0] = 1  # a vector of zeros has no angle, and its cosines are 0
    similarity_V = embeddings_VE @ (embeddings_VE[word_id] / norms_V[word_id]) / norms_V
    order = np.argsort(-similarity_V, kind="stable")
    return [Neighbour(vocabulary.words[i], float(similarity_V[i])) for i in order[order != word_id][:k]]


def draw(
    embeddings_VE: NDArray[np.floating], vocabulary: Vocabulary, path: Path, *, words: int, method: str
) -> None:
    """Draw a map of words into an .svg or .png file. Similar words are near each other.

    They are the first of the vocabulary: the most frequent ones, unless it was imported or extended.

    Args:
        embeddings_VE: The words' vectors.
        vocabulary: The words.
        path: The file.
        words: The number of words.
        method: "pca": the plane that they spread over the most; "tsne": neighbours stay neighbours.

    Raises:
        UserError: The file's name has another ending, there are not so many words, the embeddings are of one
            number, or matplotlib or scikit-learn is missing.
    """
    check_picture(path)
    check_count(words, len(vocabulary), name="the number of words in the picture")
    if words < 3:
        raise UserError(f"a picture needs at least 3 words, not {words}")
    if embeddings_VE.shape[1] < 2:
        raise UserError("a picture needs embeddings of at least 2 numbers, but those of this run have 1")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ModuleNotFoundError as error:
        raise UserError(
            f"{'matplotlib' if error.name == 'matplotlib' else 'scikit-learn'} {MISSING}"
        ) from None
    vectors = embeddings_VE[:words].astype(np.float64)
    if method == "pca":
        points = PCA(2, random_state=0).fit_transform(vectors)
    else:
        points = TSNE(2, perplexity=min(30, (words - 1) / 3), random_state=0).fit_transform(vectors)
    kind = path.suffix[1:]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ptb_lm"}), letters_of_any_font(kind):
        figure = Figure(figsize=(12, 12))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.scatter(points[:, 0], points[:, 1], s=2, color="#d0d7de")
        for (x, y), word in zip(points, vocabulary.words, strict=False):
            label = streams.escape_controls(word)  # no reader opens an SVG with a control character
            # Not as mathematics: Penn Treebank has the word $.
            axes.text(x, y, label, fontsize=7, ha="center", va="center", parse_math=False)
        without_date = {"Date": None, "Creator": None} if kind == "svg" else {}
        picture = io.BytesIO()  # not the file: drawing imports, and a signal ends an import at once
        figure.savefig(picture, format=kind, metadata=without_date, dpi=150)
    atomic_write(path, picture.getvalue())


def check_projector(folder: Path, *, overwrite: bool) -> None:
    """Check that the files for TensorBoard's projector may be written into a folder.

    Args:
        folder: The folder of the files.
        overwrite: True if files that `write_projector` wrote before may be replaced.

    Raises:
        UserError: The folder has such files, or some of another origin, which are never replaced; or a file
            is in its place.
    """
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), Path())
    if not nearest.is_dir():
        raise UserError(f"{nearest} is a file, where a folder is to be made; choose another folder")
    config = folder / CONFIG
    if not config.exists() or config.read_bytes() != PROJECTOR_CONFIG.encode():
        for name in (CONFIG, VECTORS, METADATA):
            if (folder / name).exists():
                raise UserError(
                    f"{folder / name} exists, and this command did not write it; choose another folder"
                )
    if problem := output_problem(config, overwrite=overwrite):
        raise UserError(problem)


def write_projector(
    embeddings_VE: NDArray[np.floating], vocabulary: Vocabulary, folder: Path, *, overwrite: bool = False
) -> None:
    """Write the embeddings for TensorBoard's projector.

    `tensorboard --logdir FOLDER` shows them, and so does projector.tensorflow.org.

    Args:
        embeddings_VE: The embeddings, by word id.
        vocabulary: The words.
        folder: The folder of the files.
        overwrite: True to replace files that it wrote before.

    Raises:
        UserError: As `check_projector` raises it.
        OSError: The folder cannot be written.
    """
    check_projector(folder, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    # First, so that what an interrupted call leaves can be overwritten.
    atomic_write(folder / CONFIG, PROJECTOR_CONFIG)
    rows = ("\t".join(f"{number:.6g}" for number in vector) + "\n" for vector in embeddings_VE)
    atomic_write(folder / VECTORS, "".join(rows))
    atomic_write(folder / METADATA, "".join(f"{word}\n" for word in vocabulary.words))
