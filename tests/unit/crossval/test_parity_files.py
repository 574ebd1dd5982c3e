"""The step of weights: what counts as rounding between types, and what is left out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from stoker.crossval.fixture_folder import SAFETENSORS, write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from stoker.crossval.ladder import Outcome, Step
from stoker.crossval.model_files import open_model
from stoker.crossval.parity_files import compare_weights
from tests.fakes.broken_models import FAULTS, break_model


def compared(candidate: Path, reference: Path) -> Step:
    return compare_weights(open_model(candidate), open_model(reference))


def model(path: Path, **tensors: tuple[str, bytes]) -> Path:
    """Write tensors of one dimension, each of one byte per value unless its type is known."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        count = len(values) // {"F32": 4, "F16": 2}.get(dtype, 1)
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def floats(*values: float, of: str = "<f4") -> bytes:
    return np.array(values, dtype=of).tobytes()


def test_a_tensor_that_can_not_be_read_does_not_hide_others(tmp_path: Path):
    eight, four = ("F8_E4M3", b"abcd"), ("F32", floats(1, 2, 3, 4))
    reference = model(tmp_path / "r.safetensors", a=four, b=four, c=four, d=four)
    same = compared(model(tmp_path / "s.safetensors", a=eight, b=four, c=eight, d=four), reference)
    assert (same.outcome, same.reason) == (
        Outcome.SKIPPED,
        "F8_E4M3 can't be compared with F32: 2 tensors not compared (a, c); the other 2 are the same",
    )
    changed = "F32", floats(1, 2, 3.5, 4)
    found = compared(model(tmp_path / "c.safetensors", a=eight, b=four, c=eight, d=changed), reference)
    assert found.outcome is Outcome.FAILED
    assert found.reason == "d: 1 of 4 values differ, the first at [2]"
    whole = model(tmp_path / "w.safetensors", a=eight, b=four)
    assert compared(whole, whole).outcome is Outcome.PASSED


@pytest.mark.parametrize(("change", "outcome"), [(0.0, Outcome.PASSED), (0.004, Outcome.FAILED)])
def test_one_value_that_differs_by_more_than_rounding_is_found_among_many(
    tmp_path: Path, change: float, outcome: Outcome
):
    values = np.random.default_rng(1).normal(size=100_000).astype("<f4")
    rounded = values.astype("<f2")
    rounded[70_000] += change
    reference = model(tmp_path / "r.safetensors", a=("F32", values.tobytes()))
    step = compared(model(tmp_path / "c.safetensors", a=("F16", rounded.tobytes())), reference)
    assert step.outcome is outcome, step.reason
    assert ("a value differs by 0.004" in step.reason) == bool(change)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_changed_weight_is_found_although_the_types_differ(tmp_path: Path, kind: str):
    write_fixture(str(tmp_path / "whole"), FixtureSpec(size="tiny"), (SAFETENSORS, "f32", kind), now_s=0.0)
    reference = tmp_path / "whole" / f"model-{kind}.gguf"
    assert compared(tmp_path / "whole", reference).outcome is Outcome.PASSED
    broken = break_model(tmp_path / "whole" / "model-f32.gguf", tmp_path / "broken.gguf", FAULTS["weight + 0.1"])
    step = compared(broken, reference)
    assert step.divergence is not None
    assert step.divergence.tensor == "blk.1.ffn_up.weight"
