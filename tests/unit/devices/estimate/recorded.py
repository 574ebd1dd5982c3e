"""What was measured and counted elsewhere, as trainings of ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.terms import Estimate, estimate
from stoker.devices.estimate.training_setup import TrainingSpec, read_training

ROOT = Path(__file__).parents[4]
SHAPES = json.loads((ROOT / "tests" / "recordings" / "model_shapes.json").read_text())
H200 = json.loads((ROOT / "benchmarks" / "recorded" / "vram_h200.json").read_text())


def training_of(case: dict[str, Any]) -> TrainingSpec:
    """Return the training that a recorded case was made of."""
    return read_training(read_shape(case["config"]), [f"{key}={value}" for key, value in case["training"].items()])


def name_of(case: dict[str, Any]) -> str:
    """Return a recorded case's name."""
    said = " ".join(f"{key}={value}" for key, value in case["training"].items())
    return f"{case.get('model') or case['config']['model_type']} {said}"


@cache
def foretold(place: int) -> Estimate:
    """Return the estimate of one measured case; made once."""
    return estimate(training_of(H200["measured"][place]), gpu="NVIDIA H200")
