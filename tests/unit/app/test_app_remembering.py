"""What a plan learns of earlier shared processes."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import pytest

from stoker.app.machine_parts import remembered
from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.shared_base import MultiAdapterTraining
from stoker.devices.estimate.terms import CalibrationFile, keys_of

COMPANY = MultiAdapterTraining(shape=read_shape({"model_type": "llama"}))


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_plan_learns_what_shared_processes_of_its_kind_took_and_where_to_note_the_next(tmp_path):
    path = str(tmp_path / "vram.json")
    first = remembered(path, COMPANY)
    assert first.correction is None
    CalibrationFile(path).note_under(first.names, measured_bytes=110, estimated_bytes=100)
    told = remembered(path, COMPANY)
    assert told.names == keys_of(COMPANY, version("torch"))
    assert told.correction is not None
    assert round(told.correction.percent) == 110
