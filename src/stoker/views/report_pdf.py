"""A report as PDF bytes. Imports fpdf2, so import it only when needed."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Final

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, WrapMode, XPos, YPos
from fpdf.fonts import FontFace

from stoker.views.charts import Chart
from stoker.views.html_pages import to_svg
from stoker.views.report import ReportBlock, ReportCommands, ReportFigure, ReportTable, ReportText, RunReport

# The file has a date of its own, which would otherwise be that of the writing.
_DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MARGIN_MM: Final = 15
_TITLE_MM: Final = 6
_MOST_ROWS: Final = 200
_MOST_COLUMNS: Final = 10
_LONGEST_CELL: Final = 90
_SYSTEM_FONTS: Final = (
    "/usr/share/fonts/truetype/dejavu",
    "/usr/share/fonts/dejavu",
    "/usr/share/fonts/TTF",
    "/usr/local/share/fonts",
)
_FAMILY: Final = "report"
_CODE_FAMILY: Final = "report-code"
_KEPT_WITH_HEADING_MM: Final = 25
"""A heading is on the page of what follows it."""


def report_pdf(report: RunReport) -> bytes:
    """Return a report as PDF; deterministic on a machine."""
    with _quiet():
        return _Writer(report).written()


def unicode_font() -> str:
    """Return the folder of a font for all characters; empty: there is none, and others than Latin ones become `?`."""
    found = find_spec("matplotlib")
    own = [os.path.join(os.path.dirname(found.origin), "mpl-data", "fonts", "ttf")] if found and found.origin else []
    return next((one for one in (*own, *_SYSTEM_FONTS) if os.path.isfile(os.path.join(one, "DejaVuSans.ttf"))), "")


class _Pages(FPDF):
    """Pages with a title and a number at the foot."""

    foot = ("", "helvetica")
    """Title and font."""

    def footer(self) -> None:
        title, family = self.foot
        self.set_y(-_MARGIN_MM + 4)
        self.set_font(family, "", 7)
        self.set_text_color(110, 110, 110)
        self.cell(self.epw / 2, 4, title)
        self.cell(0, 4, f"page {self.page_no()} of {{nb}}", align="R")
        self.set_text_color(0, 0, 0)


class _Writer:
    def __init__(self, report: RunReport) -> None:
        self._report = report
        self._pdf = _Pages(format="A4")
        self._pdf.set_creation_date(_DATE)
        self._pdf.set_margin(_MARGIN_MM)
        self._pdf.set_auto_page_break(auto=True, margin=_MARGIN_MM)
        self._pdf.set_title(report.title.encode("ascii", "replace").decode())
        folder = unicode_font()
        self._is_latin = not folder
        self._family = "helvetica" if self._is_latin else _FAMILY
        self._code_family = "courier" if self._is_latin else _FAMILY
        mono = os.path.join(folder, "DejaVuSansMono.ttf")
        if folder and os.path.isfile(mono):
            self._code_family = _CODE_FAMILY
            self._pdf.add_font(_CODE_FAMILY, "", mono)
        if folder:
            bold = os.path.join(folder, "DejaVuSans-Bold.ttf")
            plain = os.path.join(folder, "DejaVuSans.ttf")
            self._pdf.add_font(_FAMILY, "", plain)
            self._pdf.add_font(_FAMILY, "B", bold if os.path.isfile(bold) else plain)

    def written(self) -> bytes:
        report = self._report
        self._pdf.foot = self._shown(report.title, _LONGEST_CELL), self._family
        self._pdf.add_page()
        self._line(report.title, 15, is_bold=True)
        self._line(report.about, 8)
        for section in report.sections:
            self._pdf.ln(3)
            if self._pdf.will_page_break(_KEPT_WITH_HEADING_MM):
                self._pdf.add_page()
            self._line(section.title, 12, is_bold=True)
            for block in section.blocks:
                self._block(block)
        return bytes(self._pdf.output())

    def _block(self, block: ReportBlock) -> None:
        if isinstance(block, ReportText):
            self._line(block.text, 9, is_bold=block.is_strong)
        elif isinstance(block, ReportCommands):
            for line in block.lines:
                self._line(line, 8, is_code=True)
        elif isinstance(block, ReportFigure):
            self._chart(block.chart)
        else:
            self._table(block)

    def _line(self, text: str, size: int, *, is_bold: bool = False, is_code: bool = False) -> None:
        self._pdf.set_font(self._code_family if is_code else self._family, "B" if is_bold else "", size)
        self._pdf.set_fill_color(240, 240, 240)
        self._pdf.multi_cell(
            0,
            size * 0.5,
            self._shown(text),
            align="L",
            fill=is_code,
            new_x=XPos.LMARGIN,
            new_y=YPos.NEXT,
            wrapmode=WrapMode.CHAR if is_code else WrapMode.WORD,
        )

    def _chart(self, chart: Chart) -> None:
        svg = self._shown(to_svg(chart)).replace('font-family="sans-serif"', f'font-family="{self._family}"')
        # Taller than a page is drawn as tall as a page.
        columns = max(1, chart.columns)
        rows = -(-len(chart.panels) // columns)
        across, down = columns * chart.panel_width, rows * chart.panel_height + 18 * len(chart.legend) + 8
        width = min(self._pdf.epw, across * 0.2646)
        height = width * down / across
        if height > self._pdf.eph - 2 * _TITLE_MM:
            width, height = width * (self._pdf.eph - 2 * _TITLE_MM) / height, self._pdf.eph - 2 * _TITLE_MM
        if self._pdf.get_y() + height + _TITLE_MM > self._pdf.h - _MARGIN_MM:
            self._pdf.add_page()
        self._line(chart.title, 9, is_bold=True)
        top = self._pdf.get_y()
        self._pdf.image(io.BytesIO(svg.encode(errors="replace")), x=_MARGIN_MM, y=top, w=width)
        self._pdf.set_y(top + height + 2)
        if chart.note:
            self._line(chart.note, 8)

    def _table(self, block: ReportTable) -> None:
        header = block.header[:_MOST_COLUMNS]
        notes = [block.note] if block.note else []
        if len(block.header) > len(header):
            notes.append(f"{len(block.header) - len(header)} more columns are in the HTML report")
        if len(block.rows) > _MOST_ROWS:
            notes.append(f"{len(block.rows) - _MOST_ROWS:,} more rows are in the HTML report")
        self._pdf.set_font(self._family, "", 7)
        self._pdf.set_draw_color(221, 221, 221)
        rows = [[self._shown(cell, _LONGEST_CELL) for cell in row[: len(header)]] for row in block.rows[:_MOST_ROWS]]
        widths = [max(4, *(len(row[place]) for row in rows), len(name)) for place, name in enumerate(header)]
        with self._pdf.table(
            borders_layout=TableBordersLayout.HORIZONTAL_LINES,
            col_widths=tuple(min(width, 40) for width in widths),
            line_height=4,
            text_align="LEFT",
            headings_style=FontFace(emphasis="BOLD"),
            wrapmode=WrapMode.CHAR,
        ) as table:
            table.row([self._shown(name, _LONGEST_CELL) for name in header])
            for place, row in enumerate(rows):
                style = FontFace(fill_color=(232, 242, 251) if place == block.best else (255, 255, 255))
                table.row(row, style=style)
        self._pdf.ln(1)
        for note in notes:
            self._line(note, 8)

    def _shown(self, text: str, longest: int = 0) -> str:
        """Return a text that the font can show."""
        if longest and len(text) > longest:
            text = f"{text[: longest - 1]}…"
        if self._is_latin:
            plain = text.replace("…", "...").replace("·", "-")
            return plain.encode("latin-1", "replace").decode("latin-1")
        return text.encode("utf-8", "replace").decode()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the library says of characters that the font lacks and of titles inside charts."""
    log = logging.getLogger("fpdf")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
