"""The plots of a report, each a figure made from the score book."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stoker.cookbooks.sequence.schemas import SequenceCurve, SequenceEvaluation
from stoker.cookbooks.tabular.canvas import LINE_COLOURS, one_plot, plain

_MOST_NUMBERED_CLASSES = 12


def all_plots(book: SequenceEvaluation) -> Iterator[tuple[str, Figure]]:
    """Return (file name, figure) of every plot that the book has data for."""
    for curve in book["model"]["curves"]:
        yield f"loss-{curve['name']}", _losses(curve)
    if book["by_step"]:
        yield "forecast", _forecast(book)
    if len(book["by_step"]) > 1:
        yield "steps", _steps(book)
    if book["confusion"]:
        yield "confusion", _confusion(book)


def _losses(curve: SequenceCurve) -> Figure:
    figure, axes = one_plot()
    epochs = range(1, len(curve["train"]) + 1)
    axes.plot(epochs, curve["train"], color=LINE_COLOURS[0], label="training part")
    axes.plot(epochs, curve["validation"], color=LINE_COLOURS[1], label="validation part")
    axes.axvline(curve["kept"], color="#7F7F7F", linestyle=":", label=f"kept: epoch {curve['kept']}")
    axes.set_title(f"Loss of the {curve['name']}")
    axes.set_xlabel("epochs")
    axes.set_ylabel("loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


def _forecast(book: SequenceEvaluation) -> Figure:
    figure, axes = one_plot(9.0, 4.2)
    for place, name in enumerate(("true", "predicted")):
        axes.plot(book["shown"][name], color=LINE_COLOURS[place], label=name)
    axes.set_title(f"{plain(book['model']['data']['series']['target'])}, one step ahead, at the beginning of the test")
    axes.set_xlabel("windows")
    axes.legend()
    return figure


def _steps(book: SequenceEvaluation) -> Figure:
    figure, axes = one_plot()
    axes.plot(range(1, len(book["by_step"]) + 1), book["by_step"], color=LINE_COLOURS[0], marker="o")
    axes.set_title("Error by how far ahead")
    axes.set_xlabel("steps ahead")
    axes.set_ylabel("root mean squared error")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _confusion(book: SequenceEvaluation) -> Figure:
    figure, axes = one_plot(5.6, 5.2)
    names = [plain(name, 14) for name in book["model"]["data"]["series"]["classes"]]
    axes.imshow(book["confusion"], cmap="Blues")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.grid(visible=False)
    if len(names) <= _MOST_NUMBERED_CLASSES:
        most = max(map(max, book["confusion"]))
        for row, counts in enumerate(book["confusion"]):
            for column, count in enumerate(counts):
                colour = "white" if count > most / 2 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour)
    return figure
