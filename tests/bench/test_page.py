"""The report's page, opened in a real browser."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
from bench_rows import ACOUSTIC, EVIL, PTB, STACKED_SPEEDS, rich, write

from ptb_lm.bench.reporting import page_style
from ptb_lm.bench.reporting.report import write_report

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib", reason="the page's plots need matplotlib")
webdriver = pytest.importorskip("selenium.webdriver", reason="the page is opened through selenium")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The browser, with the page of a benchmark in which everything happens that may."""
    folder = tmp_path_factory.mktemp("page")
    run = runs.train_run(runs.write_corpus(folder / "data"), folder / "a <b>run")
    write_report(write(folder / "out", rich()), runs=[run])
    driver.get((folder / "out" / "report.html").as_uri())
    return driver


def resize(page: Any, width: int, *, media: str = "screen", scheme: str = "light") -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def rows_of(page: Any, title: str) -> dict[str, list[str]]:
    """Return the cells of a section's first table by the variant in their row's heading."""
    script = """
        const section = [...document.querySelectorAll("section")].find(
            each => each.querySelector("h2").textContent === arguments[0]);
        return [...section.querySelector("table").tBodies[0].rows].map(
            row => [row.cells[0].querySelector("code").textContent, ...[...row.cells].map(c => c.innerText)]);
    """
    return {name: cells for name, *cells in page.execute_script(script, title)}


def test_every_row_is_there(page: Any) -> None:
    small = rows_of(page, "ptb: small")
    assert small.keys() == {*PTB, "mine/custom", "mine/wrong"}
    for variant, speed in PTB.items():
        assert float(small[variant][2]) == pytest.approx(speed, rel=0.05)
    assert small["mine/wrong"][1:] == ["wrong: its gradient is off by 0.03"]
    stacked = rows_of(page, "stacked-lm: 3x256")
    assert stacked.keys() == {*STACKED_SPEEDS, "torch/block/jit"}
    # Those that are in sight: others are in details, which are closed.
    script = "return [...document.querySelectorAll('.remarks')].map(e => e.innerText).filter(text => text)"
    remarks = page.execute_script(script)
    assert "not available here, tensorflow/block/xla: XLA cannot compile LSTMBlockCell" in remarks[0]
    assert "not available here, tensorflow/cudnn: needs a GPU" in remarks[1]
    assert rows_of(page, "acoustic: 1x320-CE-short").keys() == ACOUSTIC.keys()


def test_what_a_label_holds_stays_text(page: Any) -> None:
    custom = rows_of(page, "ptb: small")["mine/custom"]
    assert custom[0].startswith(f"Mine {EVIL}")
    assert custom[1] == f"failed: {EVIL}"
    assert rows_of(page, "Learning curves").keys() == {"a <b>run"}
    assert page.execute_script("return document.querySelectorAll('script, main b').length") == 0


def test_every_plot_is_drawn(page: Any) -> None:
    resize(page, 1000)
    plots = page.execute_script("""
        return [...document.querySelectorAll("figure")].map(figure => {
            const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
            return [figure.querySelector("figcaption").textContent, svg.querySelector("title").textContent,
                    box.width, box.height, svg.querySelectorAll("path").length, svg.textContent];
        });
    """)
    titles = [plot[0] for plot in plots]
    assert titles == [
        "Speed-up over tensorflow/basic",
        "Fraction of the GEMM rate",
        "Speed-up over torch/basic/eager, forward",
        "Fraction of the GEMM rate, forward",
        "Speed-up over torch/basic/eager, train",
        "Fraction of the GEMM rate, train",
        "Speed-up over torch/basic",
        "Fraction of the GEMM rate",
        "small, torch cudnn (a <b>run)",
    ]
    for caption, title, width, height, paths, _ in plots:
        assert caption == title
        assert width > 300
        assert height > 150
        assert paths > 5
    for variant in PTB:
        assert variant in plots[0][5]
    assert "perplexity" in plots[-1][5]


def test_a_bar_is_as_long_as_its_ratio_says(page: Any) -> None:
    """The axis is logarithmic: from the baseline's mark, lengths are in proportion to the log ratios."""
    resize(page, 1000)
    bars = page.execute_script("""
        const bars = [...document.querySelector("figure svg").querySelectorAll("path")].filter(
            path => ["rgb(0, 114, 178)", "rgb(213, 94, 0)"].includes(getComputedStyle(path).fill));
        return bars.map(bar => bar.getBoundingClientRect().width);
    """)
    expected = sorted((speed for speed in PTB.values() if speed != 1), reverse=True)
    lengths = [abs(float(page.execute_script("return Math.log(arguments[0])", speed))) for speed in expected]
    scale = bars[-1] / lengths[-1]
    assert [length / scale for length in bars] == pytest.approx(lengths, abs=0.06)


