"""From rows with known ratios to results: figures, order, troubles, and whether the comparison is fair."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from bench_rows import ENVIRONMENT, WORK, cells, document, rounds, row, unmeasured, write

from ptb_lm.bench.reporting import result_table
from ptb_lm.bench.results import ResultGroup, Summary
from ptb_lm.bench.summary import summarise
from ptb_lm.common.errors import UserError

SPEEDS = {"torch/basic": 1.0, "torch/block": 0.7, "torch/cudnn": 2.5}


def summary_of(folder: Path, rows: Any, **options: Any) -> Summary:
    return summarise(write(folder, rows), **options)


def group_of(folder: Path, rows: Any, **options: Any) -> ResultGroup:
    (group,) = summary_of(folder, rows, **options).groups
    return group


def test_the_known_ratios_come_out_within_their_intervals(tmp_path: Path) -> None:
    group = group_of(tmp_path, rounds(SPEEDS, count=9, noise=0.01))
    assert [result.variant for result in group.results] == ["torch/cudnn", "torch/basic", "torch/block"]
    for result in group.results:
        assert result.ratio.estimate == pytest.approx(SPEEDS[result.variant], rel=0.03)
        if result.variant == group.baseline:
            assert (result.ratio.estimate, result.ratio.interval) == (1, None), "by definition"
        else:
            low, high = result.ratio.interval
            assert low < SPEEDS[result.variant] < high
            assert high / low < 1.05, "the drift of 30 % is paired out"


def test_times_rates_and_fractions_are_of_the_rounds(tmp_path: Path) -> None:
    seconds = (2.0, 4.0, 3.0, 8.0)
    rows = [row(round=n, seconds=s, gemm_gflops=1000 / s) for n, s in enumerate(seconds)]
    result = group_of(tmp_path, rows).result("torch/basic")
    steps, rate, fraction = result.seconds, result.rate, result.gemm_fraction
    assert (steps.median, steps.low, steps.high) == pytest.approx((3.5 / 40, 2.75 / 40, 5 / 40))
    assert rate.median == pytest.approx((400 * 40 / 3 + 400 * 40 / 4) / 2)
    # The machine's own rate fell as the step's did: each round's fraction is the same.
    assert (fraction.low, fraction.high) == pytest.approx([1.1e10 * 40 / 1e12] * 2)
    assert result.total_time == (17.0, 160)


def test_processes_of_two_sessions_are_not_one(tmp_path: Path) -> None:
    """Each session numbers its own from 0."""
    speeds = {"torch/basic": 1.0, "torch/cudnn": 2.0}
    first, second = (list(rounds(speeds, seed=seed, session=f"s{seed}")) for seed in (1, 2))
    (group,) = summary_of(tmp_path / "both", [*first, *second]).groups
    renumbered = [{**each, "process": each["process"] + 100} for each in second]
    (expected,) = summary_of(tmp_path / "apart", [*first, *renumbered]).groups
    found, wanted = (each.result("torch/cudnn") for each in (group, expected))
    assert found.processes == wanted.processes == 10
    assert found.mean_rate == wanted.mean_rate
    assert found.ratio == wanted.ratio


def test_facts_are_kept(tmp_path: Path) -> None:
    rows = [
        row(startup={"build_seconds": 1.0}, peak_memory={"host_bytes": 1e9}, time="2026-02"),
        row(
            round=1,
            startup={"build_seconds": 4.0},
            time="2026-01",
            environment={**ENVIRONMENT, "torch": "2.11"},
        ),
    ]
    summary = summary_of(tmp_path, rows)
    (group,) = summary.groups
    result = group.result("torch/basic")
    assert result.largest("startup", "build_seconds") == 4
    assert cells(result_table.details(group))["torch/basic"]["build (s)"] == "1.00", "of the first"
    assert result.largest("peak_memory", "host_bytes") == 1e9
    assert result.largest("peak_memory", "device_bytes") is None
    assert summary.environment["torch"] == ("2.13.0", "2.11")
    assert "commit" not in summary.environment, "it was not known"
    assert summary.times == ("2026-01", "2026-02")
    assert len(summary.commands) == 1


def test_without_rates_or_declared_bytes_there_are_no_fractions(tmp_path: Path) -> None:
    rows = [
        row(copy_gbytes=None),
        row(variant="torch/block", work={**WORK, "bytes_per_step": None}),
        row(variant="torch/cudnn", gemm_gflops=None),
    ]
    group = group_of(tmp_path, rows)
    assert [result.roofline_fraction for result in group.results] == [None] * 3
    assert group.result("torch/cudnn").gemm_fraction is None


def test_the_passes_of_a_workload_stand_together_forward_first(tmp_path: Path) -> None:
    rows = [row(), row(workload="medium"), row(pass_="forward")]
    names = [group.name for group in summary_of(tmp_path, rows).groups]
    assert names == ["small, forward", "small, train", "medium, train"]


def test_variants_without_a_measurement_have_the_reason(tmp_path: Path) -> None:
    rows = [unmeasured("unavailable", "no GPU", variant="tensorflow/cudnn"), *rounds(SPEEDS)]
    result = group_of(tmp_path, rows).results[-1]
    assert (result.variant, result.status, result.reason) == ("tensorflow/cudnn", "unavailable", "no GPU")
    assert (result.ratio, result.blocks) == (None, ())


def test_a_failure_after_some_rounds_keeps_these_and_says_so(tmp_path: Path) -> None:
    kept = [each for each in rounds(SPEEDS) if each["variant"] != "torch/block" or each["round"] < 3]
    rows = [*kept, unmeasured("failed", "killed", variant="torch/block", planned_rounds=5)]
    result = group_of(tmp_path, rows).result("torch/block")
    assert (result.status, len(result.blocks)) == ("failed", 3)
    assert "failed after 3 of 5 rounds: killed" in result.notes
    assert result.ratio is not None


def test_a_program_that_is_wrong_by_one_name_is_wrong_by_both(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "torch/cudnn": 2.0, "torch/cudnn#again": 2.0}
    for wrong in ("torch/cudnn", "torch/cudnn#again"):
        group = group_of(tmp_path / wrong, [*rounds(speeds), unmeasured("wrong", "off", variant=wrong)])
        found = {result.variant: (result.status, len(result.blocks)) for result in group.results}
        both = dict.fromkeys(("torch/cudnn", "torch/cudnn#again"), ("wrong", 0))
        assert found == {"torch/basic": ("measured", 5), **both}


def test_a_variant_wrong_in_one_pass_has_no_figures_in_either(tmp_path: Path) -> None:
    """Wrong is never fast."""
    blocks = [*rounds(SPEEDS), *rounds(SPEEDS, **{"pass": "forward"})]
    rows = [*blocks, unmeasured("wrong", "after its warm-up it is off", variant="torch/cudnn")]
    forward, train = summary_of(tmp_path, rows).groups
    assert (forward.pass_name, train.pass_name) == ("forward", "train")
    for group in (forward, train):
        result = group.result("torch/cudnn")
        assert (result.status, result.reason) == ("wrong", "after its warm-up it is off")
        assert (result.blocks, result.ratio) == ((), None)
        assert group.result("torch/block").status == "measured"


CUT = "{} of 80 steps a round (limit: 20.5 s), {} of 1,000 steps to warm up (limit: 4.1 s)"


@pytest.mark.parametrize(
    ("notes", "joined"),
    [
        (
            [CUT.format("4", "9"), CUT.format("10", "9"), CUT.format("4", "999"), "another", None],
            (CUT.format("4 to 10", "9 to 999"), "another"),
        ),
        # A version is no number.
        (
            ["torch 2.9.1: 2.5 of 1,000 s", "torch 2.13.0: 2 of 3 s", "torch 2.13.0: 10 of 1,000 s"],
            ("torch 2.9.1: 2.5 of 1,000 s", "torch 2.13.0: 2 to 10 of 3 to 1,000 s"),
        ),
    ],
)
def test_notes_that_differ_in_numbers_alone_are_one(
    notes: list[str | None], joined: tuple[str, ...], tmp_path: Path
) -> None:
    made = [row(round=n, process=n, note=note, planned_rounds=len(notes)) for n, note in enumerate(notes)]
    (result,) = group_of(tmp_path, made).results
    assert result.notes == joined


def test_a_fact_that_is_null_is_not_known(tmp_path: Path) -> None:
    checks = [{"dropout": None}, {"dropout": "in a second model without it; and more"}]
    made = [row(round=n, process=n, check=each, planned_rounds=2) for n, each in enumerate(checks)]
    (result,) = group_of(tmp_path, made).results
    (note,) = result.notes
    assert "second model" in note


def test_an_error_names_the_file_with_the_rows(tmp_path: Path) -> None:
    folder = write(tmp_path / "bench", SEVERAL)
    archive = tmp_path / "bench.jsonl.gz"
    archive.write_bytes(gzip.compress((folder / "rows.jsonl").read_bytes()))
    for given, file in ((folder, folder / "rows.jsonl"), (archive, archive)):
        with pytest.raises(UserError) as error:
            summarise(given)
        assert str(error.value).startswith(f"{file}: small, train has several baselines")


def test_missing_rounds_and_single_rounds_are_noted(tmp_path: Path) -> None:
    rows = [each for each in rounds(SPEEDS) if each["variant"] == "torch/basic" or each["round"] == 0]
    result = group_of(tmp_path, rows).result("torch/cudnn")
    missing, single = result.notes
    assert "1 of 5 rounds" in missing
    assert "no interval" in single


def test_rounds_are_missing_of_the_last_plan_of_the_pass(tmp_path: Path) -> None:
    """The number of processes was planned when one of two variants had ended."""
    rows = [
        *(row(round=n, process=n // 2, planned_rounds=10 if n < 8 else 24) for n in range(24)),
        *(row(variant="torch/cudnn", round=n, process=n // 2, planned_rounds=10) for n in range(3)),
    ]
    group = group_of(tmp_path, rows)
    assert {result.planned_rounds for result in group.results} == {24}
    assert [result.notes for result in group.results] == [(), ("only 3 of 24 rounds",)]


@pytest.mark.parametrize(("newest", "unfinished"), [(10, None), (12, None), (14, 14), (30, 24)])
def test_a_later_plan_of_fewer_rounds_is_the_one_that_counts(
    newest: int, unfinished: int | None, tmp_path: Path
) -> None:
    """A run of two variants was interrupted, and went on with a third, which had no part in its plan."""
    rows = [
        *rounds({"torch/basic": 1.0, "torch/cudnn": 2.0}, count=12, planned_rounds=24),
        *rounds(SPEEDS, count=newest, planned_rounds=newest, session="later"),
    ]
    kept = [each for each in rows if each["session"] != "later" or each["variant"] != "torch/cudnn"]
    group = group_of(tmp_path, kept)
    found = group.result("torch/cudnn")
    assert group.unfinished is (found if unfinished else None)
    assert found.notes == ((f"only 12 of {unfinished} rounds",) if unfinished else ())
    assert (group.result("torch/block").rounds, group.result("torch/block").notes) == (newest, ())
    # A later run that measures nothing plans none of the rounds that others have.
    failed = unmeasured("failed", "killed", variant="torch/other", session="last", planned_rounds=1)
    again = group_of(tmp_path / "again", [*kept, failed])
    assert again.result("torch/cudnn").notes == found.notes


@pytest.mark.parametrize(
    ("baseline", "why"),
    [
        ([], "torch/basic was not part"),
        ([unmeasured("failed", "killed")], "torch/basic was not measured (failed)"),
    ],
)
def test_without_the_baseline_there_are_figures_and_no_ratios(
    baseline: Any, why: str, tmp_path: Path
) -> None:
    rows = [row(variant="torch/cudnn"), *baseline]
    result = group_of(tmp_path, rows).result("torch/cudnn")
    assert result.seconds.count == 1
    assert result.ratio is None
    (warning,) = document(tmp_path, rows).warnings
    assert why in warning


def test_no_round_in_common_with_the_baseline(tmp_path: Path) -> None:
    group = group_of(tmp_path, [row(), row(variant="torch/cudnn", round=1)])
    assert "no round in common" in str(group.result("torch/cudnn").notes)


@pytest.mark.parametrize("what", ["parameters", "flops_per_step", "items_per_step", "unit", "precision"])
def test_unequal_work_is_an_error(what: str, tmp_path: Path) -> None:
    other = {**WORK, what: "bf16" if isinstance(WORK[what], str) else 2 * WORK[what]}
    rows = [row(), row(variant="torch/cudnn", work=other)]
    with pytest.raises(UserError, match=f"{what}.* for torch/basic .* for torch/cudnn"):
        summary_of(tmp_path, rows)


MIXED = {"plain-torch/cudnn@tf32": "tf32", "torch/cudnn/graph@bf16": "bf16", "tensorflow/cudnn": "fp32"}


def with_precisions(**changes: Any) -> list[dict[str, Any]]:
    work = {name: {**WORK, "precision": precision} for name, precision in MIXED.items()}
    baseline = "plain-torch/cudnn@tf32"
    return [
        row(**{"variant": name, "label": "An LSTM", "baseline": baseline, "work": each, **changes})
        for name, each in work.items()
    ]


def test_a_precision_that_the_name_gives_is_no_unequal_work_but_is_shown(tmp_path: Path) -> None:
    none = unmeasured("unavailable", "no GPU", variant="torch/cudnn@fp16", label="An LSTM")
    group = group_of(tmp_path, [*with_precisions(), {**none, "baseline": "plain-torch/cudnn@tf32"}])
    assert sorted(group.precisions) == ["bf16", "fp32", "tf32"]
    labels = {result.variant: result.label for result in group.results}
    assert labels == {
        **{name: f"An LSTM, {precision}" for name, precision in MIXED.items()},
        "torch/cudnn@fp16": "An LSTM, fp16",
    }
    assert group.label(group.baseline) == "An LSTM, tf32"


LOW = {**WORK, "precision": "bf16"}
SEVERAL = [row(), row(variant="torch/block", baseline="torch/block")]


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ([row(), row(variant="torch/basic@bf16", work=LOW)], ["torch/basic, fp32", "torch/basic@bf16"]),
        (with_precisions()[:1], ["An LSTM"]),
        # Another device is no other work.
        (
            [row(), row(variant="torch/cudnn", work={**WORK, "device": "cuda"})],
            ["torch/basic", "torch/cudnn"],
        ),
        (SEVERAL, ["torch/basic", "torch/block"]),
    ],
)
def test_a_precision_is_in_a_label_once_where_there_are_several(
    rows: Any, labels: list[str], tmp_path: Path
) -> None:
    group = group_of(tmp_path, rows, baseline=rows[0]["variant"])
    assert [result.label for result in group.results] == labels


@pytest.mark.parametrize(
    ("rows", "baseline", "told"),
    [
        (rounds(SPEEDS), "torch/none", r"--baseline torch/none: .*torch/block"),
        (SEVERAL, None, "small, train .* baselines: torch/basic, torch/block"),
        # Another precision than the name gives.
        (
            [*with_precisions(), row(variant="torch/basic", work=LOW, baseline="plain-torch/cudnn@tf32")],
            None,
            "fp32 for tensorflow/cudnn and bf16 for torch/basic",
        ),
        (with_precisions(work=WORK), None, "plain-torch/cudnn@tf32 of small, train .* fp32"),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    rows: Any, baseline: str | None, told: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told):
        summary_of(tmp_path, rows, baseline=baseline)


def test_only_rounds_of_one_session_are_paired(tmp_path: Path) -> None:
    """The first session's variant is compared with its own baseline, not with the second's slower one."""
    rows = [
        row(session="1", seconds=1.0),
        row(session="1", variant="torch/cudnn", seconds=0.5),
        row(session="2", seconds=4.0),
        row(session="2", variant="torch/block", seconds=4.0),
        row(session="2", round=1, seconds=4.0),
        row(session="2", round=1, variant="torch/cudnn", seconds=2.0),
        row(session="3", round=2, variant="torch/cudnn", seconds=0.1),
    ]
    group = group_of(tmp_path, rows)
    cudnn, block = group.result("torch/cudnn").ratio, group.result("torch/block").ratio
    assert (cudnn.estimate, cudnn.units) == (pytest.approx(2), 2)
    assert (block.estimate, block.units) == (pytest.approx(1), 1)


def test_the_order_is_that_of_the_rates_and_the_fastest_is_by_ratios(tmp_path: Path) -> None:
    """The machine slowed down: by the clock the faster variant was the slower one in the median round."""
    rows = [
        *(row(round=n, seconds=s) for n, s in enumerate((1.0, 1.0, 10.0))),
        *(row(variant="torch/cudnn", round=n, seconds=s) for n, s in enumerate((1.1, 1.1, 1.2))),
    ]
    group = group_of(tmp_path, rows)
    assert [result.variant for result in group.results] == ["torch/basic", "torch/cudnn"]
    assert group.fastest is group.result("torch/cudnn")


def test_a_second_measurement_is_no_candidate(tmp_path: Path) -> None:
    group = group_of(tmp_path, rounds({"torch/basic": 1.0, "torch/basic#again": 1.1, "torch/block": 0.5}))
    assert [result.variant for result in group.candidates] == ["torch/basic", "torch/block"]
    assert [result.variant for result, _ in group.repetitions] == ["torch/basic#again"]
