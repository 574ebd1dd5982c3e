"""The bundled pairs through all stages of the recipe: tokens, an adapter that ranks them, a report."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.schemas import kept_point, read_training
from stoker.core import jsontext
from tests.unit.cookbooks.language.walked_language import compiled, run_node

if not all(map(find_spec, ("torch", "transformers", "matplotlib"))):
    pytest.skip("torch, transformers and matplotlib are not all here", allow_module_level=True)


@pytest.mark.parametrize(("method", "said"), [("dpo", {"lr": 3e-4}), ("orpo", {"lr": 3e-3, "beta": 1.0})])
def test_an_adapter_over_the_bundled_base_learns_the_bundled_preferences(
    method: str, said: dict[str, Any], tmp_path: Path
) -> None:
    plan = compiled("lora", method=method, data="preferences", steps=10, batch=4, rank=4, gpus=0, threads=1, **said)
    examples = run_node(plan, "tokenise", tmp_path)
    told: list[dict[str, Any]] = []
    adapter = run_node(plan, "train_lora", tmp_path, said=told, examples=examples)
    report = run_node(plan, "report_lora", tmp_path, adapter=adapter)
    training = read_training(adapter.path)
    first, *_, last = training["curve"]["points"]
    assert first["accuracy"] is not None
    assert first["accuracy"] < last["accuracy"] == 1.0  # type: ignore[operator]  # of pairs
    assert ("before_accuracy" in training["curve"]) is (method == "orpo")
    kept = kept_point(training)
    assert kept is not None
    assert kept["eval_accuracy"] == 1.0
    metrics = [one["metrics"] for one in told if "metrics" in one]
    assert metrics[-1]["eval_accuracy"] == 1.0
    assert (
        f"trained by {method.upper()}: 100 % of 6 held-out pairs"
        in jsontext.loads((report.path / "summary.json").read_text())["headline"]
    )
