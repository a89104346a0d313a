"""How a report's page looks: one column, system fonts, figures of equal width, readable on a telephone.

Light or dark, as the reader's system is; a print is light.
"""

# The plots are drawn in the light colours, for which the page puts these names (plots.py).
LIGHT = {
    "paper": "#ffffff",
    "ink": "#24292f",
    "soft": "#57606a",
    "rule": "#d0d7de",
    "tint": "#f6f8fa",
    "faster": "#0072b2",
    "slower": "#d55e00",
    "same": "#8a8f98",
    "warning": "#fff8e6",
    "edge": "#b35900",
    "across": "#953800",
}
DARK = {
    "paper": "#17191c",
    "ink": "#e6e8eb",
    "soft": "#a3abb5",
    "rule": "#3d444d",
    "tint": "#22262b",
    "faster": "#4aa8e0",
    "slower": "#f08a3c",
    "same": "#8a8f98",
    "warning": "#33270f",
    "edge": "#e09a3c",
    "across": "#f0a070",
}


def _declared(scheme: str, colours: dict[str, str]) -> str:
    names = " ".join(f"--{name}: {colour};" for name, colour in colours.items())
    return f":root {{ color-scheme: {scheme}; {names} }}"


_COLOURS = f"""
{_declared("light", LIGHT)}
@media screen and (prefers-color-scheme: dark) {{
  {_declared("dark", DARK)}
}}"""

STYLE = (
    _COLOURS
    + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1100px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .25rem; font-weight: 650; }
h2 { font-size: 1.25rem; margin: 0 0 .5rem; font-weight: 650; }
h3 { font-size: 1rem; margin: 1.75rem 0 .25rem; font-weight: 650; }
section { margin-top: 2.5rem; padding-top: 1.5rem; border-top: 1px solid var(--rule); }
p { margin: 0 0 .75rem; max-width: 44rem; }
.subtitle, .caption, .remarks { color: var(--soft); font-size: .875rem; }
.caption { margin: 1rem 0 .4rem; }
.lead { margin: 1.25rem 0; padding-left: 1.1rem; max-width: 44rem; }
.lead li { margin-bottom: .35rem; }
.remarks { margin: .5rem 0 1rem; padding-left: 1.1rem; max-width: 44rem; }
.warning { background: var(--warning); border-left: 4px solid var(--edge); padding: .6rem .9rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--faster); outline-offset: 2px; }
table {
  border-collapse: collapse; font-size: .8125rem; line-height: 1.4; font-variant-numeric: tabular-nums;
}
th, td {
  padding: .38rem .4rem; text-align: left; vertical-align: baseline; font-weight: 400;
  border-bottom: 1px solid var(--rule); overflow-wrap: normal;
}
thead th { color: var(--soft); vertical-align: bottom; border-bottom-color: var(--soft); }
thead .group { text-align: center; color: var(--ink); font-weight: 600; border-bottom-color: var(--rule); }
tbody th { min-width: 9.5rem; }
tbody tr:hover > * { background: var(--tint); }
.number { text-align: right; }
td { min-width: 8.25rem; overflow-wrap: anywhere; }
td.number { white-space: nowrap; min-width: 0; }
.across { color: var(--across); min-width: 15rem; }
code { font: .78rem ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; color: var(--soft); }
tbody th code { display: block; }
.plots {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.5rem 2.5rem;
}
figure { margin: .75rem 0; max-width: 31rem; break-inside: avoid; }
figcaption { font-size: .875rem; font-weight: 600; margin-bottom: .35rem; }
figure svg { display: block; width: 100%; height: auto; stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: inherit !important; font-variant-numeric: tabular-nums; }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--soft); font-size: .875rem; }
@media print {
  body { font-size: 11px; }
  main { max-width: none; padding: 0; }
  section { break-inside: auto; }
  table { font-size: 8.5px; }
  code { font-size: 8px; }
  th, td, tbody th, td.number { padding: .2rem .3rem; min-width: 0; }
  .scroll { overflow: visible; }
  tr, figure { break-inside: avoid; }
}
"""
)
