"""TF_CONFIG, as users and platforms write it."""

import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.model.ranks import tf_config


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", (0, "")),
        ("{}", (0, "")),
        ('{"cluster": null, "task": null}', (0, "")),
        ('{"cluster": {"worker": ["a:1"]}}', (1, "")),
        (
            '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, '
            '"task": {"type": "chief", "index": "0"}}',
            (3, "chief"),
        ),
        (
            '{"cluster": {"worker": null}, "task": {"type": "evaluator", "index": 1}}',
            (0, "evaluator"),
        ),
    ],
)
def test_it_says_how_many_train_and_what_this_one_does(
    value: str, expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", value)
    assert tf_config() == expected


def test_it_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert tf_config() == (0, "")


def test_a_place_that_the_cluster_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for index in (2, -1):
        task = f'{{"type": "worker", "index": {index}}}'
        monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {{"worker": ["a:1", "b:1"]}}, "task": {task}}}')
        with pytest.raises(UserError, match=f"no worker of the index {index}"):
            tf_config()


@pytest.mark.parametrize(
    "value",
    [
        "no JSON",
        "3",
        "[]",
        '{"cluster": 1}',
        '{"cluster": {"worker": 3}}',
        '{"cluster": {"worker": "a:1"}}',
        '{"task": "worker"}',
        '{"task": {"type": "worker"}}',
        '{"task": {"type": "worker", "index": null}}',
        '{"task": {"type": "worker", "index": "first"}}',
    ],
)
def test_a_malformed_one_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", value)
    with pytest.raises(UserError, match="malformed"):
        tf_config()
