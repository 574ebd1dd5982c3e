"""The stage that scores a model on windows that come after all it has seen."""

from __future__ import annotations

from stoker.authoring import StageContext, stage
from stoker.cookbooks.sequence.kinds import Model, Scores, Windows


@stage("sequence/evaluate", version=1, uses=("torch", "numpy", "pandas", "pyarrow"))
def evaluate(job: StageContext, model: Model, data: Windows) -> Scores:
    """Score a model and a baseline on the test part."""
    from stoker.cookbooks.sequence.evaluation import evaluate_model, headline_scores
    from stoker.cookbooks.sequence.restore import read_model

    book = evaluate_model(read_model(model.path), data.load())
    job.step(1, of=1, **headline_scores(book))
    return job.save(Scores, book)
