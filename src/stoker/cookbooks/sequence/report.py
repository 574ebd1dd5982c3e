"""The stage that writes the report."""

from __future__ import annotations

from stoker.authoring import StageContext, stage
from stoker.cookbooks.sequence.kinds import SequenceModel, SequenceReport, SequenceScores
from stoker.cookbooks.sequence.schemas import SequenceEvaluation


@stage("sequence/report", version=1, uses=("matplotlib", "numpy"))
def report(job: StageContext, scores: SequenceScores, model: SequenceModel) -> SequenceReport:
    """Write scores, curves, plots and a model card, and put the model beside them."""
    from stoker.cookbooks.report_parts import write_plots, write_texts
    from stoker.cookbooks.sequence.report_card import all_plots, curve_csv, model_card, scores_csv, summary

    book: SequenceEvaluation = scores.load()
    write_plots(job.out, all_plots(book))
    model.copy_files(job.out)
    texts = {
        "scores.csv": scores_csv(book),
        "scores.json": book,
        "curve.csv": curve_csv(book),
        "model-card.md": model_card(book),
        "summary.json": summary(book),
    }
    write_texts(job.out, texts)
    return job.made(SequenceReport)
