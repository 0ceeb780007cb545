"""One HTML page for every report: one style sheet, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

MOST_STACKED = 12  # columns of a table whose rows a narrow screen shows as lists; one with more is scrolled

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c22; --soft: #62626d; --line: #dcdce2; --card: #fff; --page: #f5f5f8;
  --thief: #c8102e; --label: #e8a33d; --benign: #1b7f4d; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --soft: #a3a3b0; --line: #3a3a44; --card: #1f1f26;
  --page: #141418; --thief: #ff5c74; --label: #f0b860; --benign: #4cc38a; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { color: var(--soft); margin: 0 0 1.2rem; max-width: 70ch; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.2rem;
  overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
tr.best td { font-weight: 700; } tr.benign td { color: var(--soft); }
ul { color: var(--soft); font-size: .92rem; padding-left: 1.1rem; max-width: 95ch; }
figure { margin: 0 0 1.2rem; } figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
img { max-width: 100%; border-radius: 6px; }
p.takeaway { max-width: 80ch; margin: .8rem 0 1rem; padding: .7rem 1rem; background: var(--card);
  border: 1px solid var(--line); border-left: 5px solid var(--soft); border-radius: 6px; font-size: 1.06rem; }
.bars h3 { grid-column: 1 / -1; margin: .8rem 0 0; font-size: .95rem; } .bars h3:first-child { margin-top: 0; }
:focus-visible { outline: 3px solid var(--benign); outline-offset: 2px; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .3rem .8rem; align-items: center;
  font-size: .92rem; }
.track { background: var(--line); border-radius: 4px; height: 1.15rem; position: relative; }
.fill { height: 100%; border-radius: 4px; } .value { text-align: right; font-variant-numeric: tabular-nums; }
.chance { position: absolute; top: 0; bottom: 0; width: 2px; background: var(--ink); opacity: .55; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin-bottom: 0; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .35rem; }
@media (max-width: 640px) { .bars { grid-template-columns: 1fr max-content; }
  .bars > .name { grid-column: 1 / -1; margin-top: .4rem; }
  figure img { max-width: none; width: 44rem; }
  .stacked { display: block; } .stacked thead { position: absolute; clip-path: inset(50%); }
  .stacked tbody, .stacked td { display: block; padding: 0; border: 0; text-align: left; white-space: normal; }
  .stacked tr { display: grid; grid-template-columns: repeat(auto-fit, minmax(6rem, 1fr)); gap: .3rem 1rem;
    padding: .7rem 0; border-bottom: 1px solid var(--line); }
  .stacked td:first-child { grid-column: 1 / -1; font-weight: 650; }
  .stacked td:last-child:nth-child(2) { grid-column: 1 / -1; } .stacked td:empty { display: none; }
  .stacked td:not(:first-child)::before { content: attr(data-label); display: block; color: var(--soft); } }
"""


class Draw(Protocol):
    """Draws a picture for a light or a dark page, as a PNG."""

    def __call__(self, *, dark: bool) -> bytes:
        """The picture's bytes."""
        ...


def html_page(heading: str, body: str, *, lead: str = "", takeaway: str = "") -> str:
    """A whole page; `body` is HTML, the rest is text. `takeaway` is what to remember if one reads nothing else."""
    texts = {"takeaway": takeaway, "lead": lead}
    below = "".join(f'<p class="{kind}">{escape(text)}</p>\n' for kind, text in texts.items() if text)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(heading)}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(heading)}</h1>
{below}{body}</main></body></html>
"""


def html_section(title: str, content: str, notes: Iterable[str] = ()) -> str:
    """A card with a title, if there is one, and notes below it; `content` is HTML, the rest is text.

    A card with a table or picture may be wider than the screen, so that it can be scrolled, by keyboard too.
    """
    above = f"<h2>{escape(title)}</h2>\n" if title else ""
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    is_wide = "<table" in content or "<img" in content
    wide = f' tabindex="0" role="region" aria-label="{escape(title or "Results")}"' if is_wide else ""
    return f'{above}<div class="card"{wide}>{content}</div>\n' + (f"<ul>{listed}</ul>\n" if listed else "")


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]], kinds: Iterable[str] | None = None) -> str:
    """A table of texts; `kinds` are CSS classes, one per row."""
    head = "".join(f'<th scope="col" role="columnheader">{escape(name)}</th>' for name in header)
    lines = ["".join(map(_cell, header, row)) for row in rows]
    marks = [f' class="{kind}"' if kind else "" for kind in kinds or [""] * len(lines)]
    body = "".join(f'<tr role="row"{mark}>{line}</tr>' for mark, line in zip(marks, lines, strict=True))
    kind = ' class="stacked"' if len(header) <= MOST_STACKED else ""
    top = f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
    return f'<table role="table"{kind}>{top}<tbody role="rowgroup">{body}</tbody></table>'


def _cell(column: str, text: str) -> str:
    """An entry with its roles, which it would lose where it is no part of a table on the screen."""
    return f'<td role="cell" data-label="{escape(column)}">{escape(text)}</td>'


def html_picture(draw: Draw, alt: str, caption: str = "") -> str:
    """A picture within the page, drawn for its light and for its dark colours."""
    light, dark = (f"data:image/png;base64,{base64.b64encode(draw(dark=dark)).decode()}" for dark in (False, True))
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    picture = f'<picture>{source}<img alt="{escape(alt)}" src="{light}"></picture>'
    return f"<figure>{picture}" + (f"<figcaption>{escape(caption)}</figcaption>" if caption else "") + "</figure>"
