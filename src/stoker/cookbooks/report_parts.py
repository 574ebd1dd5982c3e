"""Common parts of reports: plots in one style, Markdown, CSV and JSON files.

The same input gives the same bytes.
"""

from __future__ import annotations

import csv
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from stoker.core import jsontext

LINE_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73")

_STYLE: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.dpi": 144,
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "grid.color": "#E3E3E3",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    # Without a fixed salt, ids inside an SVG are random.
    "svg.hashsalt": "stoker",
}


@contextmanager
def _style() -> Iterator[None]:
    """Draw in our style during a block, independent of the user's settings."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        # Characters that the font lacks are drawn as boxes; the tables show them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        yield


def one_plot(width: float = 6.4, height: float = 4.2) -> tuple[Figure, Axes]:
    """Return a figure with a single plot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A written plot for a page."""

    name: str
    caption: str
    svg: bytes


def write_plots(
    out: Path, plots: Iterable[tuple[str, str, Figure]], after: Callable[[int], None] | None = None
) -> list[Picture]:
    """Write plots (name, caption, figure) as PNG and SVG into the folder `plots`; `after` is called with each count."""
    folder = out / "plots"
    folder.mkdir()
    pictures: list[Picture] = []
    with _style():
        for name, caption, figure in plots:
            # `savefig` draws everything twice, once for the layout. After a drawing the layout is known.
            png, svg = io.BytesIO(), io.BytesIO()
            raster: Any = FigureCanvasAgg(figure)
            raster.print_png(png, metadata={"Software": None})
            figure.set_layout_engine("none")
            vector: Any = FigureCanvasSVG(figure)
            vector.print_svg(svg, metadata={"Date": None, "Creator": None})
            (folder / f"{name}.png").write_bytes(png.getvalue())
            (folder / f"{name}.svg").write_bytes(svg.getvalue())
            pictures.append(Picture(name=name, caption=caption, svg=svg.getvalue()))
            if after is not None:
                after(len(pictures))
    return pictures


def write_texts(out: Path, texts: Mapping[str, Any]) -> None:
    """Write files by name: a text as it is, anything else as JSON."""
    for name, value in texts.items():
        text = value if isinstance(value, str) else jsontext.dumps(value, indent=2) + "\n"
        (out / name).write_text(text, encoding="utf-8", newline="")


def plain(text: object, limit: int = 28) -> str:
    """Return a text that is safe in a plot: short, on one line, and never parsed as a formula."""
    line = " ".join(str(text).split())
    short = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return short.replace("$", r"\$")


def short_number(value: float) -> str:
    """Return a number in four significant digits."""
    return f"{value:.4g}"


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def bullets(lines: Iterable[str]) -> str:
    """Return lines as a Markdown list; those that start with two spaces are one level deeper."""
    return "\n".join(f"{'  ' if line.startswith('  ') else ''}- {safe(line.strip())}" for line in lines)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(safe(cell) for cell in line)} |" for line in lines)


def safe(text: str) -> str:
    """Escape a text from a user's file for Markdown and HTML."""
    return re.sub(r"([\\`*|<>])", r"\\\1", " ".join(text.split()))
