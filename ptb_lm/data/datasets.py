"""What `--data` names: Penn Treebank, the synthetic corpus, or a folder of text."""

import os
from pathlib import Path

from ptb_lm.data import corpus, synthetic
from ptb_lm.data.corpus import Corpus
from ptb_lm.errors import UserError
from ptb_lm.files import home

DATA_VARIABLE = "PTB_LM_DATA"


def load(data: str) -> Corpus:
    """Load the corpus that `--data` names, fetching or generating it where that is needed.

    Args:
        data: "ptb" (the folder $PTB_LM_DATA or data/ptb, downloaded if missing), "synthetic" (generated in
            data/synthetic), or a folder.

    Raises:
        UserError: There is no such corpus, or it cannot be read.
    """
    if data == "synthetic":
        folder = home() / "data" / "synthetic"
        folder.mkdir(parents=True, exist_ok=True)
        synthetic.ensure(folder)
        loaded = corpus.load(folder)
        return Corpus(loaded.vocabulary, loaded.splits, bounds=synthetic.bound(folder))
    if data == "ptb":
        return corpus.load(_penn_treebank())
    return corpus.load(Path(data))


def _penn_treebank() -> Path:
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named)
    # Imported here, because an HTTP client takes longer to import than --help should take.
    from ptb_lm import download

    folder = home() / "data" / "ptb"
    if not all((folder / name).is_file() for name in download.PTB):
        try:
            download.fetch(folder)
        except download.DownloadError as error:
            raise UserError(
                f"Penn Treebank is not in {folder} and could not be downloaded ({error}); run python -m "
                "ptb_lm.download where there is a network, or give --data DIR with your own copy, or use "
                "--data synthetic"
            ) from None
    return folder
