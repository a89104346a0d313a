"""Plots of ratios, fractions and speeds as bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ptb_lm.pages.plots import Plot, shorten_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR_HEIGHT = 0.40  # inches, with its line of text
_THIN_BAR = 0.17  # inches, without a line of text
_GAP = 0.6  # between the bars of two models, in bars
_WIDE_RANGE = 6.0  # largest to smallest ratio, above which the axis is logarithmic
_SAME, _INK = "#8a8f98", "C6"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a plot: a value with its whisker."""

    label: str
    value: float
    text: str  # the value, for people
    ends: tuple[float, float] | None = None  # the whisker's; None for no whisker

    def draw(
        self, axes: "Axes", position: float, *, origin: float = 0, capsize: int = 2, **look: Any
    ) -> None:
        """Draw the bar and its whisker."""
        axes.barh(position, self.value - origin, left=origin, **look)
        if self.ends is not None:
            low, high = self.ends
            sizes = [[self.value - low], [high - self.value]]
            axes.errorbar(self.value, position, xerr=sizes, color=_INK, elinewidth=1.1, capsize=capsize)


@dataclass(frozen=True, kw_only=True)
class BarPlot(Plot):
    """Horizontal bars, the first on top, each with a line of text above it.

    Attributes:
        bars: The bars.
        origin: Start of the bars: 1 for ratios, 0 for fractions.
        percent: True for fractions that the axis gives in percent.
    """

    bars: Sequence[Bar]
    origin: float
    percent: bool = False

    @property
    @override
    def height(self) -> float:
        return _BAR_HEIGHT * len(self.bars) + 0.6

    @override
    def draw(self, figure: "Figure") -> None:
        """Draw the bars; the axis is logarithmic where ratios lie far apart."""
        axes = figure.add_subplot()
        ends = [self.origin, *(end for bar in self.bars for end in (bar.value, *(bar.ends or ())))]
        low, high = min(ends), max(ends)
        if self.origin > 0 and high / low > _WIDE_RANGE:
            axes.set_xscale("log")
            axes.locator_params(axis="x", subs=(1, 2, 5))
            axes.minorticks_off()
            axes.set_xlim(low / 1.15, high * 1.15)
        else:
            room = 0.06 * (high - low or 1)
            axes.set_xlim(low - room * (self.origin > 0), high + room)
            axes.locator_params(axis="x", nbins=6)
        for position, bar in enumerate(self.bars):
            self._draw_bar(axes, bar, position)
        axes.axvline(self.origin, color=_INK, linestyle="-", linewidth=0.8)
        axes.set_ylim(len(self.bars) - 0.42, -0.72)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        factor, unit = (100, " %") if self.percent else (1, "×")
        axes.xaxis.set_major_formatter(lambda value, _: f"{factor * value:.4g}{unit}")

    def _draw_bar(self, axes: "Axes", bar: Bar, position: int) -> None:
        colour = _SAME if bar.value == self.origin else "C0" if bar.value > self.origin else "C1"
        bar.draw(axes, position, origin=self.origin, capsize=3, height=0.34, color=colour)
        if bar.value == self.origin:
            axes.plot([self.origin], [position], marker="D", markersize=5, color=colour)
        above: dict[str, Any] = {
            "transform": axes.get_yaxis_transform(),
            "va": "bottom",
            # No line runs through a text.
            "bbox": {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.8},
        }
        axes.text(0.008, position - 0.29, shorten_label(bar.label), **above)
        axes.text(1, position - 0.29, bar.text, ha="right", **above)


@dataclass(frozen=True, kw_only=True)
class SpeedPlot(Plot):
    """Speeds by model, in panels that each have an axis of their own.

    Attributes:
        panels: The bars by the heading of their panel and by model; a bar's label is its framework.
    """

    panels: Mapping[str, Mapping[str, Sequence[Bar]]]

    @property
    @override
    def height(self) -> float:
        bars = sum(map(_panel_height, self.panels.values()))
        lines_of_legend = (len(self.frameworks) + 1) // 2
        return _THIN_BAR * bars + 0.55 * len(self.panels) + 0.18 * lines_of_legend + 0.1

    @property
    def frameworks(self) -> list[str]:
        """The frameworks in the order of their first bars."""
        panels = self.panels.values()
        return list(dict.fromkeys(bar.label for panel in panels for bars in panel.values() for bar in bars))

    @override
    def draw(self, figure: "Figure") -> None:
        """Draw a panel for each workload; bars of a model stand together, and a framework has a colour."""
        heights = list(map(_panel_height, self.panels.values()))
        panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (heading, panel) in zip(panels, self.panels.items(), strict=True):
            axes.set_title(shorten_label(heading), fontsize="medium", loc="left")
            self._draw_panel(axes, panel)
        handles = [
            panels[0].barh(0, 0, **self._look(name, panels[0]), label=shorten_label(name))
            for name in self.frameworks
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2, fontsize="small")

    def _draw_panel(self, axes: "Axes", panel: Mapping[str, Sequence[Bar]]) -> None:
        position, longest, ticks = 0.0, 0.0, {}
        for model, bars in panel.items():
            ticks[model] = position + (len(bars) - 1) / 2
            for bar in bars:
                bar.draw(axes, position, height=0.8, **self._look(bar.label, axes))
                end = bar.ends[1] if bar.ends else bar.value
                axes.annotate(
                    bar.text,
                    (end, position),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize="small",
                )
                longest = max(longest, end)
                position += 1
            position += _GAP
        axes.set_xlim(0, 1.2 * longest)  # with room for the numbers
        axes.set_ylim(position - _GAP - 0.4, -0.6)
        axes.set_yticks(list(ticks.values()), map(shorten_label, ticks))
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="x")

    def _look(self, framework: str, axes: "Axes") -> dict[str, Any]:
        """Return the look of a framework's bars: a colour each, and beyond six also a hatch."""
        index = self.frameworks.index(framework)
        hatch = ("", "////", "....")[index // 6 % 3]
        return {"facecolor": f"C{index % 6}", "hatch": hatch, "edgecolor": axes.get_facecolor(), "lw": 0}


def _panel_height(panel: Mapping[str, Sequence[Bar]]) -> float:
    """Return how many bars high a panel is."""
    return sum(map(len, panel.values())) + _GAP * len(panel)
