"""The pages: each link leads somewhere, and each command of this package parses."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
from support import ROOT

from ptb_lm import __main__ as commands
from ptb_lm.common import cli, flags

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("results/**/*.md"),
        ROOT / "data" / "README.md",
        ROOT / "checkpoints" / "README.md",
    ]
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    (?=\S).*$", re.MULTILINE)
SHELL = ("", "sh")
# The commands of a page, and scripts/train, which hands its arguments on.
COMMAND = re.compile(r"\b(?:python -m ptb_lm\.(\w+)(?: |$)|scripts/(train)(?= |$))(.*)")


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return INDENTED.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings: lower case, dashes for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in shown}


def broken_links(page: Path) -> Iterator[str]:
    """Yield the links and pictures of a page that lead nowhere; addresses on the web are not tried."""
    text = re.sub(r"`[^`\n]*`(?!\])", "", prose(page))
    for link in re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\s\"]+)", text):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n[a](#a-page) [b](#another) [`c`](none.md) [d](page.md#a-page) `[e](none.md)`\n"
        '<img src="none.svg">\n'
    )
    assert list(broken_links(page)) == ["#another", "none.md", "none.svg"]


def command_lines(page: Path) -> Iterator[str]:
    """Yield the lines of a page's blocks that a shell would run."""
    text = page.read_text(encoding="utf-8")
    for language, block in FENCED.findall(text):
        if language in SHELL:
            yield from block.splitlines()
    yield from (line.strip() for line in INDENTED.findall(FENCED.sub("", text)))


def split(line: str) -> tuple[str, list[str]] | None:
    """Return the command of this package on a line and its arguments, up to a pipe or a redirection."""
    if not (found := COMMAND.search(line)):
        return None
    rest = found[3]
    if rest.count("'") % 2:  # the command is itself in quotes, for another program to run
        rest = rest[: rest.rindex("'")]
    words = shlex.split(rest, comments=True)
    end = next((index for index, word in enumerate(words) if word in ("|", ">", "&&")), len(words))
    # What a variable of the shell holds is not known here.
    return found[1] or found[2], [word for word in words[:end] if not word.startswith("$")]


LINES = [
    pytest.param(*parts, id=f"{page.relative_to(ROOT)}: {line.partition('  ')[0]}")
    for page in PAGES
    for line in command_lines(page)
    if (parts := split(line)) and parts[0] in commands.COMMANDS
]


@pytest.mark.parametrize(("name", "arguments"), LINES)
def test_each_command_parses(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoints" / "try").mkdir(parents=True)  # the tutorial makes it first
    monkeypatch.chdir(tmp_path)
    runs.check_parses(commands, [name, *arguments], monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_flag_in_a_sentence_is_known(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence may leave arguments out, so that its commands are not parsed whole."""
    text = " ".join(prose(page).split())
    for code in re.findall(r"`([^`]+)`", text):
        if not (parts := split(code)) or parts[0] not in commands.COMMANDS:
            continue
        name, arguments = parts

        def check(parser: cli.Parser, *_: object, arguments: list[str] = arguments, code: str = code) -> None:
            assert flags.unknown_flags(parser, arguments) == [], code
            raise runs.ParsedError

        with monkeypatch.context() as patch:
            patch.setattr(cli.Parser, "parse_args", check)
            with pytest.raises(runs.ParsedError):
                commands.main([name, *arguments])


def test_a_command_that_does_not_parse_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert split("cat FILE | python -m ptb_lm.score RUN - > out  # why") == ("score", ["RUN", "-"])
    assert split("scripts/train $TEXT --config medium") == ("train", ["--config", "medium"])
    with pytest.raises(SystemExit):
        commands.main(["train", "--confg", "medium"])
    assert "did you mean --config" in capsys.readouterr().err