@pytest.mark.parametrize("width", [400, 900, 1000])
def test_nothing_is_wider_than_the_page(width: int, page: Any) -> None:
    resize(page, width)
    page.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    inner, scroll = page.execute_script(
        "const root = document.documentElement; return [root.clientWidth, root.scrollWidth]"
    )
    assert scroll <= inner
    texts = page.execute_script("""
        return [...document.querySelectorAll("figure svg text")].map(
            text => [text.textContent, text.getBoundingClientRect()]);
    """)
    assert [text for text, box in texts if box["height"] < 9] == [], "readable on a telephone"
    assert [text for text, box in texts if box["right"] > inner or box["left"] < 0] == []


def test_the_ratios_are_in_sight_at_1000_pixels(page: Any) -> None:
    """Only tables of details may need scrolling sideways."""
    resize(page, 1000)
    wide = page.execute_script("""
        return [...document.querySelectorAll(".scroll")].filter(
            box => !box.closest("details") && box.scrollWidth > box.clientWidth).map(box => box.innerText);
    """)
    assert wide == []


def test_a_print_loses_nothing(page: Any) -> None:
    resize(page, 718, media="print")  # A4 without its margins
    main = page.execute_script("""
        document.querySelectorAll('details').forEach(each => each.open = false);
        return [document.documentElement.clientWidth, document.documentElement.scrollWidth];
    """)
    resize(page, 1000)
    assert main[1] <= main[0]


# Of each visible text: what it says, its colour, and the colour that is behind it.
TEXTS = """
    const behind = each => {
        for (let at = each; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (colour !== "rgba(0, 0, 0, 0)") return colour;
        }
        return "none";
    };
    const own = each => [...each.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join("").trim();
    return [...document.querySelectorAll("main *")].filter(
        each => own(each) && each.getClientRects().length && !["title", "desc"].includes(each.localName)
    ).map(each => [own(each), getComputedStyle(each)[each.closest("svg") ? "fill" : "color"], behind(each)]);
"""
# What is drawn: bars, lines and their edges.
SHAPES = """
    const drawn = [...document.querySelectorAll("figure svg path, figure svg use")];
    return drawn.filter(each => !each.closest("defs")).flatMap(each => {
        const style = getComputedStyle(each);
        return [style.fill, style.stroke];
    });
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read(scheme: str, page: Any) -> None:
    """The contrast of WCAG 2 is at least 4.5 for a text and 3 for what is drawn, in both modes."""
    resize(page, 1000, scheme=scheme)
    page.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    texts = page.execute_script(TEXTS)
    shapes = {shape for shape in page.execute_script(SHAPES) if shape.startswith("rgb")}
    page.execute_script("document.querySelectorAll('details').forEach(each => each.open = false)")
    resize(page, 1000)
    paper = texts[0][2]
    assert (luminance(paper) < 0.05) == (scheme == "dark")
    assert len({colour for _, colour, _ in texts}) >= 3
    assert [text for text in texts if contrast(text[1], text[2]) < 4.5] == []
    drawn = page_style.DARK if scheme == "dark" else page_style.LIGHT
    seen = {name for name, colour in drawn.items() if rgb(colour) in {numbers(shape) for shape in shapes}}
    assert {"faster", "slower", "same", "ink", "rule", "paper"} <= seen
    assert {numbers(shape) for shape in shapes} <= {rgb(colour) for colour in drawn.values()}
    for name in ("faster", "slower", "same", "ink"):
        assert contrast(f"rgb{rgb(drawn[name])}", paper) >= 3, name


def test_a_print_is_light(page: Any) -> None:
    resize(page, 718, media="print", scheme="dark")
    texts = page.execute_script(TEXTS)
    resize(page, 1000)
    assert {numbers(paper) for _, _, paper in texts} <= {
        rgb(page_style.LIGHT[n]) for n in ("paper", "warning")
    }


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [part / 255 for part in numbers(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def numbers(colour: str) -> tuple[int, ...]:
    """The parts of a colour that a browser names."""
    return tuple(int(part) for part in re.findall(r"\d+", colour)[:3])


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def test_details_unfold(page: Any) -> None:
    resize(page, 1000)
    details = page.find_element("css selector", "details")
    page.execute_script("arguments[0].open = false", details)
    table = details.find_element("css selector", "table")
    assert not table.is_displayed()
    details.find_element("css selector", "summary").click()
    assert table.is_displayed()
    assert "5 processes" in table.text


def test_ids_are_unique_and_references_lead_to_them(page: Any) -> None:
    ids, references = page.execute_script(r"""
        const all = [...document.querySelectorAll("*")];
        const links = all.flatMap(each => [...each.attributes].flatMap(
            a => [...a.value.matchAll(/url\(#([^)]+)\)/g)].map(m => m[1]).concat(
                a.localName === "href" && a.value.startsWith("#") ? [a.value.slice(1)] : [])));
        return [all.map(each => each.id).filter(id => id), links];
    """)
    assert len(ids) == len(set(ids))
    assert references
    assert set(references) <= set(ids)


def test_no_request_leaves_the_page_and_nothing_is_complained_of(page: Any) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').map(each => each.name)") == []
    assert page.get_log("browser") == []


def test_the_same_rows_make_the_same_page(tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        write_report(write(tmp_path / name, rich()))
        pages.append((tmp_path / name / "report.html").read_bytes())
    assert pages[0] == pages[1]
