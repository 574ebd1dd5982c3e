"""The stage that scores a model on later windows than the training's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.authoring import StageContext, stage
from stoker.cookbooks.sequence.kinds import SequenceModel, SequenceScores, Windows
from stoker.cookbooks.sequence.schemas import SequenceEvaluation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from stoker.cookbooks.sequence.arrays import WindowArrays
    from stoker.cookbooks.sequence.networks import FittedNetwork
    from stoker.cookbooks.sequence.training import PartWindows
    from stoker.cookbooks.tabular.metrics import Predictions


@stage("sequence/evaluate", version=1, uses=("torch", "numpy", "pandas", "pyarrow"))
def evaluate(job: StageContext, model: SequenceModel, data: Windows) -> SequenceScores:
    """Score a model and a baseline on the test part."""
    from stoker.cookbooks.sequence.restore import read_model

    book = evaluate_model(read_model(model.path), data.load())
    job.step(1, of=1, **headline_scores(book))
    return job.save(SequenceScores, book)


# One model beside a baseline, on the test part: windows after all training windows.
#
# Windows overlap and follow each other, so they are not independent: there are no intervals.


_AT_ONCE = 512
_SHOWN_ROWS = 200


def evaluate_model(model: FittedNetwork, windows: WindowArrays) -> SequenceEvaluation:
    """Score a model and a baseline on the test part."""
    from stoker.cookbooks.sequence.training import PartWindows

    part = PartWindows.of(windows, "test")
    outputs = _outputs(model, part)
    return _forecast_book(model, windows, part, outputs) if part.horizon else _class_book(model, windows, part, outputs)


def headline_scores(book: SequenceEvaluation) -> dict[str, float]:
    """Return the numbers for comparing runs."""
    return dict(book["test"])


def _outputs(model: FittedNetwork, part: PartWindows) -> torch.Tensor:
    import torch

    model.network.eval()
    with torch.no_grad():
        every = torch.split(torch.arange(len(part)), _AT_ONCE)
        return torch.cat([model.network(part.inputs(examples)) for examples in every]).double()


def _forecast_book(
    model: FittedNetwork, windows: WindowArrays, part: PartWindows, outputs: torch.Tensor
) -> SequenceEvaluation:
    import numpy as np
    import torch

    from stoker.cookbooks.sequence.training import significant

    facts = windows.facts
    mean, spread = facts["mean"][part.target], facts["spread"][part.target]
    every = torch.arange(len(part))
    last = part.last_values(every).double()
    truth = (part.truth(every).double() * spread + mean).numpy()
    answers = ((outputs + last) * spread + mean).numpy()
    repeated = (last.expand(-1, part.horizon) * spread + mean).numpy()
    scores, simple = _quantity_scores(truth, answers), _quantity_scores(truth, repeated)
    # The part of the baseline's error that is gone.
    scores["skill"] = significant(1.0 - scores["rmse"] / simple["rmse"]) if simple["rmse"] else 0.0
    simple["skill"] = 0.0
    return SequenceEvaluation(
        model=model.facts,
        metrics=["rmse", "mae", "r2", "skill"],
        rank_by="rmse",
        test=scores,
        baseline=simple,
        baseline_is="the last known value again",
        by_step=_plain(np.sqrt(((answers - truth) ** 2).mean(axis=0))),
        confusion=[],
        shown={"true": _plain(truth[:_SHOWN_ROWS, 0]), "predicted": _plain(answers[:_SHOWN_ROWS, 0])},
    )


def _class_book(
    model: FittedNetwork, windows: WindowArrays, part: PartWindows, outputs: torch.Tensor
) -> SequenceEvaluation:
    import numpy as np
    import torch

    from stoker.cookbooks.tabular.metrics import confusion

    truth = part.truth(torch.arange(len(part))).numpy()
    predicted = _predictions(truth, outputs.softmax(dim=1).numpy())
    seen = windows.answers[windows.starts["train"] + part.window - 1]
    shares = np.bincount(seen, minlength=outputs.shape[1]) / len(seen)
    simple = _predictions(truth, np.tile(shares, (len(truth), 1)))
    return SequenceEvaluation(
        model=model.facts,
        metrics=["accuracy", "balanced_accuracy", "macro_f1", "log_loss"],
        rank_by="balanced_accuracy",
        test=_class_scores(predicted),
        baseline=_class_scores(simple),
        baseline_is="the shares of the classes in the training part",
        by_step=[],
        confusion=confusion(predicted).tolist(),
        shown={},
    )


def _quantity_scores(truth: npt.NDArray[np.float64], answers: npt.NDArray[np.float64]) -> dict[str, float]:
    import numpy as np

    from stoker.cookbooks.sequence.training import significant
    from stoker.cookbooks.tabular.metrics import Predictions, plain_scores

    predictions = Predictions(
        problem="regression",
        truth=truth.reshape(-1),
        answers=answers.reshape(-1),
        probabilities=np.empty((truth.size, 0)),
    )
    scores = plain_scores(predictions)
    return {name: significant(scores[name]) for name in ("rmse", "mae", "r2")}


def _class_scores(predictions: Predictions) -> dict[str, float]:
    from stoker.cookbooks.sequence.training import significant
    from stoker.cookbooks.tabular.metrics import plain_scores

    scores = plain_scores(predictions)
    return {name: significant(scores[name]) for name in ("accuracy", "balanced_accuracy", "macro_f1", "log_loss")}


def _predictions(truth: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> Predictions:
    from stoker.cookbooks.tabular.metrics import Predictions

    return Predictions(
        problem="classification", truth=truth, answers=probabilities.argmax(axis=1), probabilities=probabilities
    )


def _plain(values: npt.NDArray[Any]) -> list[float]:
    from stoker.cookbooks.sequence.training import significant

    return [significant(float(value)) for value in values]
