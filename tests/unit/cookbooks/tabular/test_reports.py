from __future__ import annotations

import csv
import io
import json
import platform
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.authoring import StageContext, StageInputError
from stoker.cookbooks.tabular import COOKBOOK
from stoker.cookbooks.tabular.kinds import Split, Table, TabularModel, TabularReport, TabularScores
from stoker.cookbooks.tabular.report import report
from stoker.core.errors import StageDiverged
from tests.later import imported_later
from tests.unit.cookbooks.tabular.walking import Walked, run_recipe

with imported_later():
    import joblib
    import pandas as pd

    from stoker.cookbooks.tabular.report_card import model_card, number, scores_csv, summary


def write_report(walked: Walked, folder: Path) -> Path:
    """Write the report of an evaluation once more, elsewhere."""
    folder.mkdir()
    job = StageContext(node="report", out=str(folder), emit=lambda _: None, is_cancelled=lambda: False)
    models = [handle for name, handle in walked.artifacts.items() if name.startswith("train_")]
    report.run(job=job, scores=walked.artifacts["evaluate"], models=models)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_comparison_beats_the_baseline_and_says_by_how_much(compared):
    book = compared.artifacts["evaluate"].load()
    *trained, simple = book["models"]
    assert [model["name"] for model in trained] == ["gbt", "knn", "mlp"]
    assert simple["name"] == "baseline"
    for model in trained:
        assert model["test"]["balanced_accuracy"]["low"] > simple["test"]["balanced_accuracy"]["high"]
        assert model["test"]["balanced_accuracy"]["value"] > 0.9
        assert model["cross_validation"]["folds"] == 5
        assert sum(map(sum, model["confusion"])) == book["split"]["test_rows"] == 143
        assert len(model["learning"]["rows"]) == 5
    best = next(model for model in trained if model["name"] == book["best"])
    assert best["behind_best"] is None
    assert best["cross_validation"]["mean"]["balanced_accuracy"] == max(
        model["cross_validation"]["mean"]["balanced_accuracy"] for model in trained
    )


def test_training_reports_its_steps_and_its_loss(compared):
    assert len(compared.steps("train_gbt")) > 5
    assert all("loss" in step["metrics"] for step in compared.steps("train_gbt") + compared.steps("train_mlp"))
    assert compared.steps("validate_mlp")[-1]["step"] == compared.steps("validate_mlp")[-1]["of"]


def test_the_scores_of_the_best_model_are_metrics_by_which_runs_are_compared(compared):
    book = compared.artifacts["evaluate"].load()
    best = next(model for model in book["models"] if model["name"] == book["best"])
    told = compared.steps("evaluate")[-1]["metrics"]
    assert told["accuracy"] == best["test"]["accuracy"]["value"]
    assert told["cv_balanced_accuracy"] == best["cross_validation"]["mean"]["balanced_accuracy"]
    assert set(told) == {*book["metrics"], "cv_balanced_accuracy"}


def test_a_report_has_everything_that_a_person_looks_for(compared):
    names = set(contents(compared.final.path))
    assert {"scores.csv", "scores.json", "summary.json", "model-card.md", "report.html", "best-model.joblib"} <= names
    for plot in ("scores", "roc", "calibration", "learning", "importance", "confusion-gbt", "training-mlp"):
        assert {f"plots/{plot}.png", f"plots/{plot}.svg"} <= names


def test_every_stage_gives_the_same_bytes_twice(tmp_path):
    given: dict[str, Any] = {"data": "iris", "trees": 8, "epochs": 8, "curve_points": 0, "folds": 2, "bootstraps": 100}
    given["models"] = ("gbt", "knn", "knn_semi", "mlp")
    first = run_recipe("compare", tmp_path / "one", until="evaluate", **given)
    run_recipe("compare", tmp_path / "two", until="evaluate", **given, n_jobs=2)
    for node in first.artifacts:
        assert contents(tmp_path / "one" / node) == contents(tmp_path / "two" / node), node


def test_a_report_names_no_host_time_or_path(compared):
    for name, content in contents(compared.final.path).items():
        if name.endswith((".png", ".joblib")):
            continue
        text = content.decode()
        assert str(compared.final.path.parent) not in text
        assert not re.search(r"/(home|root|tmp|usr)/", text), name
        assert platform.node() not in text or len(socket.gethostname()) < 4
        assert not re.search(r"\b20\d\d-\d\d-\d\d", text), name


