"""Programs on a real GPU: they see their device and no other, and its memory running out has its own name."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stoker.app import App
from stoker.authoring import PlanBuilder
from stoker.cookbooks.command.cookbook import OpenProgramArgs, run
from stoker.core.device import Capacity, Needs
from stoker.core.retry import FailureCause
from stoker.engine.plan import Plan
from stoker.engine.runners.program.launch import ProgramContext
from stoker.engine.runners.program.program_runner import ProgramRunner
from stoker.host.containment.box import Mechanism
from stoker.host.containment.mechanisms import choose_mechanism
from tests.unit.engine.lab import TRAINER, Lab

GPUS = () if "STOKER_GPU_FAKE" in os.environ else App.here().devices
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="there is no GPU here"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

TRAIN = """
import torch
x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
for step in range(20):
    loss = (x ** 2).mean()
    loss.backward()
    with torch.no_grad():
        x -= 100 * x.grad
        x.grad.zero_()
    print("stoker-metric: step=%d loss=%.4f devices=%d" % (step, loss.item(), torch.cuda.device_count()))
"""
GREEDY = """
import torch
torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
"""


def plan(code: str, folder: Path) -> Plan:
    args = OpenProgramArgs(argv=(sys.executable, "-c", code.replace("{", "{{").replace("}", "}}")), folder=str(folder))
    return PlanBuilder("gpu").start(run, args, id="run", needs=Needs(gpu=1)).finish()


def lab_on_gpu(folder: Path, *, contain: str | None = None) -> Lab:
    lab = Lab(folder, capacity=Capacity(cpu=4), devices=())
    lab.devices = GPUS
    lab.use_meter(App.here().meter)
    around = ProgramContext(
        environment=dict(os.environ), own_prefix=sys.prefix, trainer_folder=str(TRAINER), has_gpus=True
    )
    lab.programs = ProgramRunner(around, lambda: choose_mechanism(contain, environment=dict(os.environ)), lab.clock)
    return lab


def test_a_program_trains_on_the_device_it_was_given(tmp_path: Path) -> None:
    with lab_on_gpu(tmp_path / "lab") as lab:
        ran = lab.run(plan(TRAIN, tmp_path))
        assert ran.result.error is None, lab.log("run")
        (end,) = ran.of_kind("stage_end")
        assert end["metrics"]["devices"] == 1
        assert end["metrics"]["loss"] < 1.0


def test_a_device_that_has_no_more_memory_is_named_as_that(tmp_path: Path) -> None:
    with lab_on_gpu(tmp_path / "lab") as lab:
        ran = lab.run(plan(GREEDY, tmp_path))
        assert ran["run"].cause is FailureCause.OOM_DEVICE
        assert ran.result.error is not None
        assert ran.result.error.exit_code == 46


def test_an_address_space_limit_is_never_put_on_gpu_work(tmp_path: Path) -> None:
    with lab_on_gpu(tmp_path / "lab", contain=Mechanism.ADDRESS_SPACE) as lab:
        ran = lab.run(plan(TRAIN, tmp_path))
        assert ran.result.error is not None
        assert ran.result.error.exit_code == 42
