"""The stage that writes what a person reads."""

from __future__ import annotations

from stoker.cookbooks.tabular.kinds import Model, Report, Scores
from stoker.plan.authoring import StageContext, stage


@stage("tabular/report", version=1, uses=("matplotlib", "numpy"))
def report(job: StageContext, scores: Scores, models: list[Model]) -> Report:
    """Write scores, plots, a model card and one page, and put the best model beside them."""
    from stoker.cookbooks.tabular.records import ScoreBook
    from stoker.cookbooks.tabular.reporting.canvas import style, written
    from stoker.cookbooks.tabular.reporting.card import model_card
    from stoker.cookbooks.tabular.reporting.page import Picture, html_page
    from stoker.cookbooks.tabular.reporting.plots import all_plots
    from stoker.cookbooks.tabular.reporting.tables import scores_csv, summary
    from stoker.model import json_text

    book: ScoreBook = scores.load()
    plots = job.out / "plots"
    plots.mkdir()
    pictures: list[Picture] = []
    with style():
        for name, caption, figure in all_plots(book):
            png, svg = written(figure)
            (plots / f"{name}.png").write_bytes(png)
            (plots / f"{name}.svg").write_bytes(svg)
            pictures.append(Picture(name=name, caption=caption, svg=svg))
            job.step(len(pictures))
    best = next(model for model in models if model.facts()["family"] == book["best"])
    best.copy_pipeline(job.out / "best-model.joblib")
    texts = {
        "scores.csv": scores_csv(book),
        "scores.json": json_text.dumps(book, indent=2) + "\n",
        "model-card.md": model_card(book),
        "report.html": html_page(book, pictures),
        "summary.json": json_text.dumps(summary(book), indent=2) + "\n",
    }
    for name, text in texts.items():
        (job.out / name).write_text(text, encoding="utf-8", newline="")
    return job.made(Report)
