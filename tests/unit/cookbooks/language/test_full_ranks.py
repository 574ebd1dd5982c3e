"""One training of every weight alone, and the same as two ranks over gloo, each with its part of every weight."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bundled import bundled_base
from stoker.cookbooks.language.schemas import read_training
from stoker.gang import Gang, RankConfig
from stoker.gang.starters import RankZygote
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import examples

with imported_later("torch", "transformers"):
    from stoker.cookbooks.language.bases import read_base, read_weights
    from tests.unit.cookbooks.language.full_ranks import train_all, train_in

LAST = 8
"""Updates of such a training."""
STOPS = 6
"""An update after which both ranks report: it is evaluated."""
WORSE: dict[str, Any] = {"checkpoint_every": 1, "eval_every": 1, "lr": 0.3}
"""One of its first evaluations stays the best one."""
TRAININGS: dict[str, tuple[dict[str, Any], int | None]] = {
    "plain": ({}, None),
    # The last batch of an epoch has fewer rows than there are ranks.
    "recomputed": ({"batch": 19, "gradient_checkpointing": "true", "checkpoints": "kept"}, None),
    "narrow": ({"dtype": "bfloat16"}, None),
    "stopped": ({"checkpoint_every": 1}, STOPS),
    "worse": (WORSE, STOPS),
    "worse again": (WORSE, None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ranks")
    for name in (*TRAININGS, *(f"alone {name}" for name in TRAININGS)):
        examples(made / name / "examples")
    return made


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, dict[str, Any]]]:
    """What two ranks of a gang reported of every training."""
    asked = {}
    for name, (given, stops_at) in TRAININGS.items():
        more = {"checkpoints": str(folder / name / "kept")} if "checkpoints" in given else {}
        asked[name] = ({**given, **more, "ranks": 2}, stops_at)
    # Imported once, not by every rank.
    preload = ("torch.distributed.fsdp", "transformers.models.llama.modeling_llama", train_all.__module__)
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    with (
        RankZygote(env=environment, cwd=str(folder), sys_path=sys.path, preload=preload) as zygote,
        Gang([RankConfig(0), RankConfig(1)], starter=zygote.starter()) as gang,
    ):
        return gang.run(train_all, folder, asked, timeout_s=180)


def losses_of(points: list[dict[str, Any]], name: str) -> list[float]:
    return [point[name] for point in points if point[name] is not None]


@pytest.mark.parametrize(("name", "rel"), [("plain", 1e-5), ("recomputed", 1e-5), ("narrow", 1e-2)])
def test_two_ranks_lose_what_one_alone_does(ranks: list[Any], folder: Path, name: str, rel: float) -> None:
    given = {key: value for key, value in TRAININGS[name][0].items() if key != "checkpoints"}
    alone = train_in(folder / f"alone {name}", "out", given)["points"]
    for loss in ("loss", "eval_loss"):
        assert losses_of(ranks[0][name]["points"], loss) == pytest.approx(losses_of(alone, loss), rel=rel)
    assert losses_of(alone, "loss")[-1] < losses_of(alone, "loss")[0]


def test_the_first_rank_writes_whole_weights(ranks: list[Any], folder: Path) -> None:
    assert ranks[0]["plain"]["points"] == ranks[1]["plain"]["points"]
    assert read_base(folder / "plain" / "out").files == read_base(bundled_base("tiny")).files
    best = read_weights(read_base(folder / "recomputed" / "kept" / "best"))
    result = read_weights(read_base(folder / "recomputed" / "out"))
    assert best.keys() == result.keys()
    assert all(bool((best[name] == result[name]).all()) for name in best)


def test_two_ranks_resume_and_return_the_weights_of_an_evaluation_before(ranks: list[Any], folder: Path) -> None:
    assert {"log": f"resumed after update {STOPS - 1} of {LAST}"} in ranks[0]["worse again"]["said"]
    train_in(folder / "alone worse", "out", WORSE)
    curve = read_training(folder / "worse" / "out")["curve"]
    _, best = min((point["eval_loss"] or math.inf, point["step"]) for point in curve["points"])
    assert curve["kept"] == best < STOPS - 1
    kept, alone = (read_weights(read_base(folder / name / "out")) for name in ("worse", "alone worse"))
    assert all(kept[name].numpy() == pytest.approx(one.numpy(), abs=1e-3) for name, one in alone.items())


def test_what_two_ranks_began_one_goes_on_with(ranks: list[Any], folder: Path) -> None:
    assert ranks[0]["stopped"]["points"] == []
    rest = train_in(folder / "stopped", "out", {})
    assert {"log": f"resumed after update {STOPS - 1} of {LAST}"} in rest["said"]
    whole = ranks[0]["plain"]["points"]
    assert losses_of(rest["points"], "loss") == pytest.approx(losses_of(whole, "loss"), rel=1e-5)
