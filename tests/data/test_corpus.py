"""Rows and windows, folders, and the facts of the real Penn Treebank."""

import os
from pathlib import Path

import numpy as np
import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.data.preparation import Preparation


def folder_with(path: Path, **splits: str) -> Path:
    for name, content in splits.items():
        (path / f"{name.replace('_', '.')}.txt").write_text(content)
    return path


def test_rows_are_contiguous_and_windows_follow_each_other() -> None:
    ids = np.arange(23, dtype=np.int32)
    rows_BL = corpus.rows(ids, 3)
    np.testing.assert_array_equal(rows_BL, [range(7), range(7, 14), range(14, 21)])
    windows = list(corpus.windows(rows_BL, 2))
    assert len(windows) == 3 == corpus.count_windows(ids, batch_size=3, num_steps=2)
    np.testing.assert_array_equal(windows[0][0], [[0, 1], [7, 8], [14, 15]])
    np.testing.assert_array_equal(windows[2][0], [[4, 5], [11, 12], [18, 19]])
    for x_BT, y_BT in windows:
        np.testing.assert_array_equal(y_BT, x_BT + 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7, 50])
def test_partial_windows_make_every_token_but_the_first_a_target_once(steps: int) -> None:
    rows_BL = corpus.rows(np.arange(22, dtype=np.int32), 2)
    targets = np.concatenate([y_BT for _, y_BT in corpus.windows(rows_BL, steps, partial=True)], axis=1)
    np.testing.assert_array_equal(targets, rows_BL[:, 1:])


def test_a_training_split_too_short_says_the_numbers() -> None:
    ids = np.zeros(20 * 21 - 1, np.int32)
    with pytest.raises(UserError, match=r"419 .*--batch-size 20 .*--num-steps 20 .*420"):
        corpus.count_windows(ids, batch_size=20, num_steps=20)
    assert corpus.count_windows(np.zeros(420, np.int32), batch_size=20, num_steps=20) == 1


def test_an_evaluation_split_too_short_says_the_numbers() -> None:
    with pytest.raises(UserError, match=r"valid .*39 .*20 .*--batch-size.* 40"):
        corpus.check_evaluation(np.zeros(39, np.int32), batch_size=20, split="valid")
    corpus.check_evaluation(np.zeros(40, np.int32), batch_size=20, split="valid")


def test_all_splits_are_files_of_one_kind_of_name(tmp_path: Path) -> None:
    folder_with(tmp_path, train="a b\n", valid="a\n", test="b\n", ptb_test="b b b\n")
    assert corpus.load(tmp_path).splits["test"].tolist() == [2, 0]
    (tmp_path / "test.txt").unlink()
    with pytest.raises(UserError, match=r"train\.txt.* test\.txt"):
        corpus.load(tmp_path)


def test_a_missing_split_is_named_before_anything_is_read(tmp_path: Path) -> None:
    folder_with(tmp_path, train="", valid="a\n")
    with pytest.raises(UserError, match=r"lacks the test split: .*ptb\.test\.txt, test\.txt, wiki"):
        corpus.load(tmp_path)
    with pytest.raises(UserError, match=r"^--data .*nowhere: "):
        corpus.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"valid\.txt is a file"):
        corpus.load(tmp_path / "valid.txt")


@pytest.mark.parametrize("preparation", [None, Preparation()], ids=["prepared", "raw"])
def test_a_pipe_cannot_be_read_twice(preparation: Preparation | None, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=f"^{pipe} .*pipe"):
        corpus.load(pipe, preparation)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_a_descriptor_is_no_place_of_a_text(name: str, tmp_path: Path) -> None:
    """A later process would find another text there."""
    (tmp_path / "text.txt").write_text("a b\n" * 9)
    with (tmp_path / "text.txt").open() as file:
        path = Path(name.format(file.fileno()))
        assert path.is_file()
        with pytest.raises(UserError, match=f"^{path} .*pipe"):
            corpus.load(path, Preparation())
