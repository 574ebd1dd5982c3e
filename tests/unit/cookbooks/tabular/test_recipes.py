from __future__ import annotations

import subprocess
import sys

import pytest

from stoker.authoring import InvalidArgs
from stoker.cookbooks.tabular import COOKBOOK, recipes
from stoker.engine.code_identity import CodeIdentity

NAMES = ("compare", "gbt", "knn", "knn_semi", "mlp")


def compiled(name: str, **given):
    recipe = getattr(recipes, name)
    return recipe.compile(recipe.args.build(given, owner=recipe.name))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_compiles_with_nothing_but_its_defaults(name):
    plan = compiled(name)
    assert [node.id for node in plan.nodes][:3] == ["load", "label", "split"]
    assert [node.id for node in plan.nodes][-2:] == ["evaluate", "report"]
    assert plan.final == "report"


def test_a_comparison_trains_and_validates_each_model_on_the_same_split():
    plan = compiled("compare", models=("mlp", "knn_semi"))
    assert plan.node("evaluate").inputs["models"] == ("train_mlp", "train_knn_semi")
    assert plan.node("evaluate").inputs["validations"] == ("validate_mlp", "validate_knn_semi")
    assert plan.node("train_mlp").inputs == plan.node("train_knn_semi").inputs == {"data": ("split",)}


def test_a_single_model_may_be_compared_with_the_baseline_alone():
    assert "train_gbt" in [node.id for node in compiled("compare", models=("gbt",)).nodes]


def test_a_bundled_name_and_a_path_reach_the_plan_as_different_things(tmp_path):
    path = tmp_path / "wine.csv"
    path.write_text("a,b\n1,2\n")
    assert compiled("gbt", data="wine").node("load").args == {"bundled": "wine", "file": None}
    assert compiled("gbt", data=str(path)).node("load").args == {"bundled": None, "file": str(path)}


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"data": "brest_cancer"}, "tabular/gbt.data", "did you mean 'breast_cancer'?"),
        ({"data": "./gone.csv"}, "tabular/gbt.data", "file not found: ./gone.csv"),
        ({"data": "gone.csv"}, "tabular/gbt.data", "file not found: gone.csv"),
        ({"data": "."}, "tabular/gbt.data", "is a folder"),
        ({"data": "zzz"}, "tabular/gbt.data", "one of breast_cancer, wine, iris, digits, diabetes"),
        ({"test_percent": 95}, "tabular/gbt.test_percent", "at most 90"),
        ({"lr": 0}, "tabular/gbt.lr", "more than 0"),
        ({"tree": 5}, "tabular/gbt.tree", "did you mean 'model.trees'?"),
        ({"rank_by": "best"}, "tabular/gbt.rank_by", "is not one of auto, accuracy"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(given, where, message):
    with pytest.raises(InvalidArgs) as caught:
        compiled("gbt", **given)
    assert caught.value.faults[0].where == where
    assert message in str(caught.value.faults[0])


def test_no_model_or_one_model_twice_is_refused():
    with pytest.raises(InvalidArgs, match="no model to train"):
        compiled("compare", models=())
    with pytest.raises(InvalidArgs, match="knn more than once"):
        compiled("compare", models=("knn", "gbt", "knn"))


def test_faults_of_several_arguments_are_reported_together():
    with pytest.raises(InvalidArgs, match="2 errors in the arguments of tabular/compare") as caught:
        compiled("compare", data="irs", models=())
    assert [fault.where for fault in caught.value.faults] == ["tabular/compare.data", "tabular/compare.models"]


def test_threads_are_not_part_of_the_work_and_the_seed_is():
    for recipe in COOKBOOK.recipes:
        assert recipe.args.specs["n_jobs"].is_runtime
        assert not recipe.args.specs["seed"].is_runtime


def test_every_argument_says_what_it_is_for():
    for recipe in COOKBOOK.recipes:
        assert recipe.summary
        for name, spec in recipe.args.specs.items():
            assert spec.help, f"{recipe.name}.{name}"
    for stage in COOKBOOK.stages:
        assert stage.summary
        assert all(spec.help for spec in stage.args.specs.values()), stage.name


def test_everything_that_a_plan_uses_is_in_the_cookbook():
    used = {node.stage for name in NAMES for node in compiled(name).nodes}
    assert used == set(COOKBOOK.stages)
    kinds = {stage.output for stage in used} | {port.kind for stage in used for port in stage.ports}
    assert kinds == set(COOKBOOK.kinds)


def test_importing_the_cookbook_loads_no_numeric_library():
    program = (
        "import sys\n"
        "from stoker.cookbooks.tabular import COOKBOOK\n"
        "assert COOKBOOK.recipes\n"
        "heavy = {'numpy', 'pandas', 'sklearn', 'pyarrow', 'matplotlib', 'scipy', 'joblib'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_editing_one_family_leaves_the_code_of_the_others_alone(tmp_path):
    code = CodeIdentity(str(tmp_path / "code.json"))
    prefix = "stoker.cookbooks.tabular"
    of_gbt = code.modules_of(f"{prefix}.train_gbt")
    assert f"{prefix}.training" in of_gbt
    assert f"{prefix}.train_knn" not in of_gbt
    assert f"{prefix}.train_mlp" not in of_gbt
    of_load = code.modules_of(f"{prefix}.data")
    assert f"{prefix}.tables" in of_load
    assert not [name for name in of_load if "train" in name or "report" in name or "recipes" in name]
