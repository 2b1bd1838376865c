"""The report's page: escaping, tables, charts and the style they share, in one file without links.

Text is escaped unless it is `Html`, so what users name their kernels can never become markup.
"""

import html
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from foretune.replacing import replacing


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return ``text`` as markup that shows it."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(str(text)).replace(" %", "&nbsp;%"))  # no line starts with a %


def element(tag: str, *parts: object, **attributes: object) -> Html:
    """Return an element; ``class_`` and ``data_label`` become ``class`` and ``data-label``."""
    named = "".join(
        f' {name.strip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{named}>{join(parts)}</{tag}>")


def join(parts: Iterable[object], separator: str = "") -> Html:
    """Return the escaped ``parts`` one after the other."""
    return Html(separator.join(map(escape, parts)))


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page to ``path`` in one step, all or nothing, and return it.

    Raises:
        OutputError: the file cannot be written.
    """
    with replacing(path, what="the report ") as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def section(anchor: str, title: str, *parts: object) -> Html:
    """Return a section with its heading."""
    heading = element("h2", title, id=f"{anchor}-title")
    return element("section", heading, *parts, id=anchor, aria_labelledby=f"{anchor}-title")


def table(
    caption: str, headings: Sequence[object], groups: Iterable[Iterable[Html]], class_: str = ""
) -> Html:
    """Return a table that scrolls sideways, also by keyboard, where the screen is too narrow.

    Args:
        caption: what it shows, for those who cannot see it.
        headings: of the columns; none where every row explains itself.
        groups: rows that belong together, see `row`.
        class_: for the style.
    """
    head = element("thead", row(headings, heading="col")) if headings else ""
    bodies = (element("tbody", *rows) for rows in groups)
    name = element("caption", caption, class_="unseen")
    inner = element("table", name, head, *bodies, class_=class_ or None)
    return element("div", inner, class_="scroll", role="region", tabindex=0, aria_label=caption)


def row(
    cells: Sequence[object],
    heading: str = "row",
    labels: Sequence[str] = (),
    class_: str | None = None,
) -> Html:
    """Return a table row: the first cell, or with ``heading="col"`` every cell, is a heading.

    ``labels`` name the cells where a narrow screen shows them one below the other.
    """
    parts = []
    for i, cell in enumerate(cells):
        if heading == "col" or i == 0:
            parts.append(element("th", cell, scope=heading))
        else:
            parts.append(element("td", cell, data_label=labels[i] if labels else None))
    return element("tr", *parts, class_=class_)


def chart(
    title: object, figure: dict[str, Any], summary: str, *below: object, class_: str | None = None
) -> Html:
    """Return a Plotly figure with its title and, for those who cannot see it, its summary."""
    plain = json.dumps(_finite(figure), ensure_ascii=False, separators=(",", ":"))
    plain = plain.replace("<", "\\u003c")  # so that no text in it can end the script
    return element(
        "figure",
        element("figcaption", title),
        element("div", class_="plot", role="img", aria_label=summary,
                style=f"height:{figure['layout']['height']}px"),
        Html(f'<script type="application/json">{plain}</script>'),
        *below,
        class_=class_,
    )  # fmt: skip


def page(
    title: str, header: Html, sections: Iterable[Html], links: Iterable[tuple[str, str]] = ()
) -> str:
    """Return the whole document; ``links`` are the sections' anchors and names, if any."""
    from plotly.offline import get_plotlyjs

    anchors = [element("a", text, href=f"#{anchor}") for anchor, text in links]
    nav = element("nav", *anchors, aria_label="Sections") if anchors else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{element("header", header, nav)}
{element("main", *sections)}
<script>{get_plotlyjs()}</script>
<script>{_DRAW}</script>
</body>
</html>
"""


def number(value: float, unit: str = "") -> str:
    """Return ``value`` with three significant digits and no exponent; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(digits, 0), 9)}f}" + (f" {unit}" if unit else "")


def ratio(value: float) -> str:
    """Return ``value`` as a factor: ``1.58×``."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.2f}×" if value < 100 else f"{number(value)}×"


def percent(fraction: float) -> str:
    """Return ``fraction`` in percent; a dash for NaN."""
    if not math.isfinite(fraction):
        return "–"
    return f"{100 * fraction:,.1f} %" if abs(fraction) < 0.1 else f"{100 * fraction:,.0f} %"


def count(n: int, noun: str) -> str:
    """Return ``n`` with the noun in the right number."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def duration(seconds: float) -> str:
    """Return a wall time as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _finite(value: Any) -> Any:
    """Replace what JSON cannot say."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"

