"""The report's page, opened in a real browser."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import browser
import pytest
from bench_rows import ACOUSTIC, EVIL, PTB, STACKED_SPEEDS, rich, rounds, write

from ptb_lm.bench.reporting.report import write_report
from ptb_lm.pages import plots
from ptb_lm.pages.bars import Bar, BarPlot

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib", reason="the page's plots need matplotlib")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = browser.start(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def run(plain_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(plain_run, tmp_path_factory.mktemp("run") / "a <b>run"))


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the page of a benchmark in which everything happens that may."""
    folder = write(tmp_path_factory.mktemp("page"), rich())
    write_report(folder, runs=[run])
    return folder


@pytest.fixture(scope="module")
def page(driver: Any, folder: Path) -> Any:
    """The browser, with this page."""
    driver.get((folder / "report.html").as_uri())
    return driver


# Ends when each picture is that of the emulated medium, which the browser chooses a little later.
PICTURES_FOLLOW = """
    return Promise.all([...document.querySelectorAll("picture")].map(async picture => {
        const image = picture.querySelector("img"), source = picture.querySelector("source");
        const chosen = () => matchMedia(source.media).matches ? source.srcset : image.src;
        while (image.currentSrc !== chosen()) await new Promise(wake => setTimeout(wake, 10));
    }));
"""


def resize(page: Any, width: int, *, media: str = "screen", scheme: str = "light") -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    page.execute_script(PICTURES_FOLLOW)


def rows_of(page: Any, title: str) -> dict[str, list[str]]:
    """Return the cells of a section's first table by the variant in their row's heading."""
    script = """
        const head = [...document.querySelectorAll("h2")].find(each => each.textContent === arguments[0]);
        const table = [...document.querySelectorAll("table")].find(
            each => head.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING);
        return [...table.tBodies[0].rows].map(
            row => [row.querySelector("th code").textContent, ...[...row.cells].map(c => c.innerText)]);
    """
    return {name: cells for name, *cells in page.execute_script(script, title)}


def test_every_row_is_there(page: Any) -> None:
    small = rows_of(page, "ptb: small")
    assert small.keys() == {*PTB, "mine/custom", "mine/wrong"}
    for variant, speed in PTB.items():
        assert float(small[variant][2].split()[0]) == pytest.approx(speed, rel=0.05)
    assert small["mine/wrong"][1:] == ["wrong: its gradient is off by 0.03"], "one cell across"
    assert rows_of(page, "stacked-lm: 3x256").keys() == {*STACKED_SPEEDS, "torch/block/jit"}
    assert rows_of(page, "acoustic: 1x320-CE-short").keys() == ACOUSTIC.keys()


def test_markup_in_a_label_stays_text(page: Any) -> None:
    custom = rows_of(page, "ptb: small")["mine/custom"]
    assert custom[0].startswith(f"Mine {EVIL}")
    assert custom[1] == f"failed: {EVIL}"
    assert rows_of(page, "Learning curves").keys() == {"a <b>run"}
    assert page.execute_script("return document.querySelectorAll('script, main b').length") == 0


