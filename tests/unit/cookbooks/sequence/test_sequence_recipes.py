from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from stoker.authoring import InvalidArgs, StageInputError
from stoker.cookbooks.sequence import COOKBOOK, recipes
from stoker.cookbooks.sequence.train_cnn import train_cnn
from stoker.cookbooks.tabular import COOKBOOK as TABULAR
from stoker.core import jsontext
from stoker.core.errors import BadInput
from stoker.engine.code_identity import CodeIdentity, missing_of
from stoker.engine.stage import perform
from tests.later import imported_later

with imported_later("torch"):
    import pandas as pd

    from stoker.cookbooks.sequence.restore import read_model
    from tests.unit.cookbooks.sequence.walked_series import SMALL, compiled, context, walk


NAMES = ("cnn", "gru", "lstm", "transformer", "transformer_ssl")


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Series and windows that every recipe begins with, made once."""
    return walk(compiled("gru", horizon=3, **SMALL), tmp_path_factory.mktemp("waves"), until="window")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_forecasts_the_waves(name, waves, tmp_path):
    given = {**SMALL, "epochs": 4, **({"pretrain_epochs": 1} if name == "transformer_ssl" else {})}
    made = walk(compiled(name, horizon=3, **given), tmp_path, waves, until="evaluate")
    book = made["evaluate"].load()
    assert book["model"]["family"] == name
    assert book["test"]["rmse"] < book["baseline"]["rmse"]
    assert len(book["by_step"]) == 3


def test_a_report_has_scores_curves_plots_and_a_model_that_answers(waves, tmp_path):
    given = {**SMALL, "pretrain_epochs": 1}
    report = walk(compiled("transformer_ssl", horizon=3, **given), tmp_path, waves)["report"]
    summary = jsontext.loads((report.path / "summary.json").read_text())
    assert summary["headline"].startswith("transformer_ssl on waves: RMSE ")
    assert [row[0] for row in summary["table"]["rows"]] == ["transformer_ssl", "baseline"]
    curve = [line.split(",")[:2] for line in (report.path / "curve.csv").read_text().splitlines()[1:]]
    assert curve == [["pre-training", "1"], ["training", "1"], ["training", "2"]]
    plots = {path.stem for path in (report.path / "plots").iterdir()}
    assert plots == {"loss-pre-training", "loss-training", "forecast", "steps"}
    assert "no window lies in two parts" in (report.path / "model-card.md").read_text()
    model = read_model(report.path)
    rows = waves["load"].load().signals[-8:]
    assert model.answer(rows[None]).shape == (1, 3)
    assert abs(model.answer(rows[None])[0, 0] - rows[-1, 0]) < 40
    for strange in (rows, rows[None, 1:], rows[None, :, :1]):
        with pytest.raises(BadInput, match="windows of 8 rows by 2 channels are required"):
            model.answer(strange)


def test_windows_are_classified_from_a_file_of_the_users(tmp_path):
    quick = np.repeat(np.arange(30) % 2, 12)
    turns = np.cumsum(np.where(quick, 2.0, 0.4))
    frame = pd.DataFrame({"x": np.sin(turns), "pace": np.where(quick, "quick", "slow")})
    frame.to_csv(tmp_path / "pace.csv", index=False)
    given = {**SMALL, "stride": 1, "epochs": 12, "lr": 0.02}
    made = walk(compiled("gru", data=str(tmp_path / "pace.csv"), target="pace", **given), tmp_path / "run")
    book = made["evaluate"].load()
    assert book["test"]["balanced_accuracy"] > book["baseline"]["balanced_accuracy"] + 0.2
    assert np.sum(book["confusion"]) == book["model"]["data"]["counts"]["test"]
    probabilities = made["train_gru"].load().answer(frame["x"].to_numpy()[-8:].reshape(1, 8, 1))
    assert probabilities.sum() == pytest.approx(1.0)


def test_a_file_of_one_column_is_a_series(tmp_path):
    (tmp_path / "one.csv").write_text("x\n" + "".join(f"{np.sin(row / 3):.4f}\n" for row in range(200)))
    plan = compiled("cnn", data=str(tmp_path / "one.csv"), **SMALL)
    out = tmp_path / "load"
    out.mkdir()
    node = plan.node("load")
    made = perform(node.stage, context("load", out), {}, node.stage.args.make(node.args))
    assert made.load().facts["channels"] == ["x"]


def test_the_same_recipe_makes_the_same_bytes(waves, tmp_path):
    plan = compiled("lstm", **SMALL)
    first, second = (
        walk(plan, tmp_path / name, waves, until="train_lstm")["train_lstm"].path for name in ("first", "second")
    )
    assert (first / "model.pt").read_bytes() == (second / "model.pt").read_bytes()
    assert (first / "model.json").read_bytes() == (second / "model.json").read_bytes()


def test_a_training_reports_its_losses_and_goes_on_from_its_scratch(waves, tmp_path):
    node = compiled("gru", **SMALL).node("train_gru")
    args = node.stage.args.make(node.args)
    logs = []
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        said: list[dict[str, Any]] = []
        job = context("train_gru", tmp_path / attempt, said=said)
        job._scratch = str(tmp_path / "scratch")
        perform(node.stage, job, {"data": waves["window"]}, args)
        steps = [event for event in said if "step" in event]
        assert [event["step"] for event in steps] == ([1, 2] if attempt == "first" else [])
        assert all(set(event["metrics"]) == {"loss", "train_loss"} for event in steps)
        logs.append([event["log"] for event in said if "log" in event])
    assert logs[1][0] == "resumes after epoch 2"
    assert not (tmp_path / "second" / "progress.pt").exists()


def test_a_horizon_for_classes_is_refused(tmp_path):
    with pytest.raises(StageInputError, match="horizon=3, but 'state' is a class"):
        walk(compiled("gru", data="regimes", horizon=3, **SMALL), tmp_path)


@pytest.mark.parametrize(
    ("name", "given", "where", "message"),
    [
        ("gru", {"data": "wave"}, "sequence/gru.data", "did you mean 'waves'?"),
        ("gru", {"data": "./gone.csv"}, "sequence/gru.data", "file not found: ./gone.csv"),
        ("gru", {"data": " "}, "sequence/gru.data", "is empty"),
        ("gru", {"data": "."}, "sequence/gru.data", "is a folder"),
        ("gru", {"window": 0}, "sequence/gru.window", "at least 1"),
        ("gru", {"stride": 0}, "sequence/gru.stride", "at least 1"),
        ("gru", {"test_percent": 60}, "sequence/gru.test_percent", "at most 45"),
        ("transformer", {"width": 30}, "sequence/transformer.width", "no multiple of heads=4"),
        ("transformer_ssl", {"mask_percent": 0}, "sequence/transformer_ssl.mask_percent", "at least 1"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(name, given, where, message):
    with pytest.raises(InvalidArgs) as caught:
        compiled(name, **given)
    assert caught.value.faults[0].where == where
    assert message in str(caught.value.faults[0])


def test_only_trainings_ask_for_ranks_and_a_gpu_for_each():
    plan = compiled("transformer_ssl", gpus=1, ranks=3)
    asking = {node.id: (node.asks.ranks, node.asks.gpu) for node in plan.nodes if node.asks is not None}
    assert asking == {"pretrain": (3, 3), "finetune": (3, 3)}


def test_threads_checkpoints_and_devices_are_not_part_of_the_work():
    for recipe in COOKBOOK.recipes:
        runtime = {name for name, spec in recipe.args.specs.items() if spec.is_runtime}
        assert runtime == {"n_jobs", "checkpoint_every", "gpus"}


def test_every_argument_says_what_it_is_for_and_stages_and_kinds_are_listed():
    for recipe in COOKBOOK.recipes:
        assert recipe.summary
        assert all(spec.help for spec in recipe.args.specs.values()), recipe.name
    used = {node.stage for name in NAMES for node in compiled(name).nodes}
    assert used == set(COOKBOOK.stages)
    kinds = {stage.output for stage in used} | {port.kind for stage in used for port in stage.ports}
    assert kinds == set(COOKBOOK.kinds)
    assert all(stage.summary and all(spec.help for spec in stage.args.specs.values()) for stage in used)


def test_the_models_that_a_manifest_may_name_are_the_last_words_of_one_recipe_each():
    words = [recipe.leaf for cookbook in (TABULAR, COOKBOOK) for recipe in cookbook.recipes]
    for model in ("gbt", "knn", "knn_semi", "mlp", *NAMES):
        assert words.count(model) == 1


def test_importing_and_compiling_loads_no_numeric_library():
    program = (
        "import sys\n"
        "from stoker.cookbooks.sequence import COOKBOOK\n"
        "for recipe in COOKBOOK.recipes: recipe.compile(recipe.args.build({}, owner=recipe.name))\n"
        "heavy = {'numpy', 'pandas', 'torch', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_editing_one_family_leaves_the_others_alone_and_what_is_borrowed_counts(tmp_path):
    code = CodeIdentity(str(tmp_path / "code.json"))
    prefix = "stoker.cookbooks.sequence"
    of_cnn = code.modules_of(f"{prefix}.train_cnn")
    assert f"{prefix}.convolution" in of_cnn
    assert f"{prefix}.training" in of_cnn
    assert f"{prefix}.attention" not in of_cnn
    assert f"{prefix}.train_recurrent" not in of_cnn
    of_evaluate = code.modules_of(f"{prefix}.evaluate")
    assert {f"{prefix}.{name}" for name in ("attention", "convolution", "recurrent")} <= set(of_evaluate)
    of_load = code.modules_of(f"{prefix}.data")
    assert "stoker.cookbooks.tabular.tables" in of_load
    assert not [name for name in of_load if "train" in name or "report" in name or "recipes" in name]


def test_what_is_not_installed_is_told_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    missing = missing_of([train_cnn])
    assert missing is not None
    assert str(missing) == "sequence/train_cnn needs numpy, torch: not installed"
    assert missing.hint == f"{sys.executable} -m pip install 'stoker[sequence]'"


def test_recipes_are_found_by_their_functions():
    assert {recipe.leaf for recipe in COOKBOOK.recipes} == set(NAMES)
    assert all(getattr(recipes, name).name == f"sequence/{name}" for name in NAMES)
