"""The stage that writes what a person reads."""

from __future__ import annotations

from stoker.authoring import StageContext, stage
from stoker.cookbooks.tabular.kinds import Model, Report, Scores


@stage("tabular/report", version=1, uses=("matplotlib", "numpy"))
def report(job: StageContext, scores: Scores, models: list[Model]) -> Report:
    """Write scores, plots, a model card and one page, and put the best model beside them."""
    from stoker.cookbooks.tabular.canvas import style, written
    from stoker.cookbooks.tabular.plots import all_plots
    from stoker.cookbooks.tabular.report_card import Picture, html_page, model_card, scores_csv, summary
    from stoker.cookbooks.tabular.schemas import TabularEvaluation
    from stoker.core import jsontext

    book: TabularEvaluation = scores.load()
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
        "scores.json": jsontext.dumps(book, indent=2) + "\n",
        "model-card.md": model_card(book),
        "report.html": html_page(book, pictures),
        "summary.json": jsontext.dumps(summary(book), indent=2) + "\n",
    }
    for name, text in texts.items():
        (job.out / name).write_text(text, encoding="utf-8", newline="")
    return job.made(Report)
