"""What a publication reports: a source, and its figures with hardware and the variant they answer to."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published measurement.

    Attributes:
        workload: Ours that it answers to.
        pass_name: "forward" or "train".
        variant: Ours that it answers to; "" if there is none.
        name: How its source calls it.
        hardware: What it was measured on.
        seconds_per_step: Time of a batch, if published.
        elapsed: Seconds of all the batches that were timed, if published.
        rate: Items a second, if published.
        remark: What is to be known of this figure; "" for nothing.
    """

    workload: str
    pass_name: str
    variant: str
    name: str
    hardware: str
    seconds_per_step: float | None = None
    elapsed: float | None = None
    rate: float | None = None
    remark: str = ""

    def times_as_fast_as(self, other: "Figure") -> float | None:
        """Return how many times as fast as another this is; None if they have no measure in common.

        By their times where there are such: a rate is worked out of a time, and may be a slip.
        """
        if self.seconds_per_step and other.seconds_per_step:
            return other.seconds_per_step / self.seconds_per_step
        if self.rate and other.rate:
            return self.rate / other.rate
        return None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A publication.

    Attributes:
        name: Who or what, and when.
        url: Where it is.
        suite: Ours that makes its measurements again.
        protocol: Versions and how it was measured.
        references: The variant that its ratios are to, by workload.
        figures: What it reports; empty if it shows pictures only.
        remark: What a reader should know before comparing; "" for nothing.
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
        wanted = (
            figure.workload,
            figure.pass_name,
            figure.hardware,
            self.references.get(figure.workload),
        )
        for each in self.figures:
            if (each.workload, each.pass_name, each.hardware, each.variant) == wanted:
                return each
        return None
