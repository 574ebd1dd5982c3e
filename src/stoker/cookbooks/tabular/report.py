"""The stage that writes the report."""

from __future__ import annotations

from stoker.authoring import StageContext, stage
from stoker.cookbooks.tabular.kinds import TabularModel, TabularReport, TabularScores
from stoker.cookbooks.tabular.schemas import TabularEvaluation


@stage("tabular/report", version=1, uses=("matplotlib", "numpy"))
def report(job: StageContext, scores: TabularScores, models: list[TabularModel]) -> TabularReport:
    """Write scores, plots, a model card and one page, and put the best model beside them."""
    from stoker.cookbooks.report_parts import write_plots, write_texts
    from stoker.cookbooks.tabular.plots import all_plots
    from stoker.cookbooks.tabular.report_card import html_page, model_card, scores_csv, summary

    book: TabularEvaluation = scores.load()
    pictures = write_plots(job.out, all_plots(book), after=job.step)
    best = next(model for model in models if model.facts()["family"] == book["best"])
    best.copy_pipeline(job.out / "best-model.joblib")
    texts = {
        "scores.csv": scores_csv(book),
        "scores.json": book,
        "model-card.md": model_card(book),
        "report.html": html_page(book, pictures),
        "summary.json": summary(book),
    }
    write_texts(job.out, texts)
    return job.made(TabularReport)
