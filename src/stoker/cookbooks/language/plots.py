"""The plots of a report."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stoker.cookbooks.language.report_card import updates
from stoker.cookbooks.language.schemas import LanguageTrainingRecord
from stoker.cookbooks.tabular.canvas import LINE_COLOURS, one_plot


def all_plots(training: LanguageTrainingRecord) -> Iterator[tuple[str, Figure]]:
    """Return (file name, figure) of every plot."""
    yield "loss", _losses(training)


def _losses(training: LanguageTrainingRecord) -> Figure:
    curve = training["curve"]
    figure, axes = one_plot()
    trained = [(one["step"], one["loss"]) for one in curve["points"] if one["loss"] is not None]
    judged = [(one["step"], one["eval_loss"]) for one in curve["points"] if one["eval_loss"] is not None]
    if curve["before"] is not None:
        judged = [(0, curve["before"]), *judged]
    for place, (points, label) in enumerate(((trained, "training part"), (judged, "held-out part"))):
        if points:
            steps, losses = zip(*points, strict=True)
            marker = "o" if len(points) < 50 else ""
            axes.plot(steps, losses, color=LINE_COLOURS[place], label=label, marker=marker, markersize=3)
    axes.axvline(curve["kept"], color="#7F7F7F", linestyle=":", label=f"kept: after {updates(curve['kept'])}")
    axes.set_title("Loss per token")
    axes.set_xlabel("updates")
    axes.set_ylabel("loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure
