"""What a rank of a gang does in tests: trains each of several models, and runs a whole stage."""

from __future__ import annotations

from pathlib import Path

from stoker.cookbooks.sequence.arrays import WindowArrays
from stoker.cookbooks.sequence.attention import Restorer, Transformer, TransformerShape
from stoker.cookbooks.sequence.convolution import Cnn, CnnShape
from stoker.cookbooks.sequence.kinds import Windows
from stoker.cookbooks.sequence.networks import NetworkSizes
from stoker.cookbooks.sequence.produce import seeded
from stoker.cookbooks.sequence.recurrent import RecurrentNetwork, RecurrentShape
from stoker.cookbooks.sequence.schemas import TrainingArgs
from stoker.cookbooks.sequence.train_recurrent import RecurrentArgs, train_gru
from stoker.cookbooks.sequence.training import (
    SOLO,
    World,
    train,
    with_answers,
    without_answers,
    world_here,
)
from stoker.engine.stage import perform
from tests.unit.cookbooks.sequence.walked_series import context, small_windows

# 87 windows and batches of 43: the last one is a single window, so one rank has nothing of it.
SETTINGS = TrainingArgs(epochs=3, lr=3e-3, weight_decay=1e-2, batch=43, patience=5, clip=1.0, seed=5)
_SHAPE = TransformerShape(width=8, layers=1, heads=2)


def trained(family: str, windows: WindowArrays, world: World = SOLO) -> dict[str, object]:
    """Train one of the families and give its losses and the size of its weights."""
    ends = NetworkSizes.of(windows.facts)
    makers = {
        "cnn": lambda: Cnn(ends, CnnShape(width=8, layers=2, kernel=3)),
        "gru": lambda: RecurrentNetwork(ends, RecurrentShape(width=8, layers=1), "gru"),
        "lstm": lambda: RecurrentNetwork(ends, RecurrentShape(width=8, layers=1), "lstm"),
        "transformer": lambda: Transformer(ends, _SHAPE),
        "masked": lambda: Restorer(ends, _SHAPE),
    }
    network = seeded(SETTINGS.seed, makers[family])
    data = without_answers(windows, percent=30, span=2) if family == "masked" else with_answers(windows)
    losses: list[float] = []
    train(network, data, SETTINGS, world, watch=lambda _done, _of, metrics: losses.append(metrics["loss"]))
    return {"losses": losses, "weights": [float(values.double().sum()) for values in network.state_dict().values()]}


def run_stage(folder: Path) -> dict[str, object]:
    """Run the stage as its runner would on every rank: the same folders for all."""
    said: list[dict[str, object]] = []
    job = context("train_gru", folder / "out", said=said, diverges_on=("loss",))
    made = perform(train_gru, job, {"data": Windows.at(str(folder / "windows"))}, RecurrentArgs(epochs=2, width=4))
    return {"said": said, "is_written": (made.path / "model.pt").is_file()}


def learn_everything(folder: Path, families: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """Train these families as one of the ranks, and run a stage on the windows that lie in the folder."""
    world = world_here()
    learned = {family: trained(family, small_windows(), world) for family in families}
    learned["classes"] = trained("gru", small_windows(classes=True), world)
    return {**learned, "stage": run_stage(folder)}
