"""On a real card: one fixture on the processor in F32 and on the card in each precision, and a fallback that is caught.

Needs an NVIDIA card, torch and transformers in this interpreter; 4bit also needs bitsandbytes. Limits are those of the
notes for each precision: normalised squared error of the worst of 64 positions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import PluginFailed, SilentFallback
from stoker.crossval.fixture_folder import SAFETENSORS, write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from stoker.crossval.plugin_messages import Loaded, LoadRequest, fallbacks, require_promised
from stoker.crossval.plugin_process import Plugin
from stoker.crossval.runtimes import RuntimePlaces, plugin_command, read_runtime

pytestmark = pytest.mark.gpu

IDS = [(7 * place * place + 3 * place) % 96 + 3 for place in range(64)]
LIMITS = {"f32": 1e-9, "f16": 5e-4, "bf16": 2e-2, "4bit": 5e-2}


@pytest.fixture(scope="module", autouse=True)
def _a_card() -> None:
    smi = shutil.which("nvidia-smi")
    asked = subprocess.run([smi, "--list-gpus"], capture_output=True, text=True, check=False) if smi else None
    if asked is None or asked.returncode or "GPU" not in asked.stdout:
        pytest.skip("there is no NVIDIA card here")
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fixture") / "small"
    write_fixture(str(folder), FixtureSpec(size="small", arch="llama"), (SAFETENSORS,), now_s=0.0)
    return folder


def _run(words: str, model: Path) -> tuple[Loaded, LoadRequest, np.ndarray]:
    here = RuntimePlaces(environment=os.environ, folder="/", own_prefix=sys.prefix, own_python=sys.executable)
    choice = read_runtime(f"{words},python={sys.executable}")
    request = choice.load_request(str(model))
    with Plugin(plugin_command(choice, here)) as plugin:
        loaded = plugin.load(request)
        return loaded, request, np.stack([np.array(row.values) for row in plugin.logits(IDS)])


@pytest.fixture(scope="module")
def exact(fixture: Path) -> np.ndarray:
    return _run("torch", fixture)[2]


@pytest.mark.parametrize("precision", LIMITS)
def test_the_card_computes_what_the_processor_does(precision: str, fixture: Path, exact: np.ndarray) -> None:
    if precision == "4bit" and find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    if precision == "4bit":
        # The cost of quantisation is the model's, not the card's.
        exact = _run("torch,precision=4bit-as-f32", fixture)[2]
    loaded, request, rows = _run(f"torch,device=cuda,precision={precision}", fixture)
    assert loaded.ran.device == "cuda"
    assert not fallbacks(request, loaded)
    one, two = (values - values.mean(axis=1, keepdims=True, dtype=np.float64) for values in (rows, exact))
    worst = float((((one - two) ** 2).sum(axis=1) / (two**2).sum(axis=1)).max())
    print(f"{precision}: {worst:.2e}, {len(loaded.ran.kernels)} kernels, {loaded.ran.weights}")
    assert worst < LIMITS[precision]


def test_a_forced_fallback_is_caught(fixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _, _ = _run("torch", fixture)
    promised = read_runtime("torch,device=cuda").load_request(str(fixture))
    with pytest.raises(SilentFallback, match="it ran on cpu"):
        require_promised(promised, loaded, label="torch")
    # A card that is hidden is an error, not a run elsewhere.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(PluginFailed, match="no device cuda here"):
        _run("torch,device=cuda", fixture)
