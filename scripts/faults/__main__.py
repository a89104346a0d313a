"""Do faults to real runs, count what comes of them, and write results/reliability.md."""

import argparse
import collections
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults import table
from faults.table import AS_PROMISED, FAULTS
from ptb_lm.common import cli, host

if TYPE_CHECKING:
    from faults.subject import Subject

FRAMEWORKS = ("torch", "tensorflow")
QUICK = 2  # tries of each


def main() -> int:
    """Do the faults of the flags; the status is 1 if a promise was broken."""
    parser = _parser()
    given = parser.parse_args()
    # A process in the background of a shell ignores it, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tries = QUICK if given.quick else given.tries
    faults = [
        (framework, name)
        for framework in given.framework
        for name in given.fault
        if framework in FAULTS[name].frameworks
    ]
    if not faults:
        parser.error(f"none of these faults is done to a run of {' or '.join(given.framework)}")
    if given.write and len(faults) < sum(len(fault.frameworks) for fault in FAULTS.values()):
        parser.error("--write needs all faults: it replaces the whole table")
    environment = host.environment()
    with tempfile.TemporaryDirectory(prefix="ptb_lm-faults-", ignore_cleanup_errors=True) as folder:
        found = _count_outcomes(faults, tries, 60 * given.minutes, given.seed, Path(folder))
    if given.write:
        where = {name: environment[name] for name in ("processor", "python", "started")}
        kept = {**where, "seed": given.seed, "counts": found}
        table.COUNTS.write_text(json.dumps(kept, indent=1) + "\n")
        table.PAGE.write_text(table.with_table(table.PAGE.read_text(), kept))
    broken = any(set(each["outcomes"]) - {AS_PROMISED} for each in found)
    return int(broken)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/reliability", description=__doc__)
    parser.add_argument("--minutes", type=float, default=50, help="for all of them; default: %(default)s")
    parser.add_argument(
        "--tries", type=cli.whole_number(1), default=400, help="of each at most; default: %(default)s"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} tries of each")
    parser.add_argument("--framework", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument(
        "--fault",
        nargs="+",
        choices=tuple(FAULTS),
        default=tuple(FAULTS),
        metavar="NAME",
        help=f"default: all of {'; '.join(FAULTS)}",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn; default: %(default)s")
    parser.add_argument("--write", action="store_true", help="write the table of results/reliability.md")
    return parser


def _count_outcomes(
    faults: Sequence[tuple[str, str]], tries: int, seconds: float, seed: int, folder: Path
) -> list[dict[str, Any]]:
    """Return the number of tries of each fault by outcome. Each has its share of the time, and a try."""
    # Imported here, because --help is asked for before torch is installed.
    from faults.outcomes import OUTCOMES
    from faults.subject import Subject

    end, found, subjects = time.monotonic() + seconds, [], {}
    for number, (framework, name) in enumerate(faults):
        if framework not in subjects:
            subjects[framework] = Subject(folder / framework, framework)
        subject = subjects[framework]
        start = time.monotonic()
        until = start + max(0.0, end - start) / (len(faults) - number)
        outcomes = OUTCOMES[name](subject, random.Random(f"{seed} {name}"))
        counts = _count_tries(name, subject, outcomes, tries, until)
        print(f"{framework}, {name}: {dict(counts)}", flush=True)
        found.append(
            {"framework": framework, "fault": name, "tries": counts.total(), "outcomes": dict(counts)}
        )
    return found


def _count_tries(
    name: str, subject: "Subject", outcomes: Iterator[str], tries: int, until: float
) -> "collections.Counter[str]":
    counts: collections.Counter[str] = collections.Counter()
    with contextlib.closing(outcomes):  # type: ignore[type-var]
        for outcome in outcomes:
            counts[outcome] += 1
            if outcome != AS_PROMISED:
                print(
                    f"{subject.framework}, {name}: {outcome}\n{subject.last_output}",
                    file=sys.stderr,
                    flush=True,
                )
            if counts.total() == tries or time.monotonic() > until:
                break
    return counts


if __name__ == "__main__":
    sys.exit(main())
