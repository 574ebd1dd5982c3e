"""The plan of a comparison: what is cached, and what is part of the keys."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.core.errors import InvalidArgs
from stoker.crossval import runtimes
from stoker.crossval.parity_stages import ParityArgs, TraceArgs, parity, trace, trace_reference
from stoker.crossval.runtimes import library_versions, plugins_digest, read_runtime, whole_model


@pytest.mark.parametrize("runtime", ["./runtime.py", "http://127.0.0.1:1/v1", "torch,env=TUNING"])
def test_a_side_that_can_change_unseen_is_asked_each_time(tmp_path: Path, runtime: str):
    model = str(tmp_path)
    for sides in ((runtime, "llama.cpp"), ("llama.cpp", runtime)):
        plan = parity.compile(ParityArgs(candidate=model, candidate_runtime=sides[0], reference_runtime=sides[1]))
        cached = {node.id: node.stage.cached for node in plan.nodes}
        changing = "candidate" if sides[0] == runtime else "reference"
        assert cached == {one: one != changing for one in ("candidate", "reference", "compare")}
    assert [node.stage.cached for node in trace.compile(TraceArgs(runtime=runtime)).nodes] == [False]


def test_the_code_of_plug_ins_is_part_of_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torch_plugin.py").write_text("1")
    monkeypatch.setattr(runtimes, "_PLUGINS", str(tmp_path))
    assert trace_reference.fingerprint is not None
    first = trace_reference.fingerprint()
    assert first == plugins_digest()
    (tmp_path / "torch_plugin.py").write_text("2")
    second = trace_reference.fingerprint()
    (tmp_path / "protocol_loop.py").touch()
    assert len({first, second, plugins_digest()}) == 3


def test_libraries_that_a_runtime_uses_for_some_models_are_part_of_its_versions(tmp_path: Path):
    for name in ("torch-2.0", "transformers-5.0", "gguf-0.1", "other-1.0"):
        (tmp_path / "lib/python3.11/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    versions = library_versions(read_runtime("torch"), str(tmp_path / "bin/python"))
    assert versions == ("torch==2.0", "transformers==5.0", "gguf==0.1")


def test_a_model_by_its_file_of_weights_is_its_folder(tmp_path: Path):
    for name in ("model.safetensors", "other.safetensors"):
        (tmp_path / name).touch()
    # config.json and the tokenizer decide about the answers, too.
    runtime = f"torch,python={sys.executable}"
    plan = parity.compile(ParityArgs(candidate=str(tmp_path / "model.safetensors"), candidate_runtime=runtime))
    assert plan.node("candidate").args["model"] == str(tmp_path)
    assert whole_model(str(tmp_path / "other.safetensors")) == str(tmp_path / "other.safetensors")
    assert whole_model(str(tmp_path / "missing" / "model.safetensors")).endswith("model.safetensors")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"kl": float("inf")}, "--limit kl=inf: must be 0 or more, and finite"),
        ({"nmse": float("nan")}, "--limit nmse=nan: must be"),
        ({"no": 1.0}, "--limit no: there is no such limit"),
    ],
)
def test_limits_that_no_receipt_can_hold_are_refused_before_anything_runs(
    tmp_path: Path, limits: dict[str, float], words: str
):
    with pytest.raises(InvalidArgs, match=words):
        parity.compile(ParityArgs(candidate=str(tmp_path), limits=limits))
