"""The page as HTML: no script and nothing from elsewhere, so that a browser with nothing allowed shows it."""

import itertools
from dataclasses import dataclass
from html import escape

from ptb_lm.data.vocabulary import EOS
from ptb_lm.inference.play.reading import Continued, ReadWord, perplexity, sentences
from ptb_lm.inference.sentences import shown as shown_perplexity

# Where a word's colour changes, in bits: each is twice as unlikely as one of a bit less.
BOUNDS = (2, 4, 6, 8, 10, 13)
# Light backgrounds for dark text, dark ones for light text; the more orange, the more surprising.
LIGHT = ("#ffffff", "#fff1dc", "#ffe0b3", "#ffcb85", "#ffb35c", "#ff9a3d", "#f98327")
DARK = ("#17191c", "#33261a", "#4a2f16", "#623813", "#7a3f0e", "#8f460a", "#a34c05")
TEXT = {"light": "#1a1a1a", "dark": "#f2f2f2"}

_STYLE = """
:root { color-scheme: light dark; --text: TEXT_LIGHT; --back: #ffffff; --line: #c9c9c9; --faint: #595959;
  --wrong: #a40000; }
@media (prefers-color-scheme: dark) {
  :root { --text: TEXT_DARK; --back: #17191c; --line: #4b4f55; --faint: #b3b3b3; --wrong: #ff9a8f; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  padding: 1rem; max-width: 60rem; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; } .faint { color: var(--faint); } .wrong { color: var(--wrong); font-weight: 600; }
textarea, input, button { font: inherit; color: inherit; background: var(--back);
  border: 1px solid var(--line); border-radius: 4px; padding: .35rem .5rem; }
textarea { width: 100%; } input { width: 6rem; } label { margin-right: 1rem; } button { cursor: pointer; }
.words { line-height: 2.4; overflow-wrap: anywhere; }
.word { padding: .15rem .3rem; border-radius: 3px; } .word small { color: inherit; margin-left: .25rem; }
.unknown { text-decoration: underline dotted; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .15rem .6rem .15rem .3rem;
  border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.written { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid var(--line);
  padding-left: .7rem; }
"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was typed and what came of it; a field that does not apply is None.

    Attributes:
        text: The text to read, as it was typed.
        prompt: The prompt to continue.
        length: How many words, as it was typed.
        temperature: Likewise.
        words: The text's words, as they were read.
        continued: The prompt with what followed.
        problem: What was wrong, a sentence; of the form that has `text` or, if `of_prompt`, of the other.
        of_prompt: Which form was sent.
    """

    text: str = ""
    prompt: str = ""
    length: str = "40"
    temperature: str = "0.8"
    words: list[ReadWord] | None = None
    continued: Continued | None = None
    problem: str = ""
    of_prompt: bool = False


def page(answer: Answer, *, model: str) -> str:
    """Return the page.

    Args:
        answer: What it shows.
        model: A line that says which model answers.
    """
    problem = f'<p class="wrong" role="alert">{escape(answer.problem)}</p>' if answer.problem else ""
    read = _read(answer.words) if answer.words else ""
    continued = _continued(answer.continued) if answer.continued else ""
    if answer.of_prompt:
        continued = problem or continued
    else:
        read = problem or read
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ptb_lm: a language model to play with</title>
<link rel="icon" href="data:,">
<style>{_style()}</style>
</head>
<body>
<main>
<h1>A language model to play with</h1>
<p class="faint">{escape(model)}</p>
<h2>How surprised is it?</h2>
<form method="post" action="/read">
<p><label for="text">A text, which is read from its beginning; each line ends in {escape(EOS)}:</label></p>
<p><textarea id="text" name="text" rows="3" autofocus>\n{escape(answer.text)}</textarea></p>
<p><button>Read</button></p>
</form>
{read}
<h2>Continue a text</h2>
<form method="post" action="/continue">
<p><label for="prompt">A prompt, or nothing:</label></p>
<p><textarea id="prompt" name="prompt" rows="2">\n{escape(answer.prompt)}</textarea></p>
<p><label>words <input name="length" inputmode="numeric" value="{escape(answer.length)}"></label>
<label>temperature <input name="temperature" inputmode="decimal" value="{escape(answer.temperature)}"></label>
<button>Continue</button></p>
<p class="faint">At a temperature of 1 words come as often as the model says, below 1 likely ones more
often, at 0 always the likeliest.</p>
</form>
{continued}
</main>
</body>
</html>
"""


def shade(bits: float) -> int:
    """Return the number of a surprise's colour, 0 for the least."""
    return sum(bits >= bound for bound in BOUNDS)


def _style() -> str:
    light = "".join(f".s{number} {{ background: {colour}; }}\n" for number, colour in enumerate(LIGHT))
    dark = "".join(f".s{number} {{ background: {colour}; }}\n" for number, colour in enumerate(DARK))
    style = _STYLE.replace("TEXT_LIGHT", TEXT["light"]).replace("TEXT_DARK", TEXT["dark"])
    return f"{style}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _read(words: list[ReadWord]) -> str:
    flow = "".join(_word(word) + ("<br>" if word.word == EOS else " ") for word in words)
    rows = "".join(_row(word) for word in words)
    unknown = len({word.word for word in words if word.unknown})
    missed = ""
    if unknown:
        missed = f"; {unknown} not in the vocabulary, underlined, and read as &lt;unk&gt;"
    found = shown_perplexity(perplexity(words), digits=1)
    return f"""<p class="words">{flow}</p>
<p>Perplexity {found} ({len(words)} words, each {escape(EOS)} among them{missed}).</p>
<p>{_legend()}</p>
<div class="scroll"><table>
<thead><tr><th>word</th><th>bits</th><th>the likeliest words in its place</th></tr></thead>
<tbody>{rows}</tbody>
</table></div>"""


def _word(word: ReadWord) -> str:
    unknown = " unknown" if word.unknown else ""
    shown = f"{escape(word.word)}<small>{word.bits:.1f}</small>"
    return f'<span class="word s{shade(word.bits)}{unknown}">{shown}</span>'


def _row(word: ReadWord) -> str:
    likeliest = ", ".join(
        f"{'<strong>' * same}{escape(each.word)}{'</strong>' * same} {100 * each.probability:.1f}&nbsp;%"
        for each in word.likeliest
        for same in (each.word == word.word,)
    )
    return (
        f'<tr><td><span class="word s{shade(word.bits)}">{escape(word.word)}</span></td>'
        f'<td class="number">{word.bits:.1f}</td><td>{likeliest}</td></tr>'
    )


def _legend() -> str:
    edges = [f"below {BOUNDS[0]}"]
    edges += [f"{low} to {high}" for low, high in itertools.pairwise(BOUNDS)]
    edges.append(f"{BOUNDS[-1]} and more")
    scale = " ".join(f'<span class="word s{number}">{text}</span>' for number, text in enumerate(edges))
    return f"Surprise in bits: {scale}"


def _continued(continued: Continued) -> str:
    first, *others = sentences(continued.words, continued.treatment)
    space = (
        continued.treatment.gap if continued.prompt and first and not continued.prompt[-1].isspace() else ""
    )
    written = "\n".join(
        [f"<strong>{escape(continued.prompt)}</strong>{space}{escape(first)}", *map(escape, others)]
    )
    unknown = ""
    if continued.unknown:
        words = escape(", ".join(continued.unknown))
        unknown = f'<p class="faint">Not in the vocabulary, and read as &lt;unk&gt;: {words}.</p>'
    return f'<p class="written">{written}</p>{unknown}'
