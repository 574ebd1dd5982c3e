"""Faults in fixtures change what llama.cpp answers from the stated position on, and as much as is stated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stoker.crossval.fixture_folder import write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from stoker.store.weight_files.tensor_layouts import Architecture
from tests.contract.test_fixture_runtimes import by_llama
from tests.fakes.broken_models import FAULTS, LLAMAS, break_model

ARCHS: tuple[Architecture, ...] = ("llama", "qwen2", "gpt2")
POSITIONS = 32
# Of one runtime with itself there is no noise: the limit for F32 between runtimes decides.
LIMIT = 1e-9


def test_logits_show_each_fault_from_its_position_on_and_cosine_alone_misses_some(tmp_path: Path) -> None:
    wholes, models = {}, {}
    for arch in ARCHS:
        write_fixture(str(tmp_path / arch), FixtureSpec(size="tiny", arch=arch), ("f32",), now_s=0.0)
        wholes[arch] = tmp_path / arch / "model-f32.gguf"
        for fault in FAULTS.values():
            if arch in fault.archs and fault.place != "load":
                models[arch, fault] = break_model(wholes[arch], tmp_path / f"{arch} {fault.name}.gguf", fault)
    paths = [*wholes.values(), *models.values()]
    found, _ = by_llama([str(path) for path in paths], tmp_path)
    logits = dict(zip(paths, (_centred(one[:POSITIONS]) for one in found), strict=True))
    wrong = {}
    for (arch, fault), path in models.items():
        errors, cosines = _measures(logits[path], logits[wholes[arch]])
        first = next(iter(np.flatnonzero(~(errors <= LIMIT))), None)
        if fault.from_position is not None and first != fault.from_position:
            wrong[arch, fault.name] = f"from position {first}"
        if arch in LLAMAS and fault.found_by_cosine == bool((cosines >= 0.999).all()):
            wrong[arch, fault.name] = f"cosine {cosines.min()}"
    assert not wrong


def _centred(rows: np.ndarray) -> np.ndarray:
    return rows.astype(np.float64) - rows.mean(axis=1, keepdims=True, dtype=np.float64)


def _measures(candidate: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the normalised squared error and the cosine of each position."""
    squares = (reference**2).sum(axis=1)
    errors = ((candidate - reference) ** 2).sum(axis=1) / squares
    return errors, (candidate * reference).sum(axis=1) / np.sqrt((candidate**2).sum(axis=1) * squares)
