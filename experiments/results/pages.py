"""Pages in HTML that a phone, a screen and a printer show."""

import html
from collections.abc import Sequence

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem }
figure { margin: 1.5rem 0 }
img { background: #fff; width: 100%; min-width: 38rem; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #8886; padding: .3rem .6rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
.matrix th, .matrix td { text-align: left; vertical-align: top; white-space: normal; min-width: 9rem }
@media (max-width: 600px) {
  th, td { font-size: .85rem; padding: .2rem .4rem }
  td:first-child { white-space: normal; min-width: 7rem }
}
pre { overflow-x: auto; font-size: .8rem }
@media print {
  body { max-width: none; font-size: 10px }
  img { min-width: 0; max-height: 22cm; object-fit: contain }
  th, td { padding: .1rem .3rem; white-space: normal }
  .matrix th, .matrix td { min-width: 0 }
  .wide { overflow: visible }
  details { display: none }
  h2:last-of-type::after { content: ": on the screen" }
  figure, tr { break-inside: avoid }
}
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole document of parts in HTML, which needs no other file."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "wide") -> str:
    """Cells of text, which need not be escaped; `kind` are the classes of what it scrolls in."""
    line = lambda tag, cells: "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
    body = "".join(line("td", row) for row in rows)
    return f'<div class="{kind}"><table><thead>{line("th", header)}</thead><tbody>{body}</tbody></table></div>'
