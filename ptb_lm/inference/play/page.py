"""The page as HTML: no script and nothing from elsewhere, so that a browser with nothing allowed shows it."""

import itertools
from dataclasses import dataclass
from html import escape

from ptb_lm.data.vocabulary import EOS
from ptb_lm.inference.play.reading import Continuation, ReadWord, perplexity, sentences
from ptb_lm.inference.scoring import format_perplexity

# Where a word's colour changes, in bits: each is twice as unlikely as one of a bit less.
BOUNDS = (2, 4, 6, 8, 10, 13)
# Light backgrounds for dark text, dark ones for light text; the more orange, the more surprising.
LIGHT = ("#ffffff", "#fff1dc", "#ffe0b3", "#ffcb85", "#ffb35c", "#ff9a3d", "#f98327")
DARK = ("#17191c", "#33261a", "#4a2f16", "#623813", "#7a3f0e", "#8f460a", "#a34c05")
TEXT = {"light": "#1a1a1a", "dark": "#f2f2f2"}

OPENING = (
    '<p class="faint">The model wrote this sentence. Change a word and read it again, or type a text of your '
    "own.</p>"
)

_STYLE = """
:root { color-scheme: light dark; --text: TEXT_LIGHT; --back: #ffffff; --page: #f4f2ee; --line: #d8d4cc;
  --faint: #595959; --accent: #a34c05; --on-accent: #ffffff; --wrong: #a40000; }
@media (prefers-color-scheme: dark) {
  :root { --text: TEXT_DARK; --back: #17191c; --page: #0e0f11; --line: #3a3e44; --faint: #b3b3b3;
    --accent: #ffb35c; --on-accent: #1a1a1a; --wrong: #ff9a8f; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 0 auto;
  padding: 1.5rem 1rem 3rem; max-width: 56rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
section { background: var(--back); border: 1px solid var(--line); border-radius: 12px; margin-top: 1.25rem;
  padding: 1.1rem 1.25rem; }
p { margin: .5rem 0; } .faint { color: var(--faint); } .wrong { color: var(--wrong); font-weight: 600; }
textarea, input, button { font: inherit; color: inherit; background: var(--back);
  border: 1px solid var(--line); border-radius: 8px; padding: .45rem .65rem; }
textarea:focus, input:focus { outline: 2px solid var(--accent); outline-offset: -1px; }
textarea { width: 100%; resize: vertical; } input { width: 5rem; }
label { margin: .2rem 1rem .2rem 0; display: inline-block; }
button { cursor: pointer; background: var(--accent); color: var(--on-accent); border-color: var(--accent);
  font-weight: 600; padding: .45rem 1.2rem; }
.words { font-size: 1.15rem; line-height: 2.3; overflow-wrap: anywhere; margin-top: 1rem; }
.word { padding: .15rem .4rem; border-radius: 6px; }
.word small { color: inherit; font-size: .7em; margin-left: .3rem; }
.unknown { text-decoration: underline dotted; } .legend { font-size: .85rem; line-height: 2; }
.legend .word { white-space: nowrap; }
.perplexity { font-size: 1.15rem; } .scroll { overflow-x: auto; margin-top: .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
td, th { text-align: left; padding: .3rem .8rem .3rem 0; border-top: 1px solid var(--line);
  vertical-align: top; }
th { border-top: 0; color: var(--faint); font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.written { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 4px solid var(--accent);
  padding-left: .9rem; margin-top: 1rem; font-size: 1.1rem; }
"""


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """A form as it was typed, and the answer to it; a field that does not apply is None.

    Attributes:
        text: The text to read, as it was typed.
        prompt: The prompt to continue.
        length: The number of words, as it was typed.
        temperature: The temperature, as it was typed.
        words: The text's words, as they were read.
        continuation: The prompt with the words that follow it.
        problem: A sentence about an error in the form that has `text` or, if `is_prompt`, in the other.
        is_prompt: True if the form with the prompt was sent.
        is_opening: True if nobody typed it: the server's `use` chose the text.
    """

    text: str = ""
    prompt: str = ""
    length: str = "40"
    temperature: str = "0.8"
    words: list[ReadWord] | None = None
    continuation: Continuation | None = None
    problem: str = ""
    is_prompt: bool = False
    is_opening: bool = False


def write_page(answer: PageContent, *, model: str) -> str:
    """Return the page.

    Args:
        answer: The content of the page.
        model: A line that says which model answers.
    """
    problem = f'<p class="wrong" role="alert">{escape(answer.problem)}</p>' if answer.problem else ""
    read = _read(answer.words) if answer.words else ""
    opening = OPENING if answer.is_opening else ""
    continuation = _continuation(answer.continuation) if answer.continuation else ""
    if answer.is_prompt:
        continuation = problem or continuation
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
<section>
<h2>How surprised is it?</h2>
<form method="post" action="/read">
<p><label for="text">A text, which is read from its beginning; each line ends in {escape(EOS)}:</label></p>
<p><textarea id="text" name="text" rows="3" autofocus>\n{escape(answer.text)}</textarea></p>
{opening}
<p><button>Read</button></p>
</form>
{read}
</section>
<section>
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
{continuation}
</section>
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
    rest = ""
    if unknown:
        rest = f"; {unknown} not in the vocabulary, underlined, and read as &lt;unk&gt;"
    value = format_perplexity(perplexity(words), digits=1)
    return f"""<p class="words">{flow}</p>
<p class="perplexity">Perplexity {value} ({len(words)} words, each {escape(EOS)} among them{rest}).</p>
<p class="legend">{_legend()}</p>
<div class="scroll"><table>
<thead><tr><th>word</th><th class="number">bits</th><th>the likeliest words in its place</th></tr></thead>
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


def _continuation(continuation: Continuation) -> str:
    first, *others = sentences(continuation.words, continuation.treatment)
    prompt = continuation.prompt
    space = continuation.treatment.gap if prompt and first and not prompt[-1].isspace() else ""
    written = "\n".join([f"<strong>{escape(prompt)}</strong>{space}{escape(first)}", *map(escape, others)])
    unknown = ""
    if continuation.unknown:
        words = escape(", ".join(continuation.unknown))
        unknown = f'<p class="faint">Not in the vocabulary, and read as &lt;unk&gt;: {words}.</p>'
    return f'<p class="written">{written}</p>{unknown}'
