"""The look of every plot, and writing them so that the same plot gives the same bytes."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Told apart by people with any colour vision, and in grey.
COLOURS: Final = {"gbt": "#0072B2", "knn": "#E69F00", "knn_semi": "#CC79A7", "mlp": "#009E73", "baseline": "#7F7F7F"}
MARKS: Final = {"gbt": "o", "knn": "s", "knn_semi": "D", "mlp": "^", "baseline": "x"}
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
    # Without a salt of our own, ids inside an SVG are random.
    "svg.hashsalt": "stoker",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in our style while open, whatever the user's own settings are."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        # A class named in a script that the font lacks is drawn as boxes; the tables have it right.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        yield


def one_plot(width: float = 6.4, height: float = 4.2) -> tuple[Figure, Axes]:
    """Return a figure with a single plot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def written(figure: Figure) -> tuple[bytes, bytes]:
    """Return the figure as PNG and as SVG."""
    # `savefig` draws everything twice, once to settle the layout. Drawing settles it too, and need not again.
    png, svg = io.BytesIO(), io.BytesIO()
    raster: Any = FigureCanvasAgg(figure)
    raster.print_png(png, metadata={"Software": None})
    figure.set_layout_engine("none")
    vector: Any = FigureCanvasSVG(figure)
    vector.print_svg(svg, metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


def plain(text: object, limit: int = 28) -> str:
    """Return a text that is safe inside a plot: short, on one line, and never read as a formula."""
    line = " ".join(str(text).split())
    short = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return short.replace("$", r"\$")