PLOTS = """
    return Promise.all([...document.querySelectorAll("figure")].map(async figure => {
        const image = figure.querySelector("img");
        await image.decode();
        const name = atob(image.currentSrc.split(",")[1]);
        return [figure.querySelector("figcaption").textContent, image.alt, image.clientWidth,
                image.clientHeight, decodeURIComponent(escape(name))];
    }));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_is_drawn_in_the_colours_of_the_page(scheme: str, page: Any) -> None:
    resize(page, 1000, scheme=scheme)
    drawn = page.execute_script(PLOTS)
    resize(page, 1000)
    titles = [title for title, *_ in drawn]
    assert titles[0].startswith("Words and sequences per second"), "the answer comes first"
    baselines = ("tensorflow/basic", "torch/basic/eager", "torch/basic/eager", "torch/basic")
    assert [title.partition(",")[0] for title in titles[1:-1:2]] == [
        f"Speed-up over {baseline}" for baseline in baselines
    ]
    assert ["GEMM" in title for title in titles[2:-1:2]] == [True] * 4
    assert titles[-1] == "a <b>run"
    for title, alternative, width, height, svg in drawn:
        assert alternative == title
        assert width > 300
        assert height > 150
        assert style_of(scheme)["text.color"].lower() in svg
        assert style_of("dark" if scheme == "light" else "light")["text.color"].lower() not in svg
    texts = {
        text.text for text in ElementTree.fromstring(drawn[1][-1]).iter("{http://www.w3.org/2000/svg}text")
    }
    assert {*PTB} <= texts


def style_of(scheme: str) -> dict[str, Any]:
    """matplotlib's settings for plots on a paper, colours as #rrggbb."""
    from matplotlib import colors, rcParams, style

    with style.context(plots.style_sheets(scheme)):
        names = ("text.color", "axes.facecolor", "axes.edgecolor")
        cycle = [each["color"] for each in rcParams["axes.prop_cycle"]]
        known = {
            **{name: rcParams[name] for name in names},
            **{f"C{n}": each for n, each in enumerate(cycle)},
        }
        return {name: colors.to_hex(colour) for name, colour in known.items()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_and_texts_of_plots_have_contrast(scheme: str, page: Any) -> None:
    """The contrast of WCAG 2 is at least 4.5 for a text and 3 for bars, curves and their edges."""
    colours = style_of(scheme)
    paper = colours["axes.facecolor"]
    resize(page, 1000, scheme=scheme)
    behind = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    resize(page, 1000)
    assert rgb(paper) == numbers(behind)
    assert contrast(rgb(colours["text.color"]), rgb(paper)) >= 4.5
    assert all(contrast(rgb(colours[name]), rgb(paper)) >= 3 for name in ("C0", "C1", "C6"))


def test_a_bar_is_as_long_as_its_ratio_says() -> None:
    """The axis is logarithmic, as the ratios lie far apart; a bar begins at 1."""
    from matplotlib.figure import Figure

    figure = Figure()
    bars = [
        Bar(label=name, value=speed, text="", ends=(0.9 * speed, 1.1 * speed)) for name, speed in PTB.items()
    ]
    BarPlot(title="", bars=bars, origin=1).draw(figure)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert [*map(sorted, ends)] == [pytest.approx(sorted((1, speed))) for speed in PTB.values()]
    whiskers = [[x for x, _ in path.vertices] for lines in axes.collections for path in lines.get_paths()]
    assert whiskers == [pytest.approx([0.9 * speed, 1.1 * speed]) for speed in PTB.values()]


# A4 without its margins is 718 wide.
@pytest.mark.parametrize(
    ("width", "media", "unfolded"),
    [(400, "screen", "true"), (900, "screen", "true"), (1000, "screen", "true"), (718, "print", "false")],
)
def test_nothing_is_wider_than_the_page(width: int, media: str, unfolded: str, page: Any) -> None:
    resize(page, width, media=media)
    page.execute_script(f"document.querySelectorAll('details').forEach(each => each.open = {unfolded})")
    inner, scroll = page.execute_script(
        "const root = document.documentElement; return [root.clientWidth, root.scrollWidth]"
    )
    assert scroll <= inner
    widths = page.execute_script("return [...document.querySelectorAll('img')].map(e => e.clientWidth)")
    resize(page, 1000)
    assert min(widths) > 0.8 * min(inner, 420), "readable on a telephone"


def test_the_ratios_are_in_sight_at_1000_pixels(page: Any) -> None:
    """Only tables of details may need scrolling sideways."""
    resize(page, 1000)
    wide = page.execute_script("""
        return [...document.querySelectorAll(".scroll")].filter(
            box => !box.closest("details") && box.scrollWidth > box.clientWidth).map(box => box.innerText);
    """)
    assert wide == []


# A row for each visible text: the text, its colour, and the colour behind it.
TEXTS = """
    const behind = each => {
        for (let at = each; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (colour !== "rgba(0, 0, 0, 0)") return colour;
        }
        return "none";
    };
    const own = each => [...each.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join("").trim();
    const seen = [...document.querySelectorAll("main *")].filter(e => own(e) && e.getClientRects().length);
    return seen.map(
        each => [own(each), getComputedStyle(each).color, behind(each)]);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(scheme: str, page: Any) -> None:
    """The contrast of WCAG 2 is at least 4.5, in both modes."""
    resize(page, 1000, scheme=scheme)
    page.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    texts = page.execute_script(TEXTS)
    page.execute_script("document.querySelectorAll('details').forEach(each => each.open = false)")
    resize(page, 1000)
    assert (luminance(numbers(texts[0][2])) < 0.05) == (scheme == "dark")
    assert len({colour for _, colour, _ in texts}) >= 3
    assert [text for text in texts if contrast(numbers(text[1]), numbers(text[2])) < 4.5] == []


def test_a_print_is_light(page: Any) -> None:
    resize(page, 718, media="print", scheme="dark")
    texts = page.execute_script(TEXTS)
    sources = page.execute_script(
        "return [...document.querySelectorAll('img')].map(e => e.currentSrc == e.src)"
    )
    resize(page, 1000)
    assert {luminance(numbers(paper)) > 0.9 for _, _, paper in texts} == {True}
    assert all(sources)


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: tuple[int, ...]) -> float:
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def numbers(colour: str) -> tuple[int, ...]:
    """The parts of a colour that a browser names."""
    return tuple(int(part) for part in re.findall(r"\d+", colour)[:3])


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def test_details_unfold(page: Any) -> None:
    resize(page, 1000)
    details = page.find_elements("css selector", "details")[1]
    page.execute_script("arguments[0].open = false", details)
    table = details.find_element("css selector", "table")
    assert not table.is_displayed()
    details.find_element("css selector", "summary").click()
    assert table.is_displayed()
    assert "5 processes" in table.text


def test_no_request_leaves_the_page_and_nothing_is_complained_of(page: Any) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').map(each => each.name)") == []
    assert page.get_log("browser") == []


def test_the_same_rows_make_the_same_page(run: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        write_report(write(tmp_path / name, rounds(PTB)), runs=[run])
        pages.append((tmp_path / name / "report.html").read_bytes())
    assert pages[0] == pages[1]
