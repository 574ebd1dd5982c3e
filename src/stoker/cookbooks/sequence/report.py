"""The stage that writes what a person reads."""

from __future__ import annotations

from stoker.authoring import StageContext, stage
from stoker.cookbooks.sequence.kinds import Model, Report, Scores


@stage("sequence/report", version=1, uses=("matplotlib", "numpy"))
def report(job: StageContext, scores: Scores, model: Model) -> Report:
    """Write scores, curves, plots and a model card, and put the model beside them."""
    from stoker.cookbooks.sequence.plots import all_plots
    from stoker.cookbooks.sequence.report_card import curve_csv, model_card, scores_csv, summary
    from stoker.cookbooks.sequence.schemas import SequenceEvaluation
    from stoker.cookbooks.tabular.canvas import style, written
    from stoker.core import jsontext

    book: SequenceEvaluation = scores.load()
    plots = job.out / "plots"
    plots.mkdir()
    with style():
        for name, figure in all_plots(book):
            png, svg = written(figure)
            (plots / f"{name}.png").write_bytes(png)
            (plots / f"{name}.svg").write_bytes(svg)
    model.copy_files(job.out)
    texts = {
        "scores.csv": scores_csv(book),
        "scores.json": jsontext.dumps(book, indent=2) + "\n",
        "curve.csv": curve_csv(book),
        "model-card.md": model_card(book),
        "summary.json": jsontext.dumps(summary(book), indent=2) + "\n",
    }
    for name, text in texts.items():
        (job.out / name).write_text(text, encoding="utf-8", newline="")
    return job.made(Report)
