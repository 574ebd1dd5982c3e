"""On a real card: one fixture on the processor in F32 and on the card in each precision, and a fallback that is caught.

    PYTHONPATH=src python -m pytest --noconftest -s tests/system/test_crossval_on_gpu.py

Needs an NVIDIA card, numpy, torch and transformers in this interpreter; 4bit also needs bitsandbytes and accelerate.
Limits are those of the guide for each precision: normalised squared error of the worst of 64 positions. The smoke test
of cosine 0.99 is in the same runs.
"""

from __future__ import annotations

import json
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
SMOKE = 0.99
SOURCES = Path(__file__).parents[2] / "src"
FALLS_BACK = f"""
import sys
sys.path.insert(0, {str(SOURCES)!r})
from stoker.crossval.plugins import protocol_loop, torch_plugin


class FallsBack(torch_plugin.TorchPlugin):
    def load(self, request):
        return super().load({{**request, "device": "cpu"}})


protocol_loop.serve(FallsBack)
"""


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
        exact = _run("torch,device=cuda,precision=4bit-as-f32", fixture)[2]
    loaded, request, rows = _run(f"torch,device=cuda,precision={precision}", fixture)
    assert loaded.ran.device == "cuda"
    assert not fallbacks(request, loaded)
    one, two = (values - values.mean(axis=1, keepdims=True, dtype=np.float64) for values in (rows, exact))
    worst = float((((one - two) ** 2).sum(axis=1) / (two**2).sum(axis=1)).max())
    lengths = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
    cosine = float(((one * two).sum(axis=1) / lengths).min())
    kernels = len(loaded.ran.kernels)
    print(f"{precision}: nmse {worst:.2e}, cosine {cosine:.6f}, {kernels} kernels, {loaded.ran.weights}")
    assert worst < LIMITS[precision]
    assert cosine >= SMOKE


@pytest.mark.parametrize("precision", ["f32", "f16", "bf16"])
def test_the_command_takes_every_step_between_the_card_and_the_processor(
    precision: str, fixture: Path, tmp_path: Path
) -> None:
    words = ["--model", str(fixture), "--candidate", f"torch,device=cuda,precision={precision}", "--reference", "torch"]
    done = _stoker(tmp_path, "crossval", *words, "--strict")
    shown = done.stdout + done.stderr
    print(shown)
    assert done.returncode == 0, shown
    verdict = json.loads((tmp_path / "stoker-out" / "crossval" / "parity.json").read_text())
    steps = {one["step"]: one["outcome"] for one in verdict["steps"]}
    assert set(steps.values()) == {"passed"}, steps
    worst = {one["step"]: one["summary"].get("worst_error") for one in verdict["steps"] if "summary" in one}
    print(f"{precision}: {worst}, limits {verdict['limits']}")


def _stoker(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command from the sources, which may not be installed: it is told where its recipes are."""
    settings = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "STOKER_HOME": str(folder / "home"),
        "STOKER_COOKBOOKS": "stoker.crossval.cookbook:COOKBOOK",
    }
    argv = [sys.executable, "-P", "-m", "stoker", *words]
    return subprocess.run(argv, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def test_a_forced_fallback_is_caught(fixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _, _ = _run("torch", fixture)
    promised = read_runtime("torch,device=cuda").load_request(str(fixture))
    with pytest.raises(SilentFallback, match="it ran on cpu"):
        require_promised(promised, loaded, label="torch")
    # A card that is hidden is an error, not a run elsewhere.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(PluginFailed, match="no device cuda here"):
        _run("torch,device=cuda", fixture)


def test_strict_fails_a_plug_in_that_says_cuda_and_runs_on_the_processor(fixture: Path, tmp_path: Path) -> None:
    """The whole command, with a plug-in that gives the right numbers on the wrong device."""
    (tmp_path / "falls_back.py").write_text(FALLS_BACK)
    words = ["--model", str(fixture), "--candidate", "./falls_back.py,device=cuda", "--reference", "torch"]
    lenient = _stoker(tmp_path, "crossval", *words)
    assert lenient.returncode == 0, lenient.stdout + lenient.stderr
    strict = _stoker(tmp_path, "crossval", *words, "--strict", "--name", "strict")
    assert strict.returncode == 1, strict.stdout + strict.stderr
    assert "device cuda was requested, it ran on cpu" in strict.stderr
