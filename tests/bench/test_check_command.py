"""What `bench check` says of a variant, in a line and in a table; the processes are in test_runner.py."""

from pathlib import Path

import pytest

from ptb_lm.bench import check_command
from ptb_lm.bench.check_command import Verdict, document
from ptb_lm.bench.run.machine import Machine
from ptb_lm.bench.selection import Options
from ptb_lm.common import host

RIGHT = Verdict(
    workload="small",
    variant="torch/cudnn",
    precision="fp32",
    errors={
        "gradient_error": 1.26e-5,
        "gradient_bound": 1e-4,
        "loss_error": 3.4e-7,
        "loss_bound": 2e-6,
        "rows": 20,
    },
    environment={"torch": "2.0", "started": "today"},
)
WRONG = Verdict(
    workload="small", variant="mine/custom", precision="bf16", status="wrong", reason="its loss | is off by 1"
)


def test_a_line_has_the_errors_beside_their_bounds_or_the_reason() -> None:
    assert RIGHT.line.startswith("small torch/cudnn (fp32): agrees; ")
    assert RIGHT.line.endswith(": loss 3e-07 of 2e-06, gradient 1e-05 of 1e-04")
    assert WRONG.line == "small mine/custom (bf16): wrong; its loss | is off by 1"


@pytest.mark.slow  # git tells the commit
def test_the_table_has_the_same_and_where_it_was_found() -> None:
    text = document(Options(suite="quick", seed=7), [RIGHT, WRONG], command="python -m ptb_lm.bench check")
    head, _, table = text.partition("\n| ")
    assert "`python -m ptb_lm.bench check`; seed 7." in head
    environment = host.environment()
    for fact in ("commit", "processor", "numpy", "ptb_lm"):
        if environment[fact] is not None:
            assert f"- {fact}: {environment[fact]}\n" in head
    assert "- torch: 2.0\n" in head
    assert "today" not in head
    assert table.splitlines() == [
        "workload | variant | precision | result | loss | gradient |",
        "| --- | --- | --- | --- | --- | --- |",
        "| small | torch/cudnn | fp32 | agrees | 3e-07 of 2e-06 | 1e-05 of 1e-04 |",
        "| small | mine/custom | bf16 | wrong: its loss \\| is off by 1 | – | – |",
    ]


@pytest.mark.slow  # git tells the commit
def test_the_folder_of_the_table_is_made_or_refused_before_the_work(tmp_path: Path) -> None:
    out, unused = tmp_path / "new" / "check.md", Machine.__new__(Machine)  # there is nothing to check on it
    assert check_command.run(Options(suite="quick"), [], unused, command="check", out=out) == 1
    assert "suite quick" in out.read_text()
    with pytest.raises(FileExistsError):
        check_command.run(Options(suite="quick"), [], unused, command="check", out=out / "check.md")
