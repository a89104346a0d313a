"""Figures that others published: sources.toml has the publications, figures.csv their figures.

Speeds of other years and machines are no measure of ours; what compares are the ratios within one source.
"""

import csv
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published measurement.

    Attributes:
        workload: The workload of ours that it answers to.
        pass_name: "forward" or "train".
        variant: The variant of ours that it answers to; "" if there is none.
        name: The variant's name in the source.
        hardware: The hardware that it was measured on.
        seconds_per_step: Time of a batch, if published.
        elapsed: Seconds of all the batches that were timed, if published.
        rate: Items a second, if published.
        remark: A caution about this figure; "" for none.
    """

    workload: str
    pass_name: str
    name: str
    hardware: str
    variant: str = ""
    seconds_per_step: float | None = None
    elapsed: float | None = None
    rate: float | None = None
    remark: str = ""

    def times_as_fast_as(self, other: "Figure") -> float | None:
        """Return how many times as fast as another this is; None if they have no measure in common.

        Their times decide where there are such: a rate is worked out of a time, and may be a slip.
        """
        if self.seconds_per_step and other.seconds_per_step:
            return other.seconds_per_step / self.seconds_per_step
        if self.rate and other.rate:
            return self.rate / other.rate
        return None


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A publication.

    Attributes:
        name: The authors or the title, and the year.
        url: The address.
        suite: The suite of ours that makes its measurements again.
        protocol: Versions and how it was measured.
        references: The variant that its ratios are to, by workload.
        figures: The figures; none if it shows pictures only.
        remark: A caution for comparisons; "" for none.
    """

    name: str
    url: str
    suite: str
    protocol: str
    references: Mapping[str, str] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    remark: str = ""

    def reference(self, figure: Figure) -> Figure | None:
        """Return the figure of the same workload, pass and hardware that a figure's ratio is to."""
        key = (
            figure.workload,
            figure.pass_name,
            figure.hardware,
            self.references.get(figure.workload),
        )
        for each in self.figures:
            if (each.workload, each.pass_name, each.hardware, each.variant) == key:
                return each
        return None


def _read() -> Iterator[tuple[str, Publication]]:
    sources = tomllib.loads((FOLDER / "sources.toml").read_text(encoding="utf-8"))
    with (FOLDER / "figures.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for key, about in sources.items():
        figures = [{name: text for name, text in row.items() if text} for row in rows if row["source"] == key]
        # The numbers of a CSV are texts.
        yield key, msgspec.convert({**about, "figures": figures}, Publication, strict=False)


PUBLICATIONS = dict(_read())


def for_workload(suite: str, workload: str) -> Iterator[tuple[Publication, tuple[Figure, ...]]]:
    """Yield the sources that have figures of a workload, whichever suite it is part of, with these figures.

    A source without figures goes with every workload of its own suite.
    """
    for source in PUBLICATIONS.values():
        figures = tuple(figure for figure in source.figures if figure.workload == workload)
        if figures or (source.suite == suite and not source.figures):
            yield source, figures
