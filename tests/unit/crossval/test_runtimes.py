from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.core.errors import MissingExtra, NotFound, Usage
from stoker.core.frozen import changed
from stoker.crossval.runtimes import (
    PROGRAM,
    RUNTIMES,
    RuntimeChoice,
    RuntimePlaces,
    model_form,
    plugin_command,
    read_runtime,
    runtimes_for,
)


def test_a_choice_is_a_name_with_keys():
    assert read_runtime("torch") == RuntimeChoice(name="torch")
    chosen = read_runtime("torch,device=cuda:1,precision=bf16,threads=4,env=A,env=B")
    assert (chosen.device, chosen.precision, chosen.threads, chosen.variables) == ("cuda:1", "bf16", 4, ("A", "B"))
    assert chosen.label == "torch cuda:1 bf16"
    request = chosen.load_request("m", sha256="ab")
    assert (request.model, request.sha256, request.device, request.threads) == ("m", "ab", "cuda:1", 4)


def test_what_a_form_of_models_needs_is_asked_before_it_starts(tmp_path: Path):
    site = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in ("torch", "transformers"):
        (site / f"{name}-1.0.dist-info").mkdir(parents=True)
    at = RuntimePlaces(environment={}, folder=str(tmp_path), own_prefix=str(tmp_path), own_python=sys.executable)
    assert plugin_command(read_runtime("torch"), at, form="safetensors").argv[0] == sys.executable
    with pytest.raises(MissingExtra, match="torch needs accelerate, gguf, which") as caught:
        plugin_command(read_runtime("torch"), at, form="gguf")
    assert "pip install torch transformers accelerate gguf" in caught.value.hint


def test_an_address_is_a_server_and_a_path_a_program(tmp_path: Path):
    server = read_runtime("http://127.0.0.1:1/v1#m,env=STOKER_SERVER_KEY")
    assert (server.name, server.url, server.label) == ("server", "http://127.0.0.1:1/v1#m", "server")
    assert server.load_request("other", sha256="ab").model == "http://127.0.0.1:1/v1#m"
    assert read_runtime("./tool").program == ("./tool",)
    assert read_runtime("tool.py").program == (sys.executable, "tool.py")
    assert read_runtime("./tool").name == PROGRAM
    at = RuntimePlaces(environment={}, folder=str(tmp_path), own_prefix=sys.prefix, own_python=sys.executable)
    with pytest.raises(NotFound, match=r"there is no program './tool'"):
        plugin_command(read_runtime("./tool"), at)
    (tmp_path / "tool").write_text("")
    assert plugin_command(read_runtime("./tool"), at).argv == ("./tool",)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("troch", "unknown runtime 'troch'", "torch"),
        ("server", "unknown runtime 'server'", "address"),
        ("torch,devise=cuda", "'devise=cuda' is no key=value", "device"),
        ("torch,cuda", "'cuda' is no key=value", "keys are"),
        ("torch,precision=f8", "has no precision f8; it has f32", ""),
        ("llama.cpp,precision=f32", "has no precision f32; the file has its own", ""),
        ("llama.cpp,device=cuda", "llama.cpp has no device cuda; it has cpu", ""),
        ("torch,threads=0", "threads is a whole number from 1", ""),
    ],
)
def test_what_is_wrong_with_a_choice_is_said(text: str, said: str, hint: str):
    with pytest.raises(Usage) as raised:
        read_runtime(text)
    assert said in str(raised.value)
    assert hint in raised.value.hint


def test_the_form_of_a_model_decides_which_runtimes_read_it(tmp_path: Path):
    assert runtimes_for("m.gguf") == ("torch", "llama.cpp")
    assert runtimes_for("http://127.0.0.1:1") == ("server",)
    assert runtimes_for("m.onnx") == ("onnx",)
    assert runtimes_for("m.bin") == ()
    (tmp_path / "model.safetensors").touch()
    assert model_form(str(tmp_path)) == "safetensors"


def _environment(folder: Path, *packages: str) -> str:
    """Make what looks like an environment with these packages; return its interpreter."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    (folder / "pyvenv.cfg").touch()
    for name in packages:
        (folder / "lib" / "python3.11" / "site-packages" / f"{name}-1.0.dist-info").mkdir(parents=True)
    return str(python)


def _python_of(words: str, at: RuntimePlaces) -> str:
    return plugin_command(read_runtime(words), at).argv[0]


def test_the_first_interpreter_that_has_what_a_runtime_needs_is_used(tmp_path: Path):
    own = _environment(tmp_path / "own", "torch")
    whole = _environment(tmp_path / "study" / ".venv", "torch", "transformers")
    at = RuntimePlaces(
        environment={"PATH": ""},
        folder=str(tmp_path / "study"),
        own_prefix=str(tmp_path / "own"),
        own_python=own,
    )
    assert _python_of("torch", at) == whole
    assert _python_of(f"torch,python={tmp_path / 'own'}", at) == own
    with pytest.raises(MissingExtra, match="torch 4bit needs transformers, bitsandbytes, accelerate"):
        plugin_command(read_runtime("torch,precision=4bit"), at)
    with pytest.raises(MissingExtra, match="onnx needs onnxruntime, numpy") as raised:
        plugin_command(read_runtime("onnx"), at)
    assert raised.value.hint == f"{own} -m pip install onnxruntime numpy, or name an interpreter: onnx,python=PATH"
    with pytest.raises(MissingExtra) as raised:
        plugin_command(read_runtime("torch"), changed(at, folder="/"))
    # With what a GGUF file needs, too.
    assert raised.value.hint.startswith(f"{own} -m pip install torch transformers accelerate gguf,")
    with pytest.raises(MissingExtra) as raised:
        plugin_command(read_runtime("llama.cpp"), at)
    assert raised.value.hint.startswith("stoker reference fetch")
    (tmp_path / "own/lib/python3.11/site-packages/transformers-1.0.dist-info").mkdir()
    assert _python_of("torch", at) == own


def test_the_fetched_reference_comes_before_a_package_of_the_same_runtime(tmp_path: Path):
    own = _environment(tmp_path / "own", "xllamacpp")
    at = RuntimePlaces(
        environment={}, folder="/", own_prefix=str(tmp_path / "own"), own_python=own, reference="/r/python"
    )
    assert _python_of("llama.cpp", at) == "/r/python"
    assert _python_of(f"llama.cpp,python={own}", at) == own
    # It needs nothing but Python.
    assert _python_of("http://127.0.0.1:1", at) == own


def test_every_runtime_has_its_module():
    folder = Path(sys.modules[RuntimeChoice.__module__].__file__ or "").parent / "plugins"
    assert all((folder / f"{one.module}.py").is_file() for one in RUNTIMES.values())
