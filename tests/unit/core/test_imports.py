"""The bottom floor stands on the standard library alone and starts nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
import stoker.core

ROOM = Path(next(iter(stoker.core.__path__)))
MODULES = sorted(f"stoker.core.{file.stem}" for file in ROOM.glob("*.py") if file.stem != "__init__")
# A fresh interpreter without site-packages: what is loaded was asked for by the modules alone.
PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
from importlib import import_module
loaded = {}
for name in sys.argv[2:]:
    import_module(name)
    loaded[name] = sorted(set(sys.modules) - before)
import json
print(json.dumps(loaded))
"""
DOERS = {"subprocess", "socket", "sqlite3", "ssl", "asyncio", "multiprocessing", "http.client", "urllib.request"}


def load(*names: str) -> dict[str, list[str]]:
    source = str(ROOM.parent.parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROBE, source, *names], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Everything that importing the whole room loads."""
    return set(load(*MODULES)[MODULES[-1]])


def test_the_room_is_not_empty():
    assert len(MODULES) >= 14


def test_no_module_of_the_model_needs_anything_but_the_standard_library(loaded):
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"stoker"}


def test_no_module_of_the_model_imports_a_room_above_it(loaded):
    assert {name for name in loaded if name.startswith("stoker.")} == {"stoker.core", *MODULES}


def test_no_module_of_the_model_brings_in_what_acts_on_the_world(loaded):
    assert not loaded & DOERS


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_for(name):
    assert (ROOM / f"{name.rpartition('.')[2]}.py").read_text("utf-8").startswith('"""')