def test_the_page_needs_nothing_beside_it(compared):
    page = (compared.final.path / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml;base64,") == len(list((compared.final.path / "plots").glob("*.svg")))
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "<script" not in page


def test_the_summary_is_a_headline_a_table_and_what_to_try_next(compared):
    shown = json.loads((compared.final.path / "summary.json").read_text())
    assert shown["headline"].startswith(compared.artifacts["evaluate"].load()["best"])
    assert shown["table"]["columns"][0] == "model"
    assert [len(row) for row in shown["table"]["rows"]] == [len(shown["table"]["columns"])] * 4
    assert shown["table"]["rows"][-1][0] == "baseline"
    assert all(line.startswith("stoker run tabular/") for line in shown["next"])


@pytest.mark.parametrize("best", ["gbt", "knn", "mlp"])
def test_what_to_try_next_is_what_the_recipes_take(compared, best):
    book = compared.artifacts["evaluate"].load()
    book["best"] = best
    for line in summary(book)["next"]:
        _, _, name, *given = shlex.split(line)
        recipe = next(recipe for recipe in COOKBOOK.recipes if recipe.name == name)
        values, faults = recipe.args.read(dict(word.split("=", 1) for word in given), owner=name)
        assert faults == []
        assert recipe.args.check(values, owner=name)[1] == []


def test_the_scores_file_has_a_line_per_model_and_metric(compared):
    rows = list(csv.DictReader(io.StringIO((compared.final.path / "scores.csv").read_text())))
    assert len(rows) == 4 * 6
    assert {row["model"] for row in rows if row["is_best"] == "true"} == {compared.artifacts["evaluate"].load()["best"]}
    assert all(float(row["low"]) <= float(row["test"]) <= float(row["high"]) for row in rows)


def test_the_best_model_predicts_without_stoker(compared):
    model = joblib.load(compared.final.path / "best-model.joblib")
    frame, _ = compared.artifacts["load"].load()
    assert (model.predict(frame) == frame["target"]).mean() > 0.93


def test_quantities_get_their_own_scores_and_plots(regressed):
    book = regressed.artifacts["evaluate"].load()
    assert book["metrics"] == ["r2", "mae", "rmse"]
    simple = book["models"][-1]["test"]["rmse"]["value"]
    assert all(model["test"]["rmse"]["value"] < simple for model in book["models"][:-1])
    names = set(contents(regressed.final.path))
    assert "plots/predicted.png" in names
    assert not [name for name in names if "confusion" in name or "roc" in name]
    card = (regressed.final.path / "model-card.md").read_text(encoding="utf-8")
    assert "a quantity" in card
    assert "per class" not in card


def messy_csv(folder: Path) -> Path:
    """A file as people have them: gaps, categories, quoted separators, odd names, a key, a constant, a rare class."""
    generator = np.random.default_rng(3)
    rows = 120
    size, colour = generator.normal(0, 1, rows), generator.choice(["röd", "grün, hell", "青"], rows)
    answer = np.where(size + (colour == "röd") > 0.6, "<b>$ja$</b>", "no|pe")
    frame = pd.DataFrame({"größe $m$": size, "Farbe, *Ton*": colour, "key": [f"k{n}" for n in range(rows)], "one": 1})
    frame["ответ"] = answer
    frame.loc[generator.choice(rows, 15, replace=False), "größe $m$"] = np.nan
    frame.loc[generator.choice(rows, 15, replace=False), "Farbe, *Ton*"] = None
    frame.loc[:3, "ответ"] = None
    path = folder / "messy.csv"
    frame.to_csv(path, sep=";")
    return path


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Walked]:
    """A messy file, and the report of two models that learned from it."""
    folder = tmp_path_factory.mktemp("messy")
    path = messy_csv(folder)
    small: dict[str, Any] = {"trees": 10, "folds": 2, "curve_points": 2, "bootstraps": 100}
    given: dict[str, Any] = {"data": str(path), "target": "ответ", "models": ("gbt", "knn_semi"), **small}
    return path, run_recipe("compare", folder / "run", **given)


def test_the_same_scores_give_the_same_bytes_anywhere(messy, tmp_path):
    _, walked = messy
    assert contents(write_report(walked, tmp_path / "again")) == contents(walked.final.path)


