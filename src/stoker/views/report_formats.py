"""A report as one self-contained file: an HTML page, or Markdown with its charts inside."""

from __future__ import annotations

import base64
import re
from html import escape

from stoker.core.text import lazy_pattern
from stoker.views.html_pages import figure, page, to_svg
from stoker.views.report import ReportBlock, ReportCommands, ReportFigure, ReportTable, ReportText, RunReport

_SPECIAL = lazy_pattern(r"[\\`*_\[\]#|~!$]")
_TICKS = lazy_pattern(r"`+")
_WORDS_AS_TEXT = ("setting", "value", "from", "digest", "file or module", "argument", "of", "name")


def report_page(report: RunReport) -> str:
    """Return a report as an HTML page that fetches nothing."""
    parts: list[str] = []
    for section in report.sections:
        parts.append(f"<section><h2>{escape(section.title)}</h2>")
        parts += map(_html, section.blocks)
        parts.append("</section>")
    return page(report.title, report.about, parts)


def report_markdown(report: RunReport) -> str:
    """Return a report as Markdown; charts are images of their own data."""
    lines = [f"# {_plain(report.title)}", "", _plain(report.about)]
    for section in report.sections:
        lines += ["", f"## {section.title}"]
        for block in section.blocks:
            lines += ["", *_markdown(block)]
    return "\n".join(lines) + "\n"


def _html(block: ReportBlock) -> str:
    if isinstance(block, ReportText):
        text = escape(block.text)
        return f"<p><strong>{text}</strong></p>" if block.is_strong else f"<p>{text}</p>"
    if isinstance(block, ReportCommands):
        return f"<pre><code>{escape(chr(10).join(block.lines))}</code></pre>"
    if isinstance(block, ReportFigure):
        return figure(block.chart, "h3")
    return _html_table(block)


def _html_table(block: ReportTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in block.header)
    looks = [' class="text"' if name in _WORDS_AS_TEXT else "" for name in block.header]
    rows = []
    for place, row in enumerate(block.rows):
        cells = "".join(f"<td{look}>{escape(cell)}</td>" for look, cell in zip(looks, row, strict=True))
        look = ' class="best"' if place == block.best else ""
        rows.append(f"<tr{look}>{cells}</tr>")
    body = "\n".join(rows)
    note = f'<p class="soft">{escape(block.note)}</p>' if block.note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>{note}'


def _markdown(block: ReportBlock) -> list[str]:
    if isinstance(block, ReportText):
        return [f"**{_plain(block.text)}**" if block.is_strong else _plain(block.text)]
    if isinstance(block, ReportCommands):
        longest = max((len(run) for line in block.lines for run in _TICKS.findall(line)), default=0)
        fence = "`" * max(3, longest + 1)
        return [f"{fence}sh", *block.lines, fence]
    if isinstance(block, ReportFigure):
        chart = block.chart
        data = base64.b64encode(to_svg(chart).encode(errors="replace")).decode()
        note = ["", _plain(chart.note)] if chart.note else []
        return [f"![{_plain(chart.title)}](data:image/svg+xml;base64,{data})", *note]
    rows = [
        f"| {' | '.join(f'**{_plain(cell)}**' if cell and place == block.best else _plain(cell) for cell in row)} |"
        for place, row in enumerate(block.rows)
    ]
    header = f"| {' | '.join(map(_plain, block.header))} |"
    note = ["", _plain(block.note)] if block.note else []
    return [header, f"|{' --- |' * len(block.header)}", *rows, *note]


def _plain(text: str) -> str:
    """Return a text in which nothing is read as Markdown or HTML."""
    return _SPECIAL.sub(_escaped, text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"
