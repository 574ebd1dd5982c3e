"""Every fence that the mutation gate takes away stands in today's source, and the gate finds each of them missed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tools" / "fence_list.py"


def _list() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fence_list", LIST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks itself up there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FENCES = _list().FENCES


def test_every_fence_stands_where_the_gate_looks_for_it():
    for fence in FENCES:
        text = (ROOT / "src" / "stoker" / fence.path).read_text()
        assert text.count(fence.old) == 1, f"tools/fence_list.py no longer knows where this is: {fence.name}"
        assert fence.new != fence.old, fence.name
        compile(text.replace(fence.old, fence.new), fence.path, "exec")
        assert all((ROOT / test.partition("::")[0]).exists() for test in fence.tests), fence.name


@pytest.mark.slow
def test_no_fence_can_be_taken_away_unnoticed():
    done = subprocess.run(
        [sys.executable, str(LIST.with_name("mutate_fences.py"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