def test_a_messy_file_goes_all_the_way_and_its_names_stay_text(messy):
    path, walked = messy
    facts = walked.artifacts["label"].load()[1]
    assert (facts["numeric"], facts["categorical"]) == (["größe $m$"], ["Farbe, *Ton*"])
    assert facts["rows"] == 116
    card = (walked.final.path / "model-card.md").read_text(encoding="utf-8")
    assert "4 rows of 120 had no value" in card
    assert "<b>" not in card
    page = (walked.final.path / "report.html").read_text(encoding="utf-8")
    assert "<b>$ja$" not in page
    assert "&lt;b&gt;$ja$" in page
    assert "messy.csv" not in card + page
    model = joblib.load(walked.final.path / "best-model.joblib")
    fresh = pd.read_csv(path, sep=";")
    assert set(model.predict(fresh)) <= {"<b>$ja$</b>", "no|pe"}


def test_a_parquet_file_goes_all_the_way(tmp_path):
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(0, 1, (90, 3)), columns=["a", "b", "c"])
    frame["grade"] = pd.Categorical(generator.choice(["x", "y"], 90))
    frame["value"] = frame["a"] * 3 + (frame["grade"] == "x") * 2 + generator.normal(0, 0.1, 90)
    frame.to_parquet(tmp_path / "t.parquet")
    given: dict[str, Any] = {"data": str(tmp_path / "t.parquet"), "target": "value", "model": {"trees": 60}, "folds": 2}
    walked = run_recipe("gbt", tmp_path / "run", **given, curve_points=2, until="evaluate")
    book = walked.artifacts["evaluate"].load()
    assert book["facts"]["problem"] == "regression"
    assert book["models"][0]["test"]["r2"]["value"] > 0.5
    assert summary(book)["next"][0] == "stoker run tabular/compare data=FILE target=value"


def test_a_rare_class_gets_fewer_folds_or_none_and_it_is_said(tmp_path):
    frame = pd.DataFrame({"x": np.arange(60.0), "y": ["a"] * 30 + ["b"] * 27 + ["c"] * 3})
    frame.to_csv(tmp_path / "rare.csv", index=False)
    given: dict[str, Any] = {"data": str(tmp_path / "rare.csv"), "target": "y", "neighbours": 3, "until": "evaluate"}
    fewer = run_recipe("knn", tmp_path / "fewer", **given)
    assert "2 folds instead of 5" in fewer.logs("validate_knn")[0]
    none = run_recipe("knn", tmp_path / "none", **given, test_percent=60)
    assert "No cross-validation" in none.logs("validate_knn")[0]
    book = none.artifacts["evaluate"].load()
    assert book["ranked_on"] == "test"
    assert "its score is too good" in model_card(book)
    assert ",,," not in scores_csv(book).splitlines()[0]


def test_one_class_a_tiny_class_and_a_missing_target_are_refused_at_their_stage(tmp_path):
    cases = {
        "one.csv": ("x,y\n" + "1,a\n" * 20, "has one class, a"),
        "tiny.csv": ("x,y\n" + "1,a\n2,b\n" * 10 + "3,c\n", "rows per class: c: 1, a: 10, b: 10"),
    }
    for name, (text, message) in cases.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(StageInputError, match=message):
            run_recipe("knn", tmp_path / f"run-{name}", data=str(tmp_path / name), target="y")
    with pytest.raises(StageInputError, match="target is missing"):
        run_recipe("knn", tmp_path / "run-target", data=str(tmp_path / "tiny.csv"))


def test_a_network_with_an_absurd_learning_rate_is_stopped_as_diverged(tmp_path):
    with pytest.raises(StageDiverged, match="loss is"):
        run_recipe("mlp", tmp_path, data="diabetes", lr=1e200)


def test_kinds_refuse_bytes_that_are_not_theirs(compared, tmp_path):
    (tmp_path / "table.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(ValueError, match="not a whole Parquet file"):
        Table.check_folder(str(tmp_path))
    with pytest.raises(ValueError, match=r"train\.parquet is missing"):
        Split.check_folder(str(tmp_path))
    with pytest.raises(ValueError, match=r"model\.joblib is missing"):
        TabularModel.check_folder(str(tmp_path))
    with pytest.raises(ValueError, match=r"summary\.json"):
        TabularReport.check_folder(str(tmp_path))
    (tmp_path / "value.json").write_text("{")
    with pytest.raises(ValueError, match="line 1"):
        TabularScores.validate(tmp_path / "value.json")


def test_numbers_are_written_in_a_sensible_precision():
    assert [number(value) for value in (0.93749, -0.0001, 1234.567, float("nan"))] == ["0.937", "0.000", "1,234.6", "–"]