# Colours are Okabe and Ito's, which the colour-blind can tell apart; figures name them as "@name".
_LIGHT = """
color-scheme: light; --page: #ffffff; --card: #f6f7f9; --text: #1b1f24; --quiet: #59626e;
--grid: #e3e6ea; --measured: #0072b2; --interval: rgba(230, 159, 0, .42); --predicted: #a86b00;
--outside: #d55e00; --library: #00795a; --cloud: rgba(89, 98, 110, .38);
"""
_DARK = """
color-scheme: dark; --page: #14171b; --card: #1e2329; --text: #e8eaed; --quiet: #a3acb8;
--grid: #323942; --measured: #56b4e9; --interval: rgba(230, 159, 0, .40); --predicted: #f0b849;
--outside: #ff8a4c; --library: #35c79b; --cloud: rgba(163, 172, 184, .40);
"""
_STYLE = (
    f":root {{{_LIGHT}}}\n"
    f"@media (prefers-color-scheme: dark) {{ :root:not([data-print]) {{{_DARK}}} }}"
    """
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text);
  overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
header, main { max-width: 72rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 2.5rem); }
header { padding-top: clamp(1.5rem, 5vw, 3.5rem); }
h1 { margin: 0 0 1rem; font-size: 1rem; font-weight: 600; color: var(--quiet);
  overflow-wrap: anywhere; }
.headline { margin: 0; font-size: clamp(1.4rem, 3.4vw, 2.1rem); line-height: 1.28;
  font-weight: 650; letter-spacing: -.012em; max-width: 42ch; text-wrap: balance; }
.lead { margin: .8rem 0 0; color: var(--quiet); max-width: 68ch; }
h2 { margin: 0 0 .6rem; font-size: 1.35rem; letter-spacing: -.01em; line-height: 1.3; }
h3 { margin: 2rem 0 .5rem; font-size: 1.05rem; }
section { margin: 3.5rem 0; scroll-margin-top: 1rem; }
section > p { max-width: 72ch; margin: .5rem 0 1rem; }
.note { color: var(--quiet); font-size: .9rem; }
a { color: var(--measured); }
:focus-visible { outline: 3px solid var(--measured); outline-offset: 2px; border-radius: 3px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 2rem 0 1.5rem; }
.tiles div { background: var(--card); border-radius: .6rem; padding: .8rem 1rem;
  display: flex; flex-direction: column; }
.tiles dt { order: 2; color: var(--quiet); font-size: .85rem; line-height: 1.35; }
.tiles dd { margin: 0; font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; font-size: .92rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; line-height: 1.4;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .5rem .9rem .5rem 0; }
thead th { color: var(--quiet); font-weight: 500; font-size: .84rem; vertical-align: bottom; }
tbody { border-top: 1px solid var(--grid); }
tbody th { font-weight: 600; }
td small { display: block; color: var(--quiet); font-size: .84rem; }
.scores td, .scores thead th + th, .numbers td { text-align: right; white-space: nowrap; }
.scores tbody th { font-weight: 400; }
.scores .group th { font-weight: 600; padding-top: .8rem; }
.scores .own th, .scores .own td { font-weight: 650; }
.plain { width: auto; min-width: min(100%, 34rem); }
.wins .won { color: var(--library); font-weight: 600; }
.wins .config td { padding: 0 0 1rem; }
.strip { display: block; width: 11rem; max-width: 100%; height: 1rem; margin-top: .15rem; }
code { font: .82em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.chips { display: flex; flex-wrap: wrap; gap: .3rem; margin: 0; padding: 0; list-style: none; }
.chips li { padding: 0 .45rem; border: 1px solid var(--grid); border-radius: 1rem;
  color: var(--quiet); }
.chips .changed { background: var(--card); color: var(--text); border-color: var(--quiet);
  font-weight: 600; }
.charts { display: grid; gap: 2rem 2.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--least, 25rem)), 1fr)); }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .3rem; overflow-wrap: anywhere; }
.plot { width: 100%; }
.square { max-width: 32rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 1rem 0 1.2rem; padding: 0;
  list-style: none; font-size: .9rem; }
.legend svg { width: 1.7rem; height: .9rem; margin-right: .4rem; vertical-align: -.08rem; }
details { margin-top: .3rem; font-size: .9rem; }
summary { cursor: pointer; color: var(--quiet); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (max-width: 46rem) {
  .wins thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .wins, .wins tbody, .wins tr, .wins th, .wins td { display: block; padding: 0; }
  .wins tbody { padding: 1rem 0; }
  .wins tr:not(.config) td { display: grid; grid-template-columns: 9rem 1fr; padding: .2rem 0; }
  .wins td[data-label]::before { content: attr(data-label); color: var(--quiet); }
  .wins td > * { grid-column: 2; }
  .wins .config td { padding: .5rem 0 0; }
  .wins tbody th { padding-bottom: .4rem; }
}
:root[data-print] .charts { --least: 17rem !important; }
:root[data-print] main, :root[data-print] header { max-width: 18cm; padding: 0; }
@media print {
  nav, details { display: none; }
  body { font-size: 10pt; }
  figure, tr, .wins tbody, .tiles, .legend, p { break-inside: avoid; }
  h2, h3, section > p, figcaption, .legend { break-after: avoid; }
  section { margin: 1.6rem 0; }
  table { font-size: .82rem; }
  th, td { padding: .3rem .7rem .3rem 0; }
  .scroll { overflow: visible; }
}
"""
)
_DRAW = """
(() => {
  const root = document.documentElement;
  const draw = () => {
    const style = getComputedStyle(root);
    const colour = (key, value) => typeof value === "string" && value[0] === "@"
      && style.getPropertyValue("--" + value.slice(1)).trim() || value;
    for (const plot of document.querySelectorAll(".plot")) {
      const figure = JSON.parse(plot.nextElementSibling.textContent, colour);
      Plotly.react(plot, figure.data, figure.layout, {displayModeBar: false, responsive: true});
    }
  };
  const print = on => { root.toggleAttribute("data-print", on); draw(); };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
"""
