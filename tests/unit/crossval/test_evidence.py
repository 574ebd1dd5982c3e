"""An inference is believed if its kernels show that the promised path was taken."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.crossval.evidence import InferenceEvidence, faults_of_evidence, is_evidence, warnings_of_evidence
from stoker.crossval.plugins.onnx_plugin import _QUANTISED

BODY: dict[str, Any] = {
    "schema_version": "1.0.0",
    "timestamp": "2026-11-18T12:00:00Z",
    "compute_path": "real",
    "backend": "cpu",
    "deterministic": True,
    "tokens_requested": 16,
    "tokens_generated": 16,
    "tokens_per_second": 12.5,
    "kernels": ["i2s_gemv", "rope_apply", "softmax"],
    "environment": {"OMP_NUM_THREADS": "1"},
    "model": {"name": "tiny.gguf", "sha256": "ab"},
}


def faults(**change: Any) -> list[str]:
    return faults_of_evidence(InferenceEvidence.from_json({**BODY, **change}))


def test_evidence_of_a_quantised_model_on_a_cpu_is_accepted():
    assert is_evidence(BODY)
    assert faults() == []
    assert faults(schema_version="1.0") == []
    assert InferenceEvidence.from_json(InferenceEvidence.from_json(BODY).to_json()) == InferenceEvidence.from_json(BODY)


@pytest.mark.parametrize("kernels", [["cuda_gemm_q4_0"], ["gemm_cublasLt"], ["wmma_f16", "softmax"], ["sm_90_attn"]])
def test_a_gpu_run_has_a_kernel_of_a_gpu(kernels: list[str]):
    assert faults(backend="CUDA", kernels=kernels) == []


@pytest.mark.parametrize("kernels", [["i2s_gemv"], ["softmax"], ["q4_0_gemm", "rope"]])
def test_a_gpu_run_without_one_fell_back(kernels: list[str]):
    assert faults(backend="cuda", kernels=kernels) == ["backend cuda, but no kernel of a GPU"]


@pytest.mark.parametrize("kernels", [["q8_0_4x8_gemm"], ["mul_mat Q4_K"], ["tl1_neon"], ["dot_int8"]])
def test_a_quantised_run_on_a_cpu_has_a_quantised_kernel(kernels: list[str]):
    assert faults(kernels=kernels) == []


@pytest.mark.parametrize("op", _QUANTISED)
def test_every_quantised_operation_of_the_onnx_plugin_is_one(op: str):
    assert faults(kernels=["cpu.Add", f"cpu.{op}"], weights=_QUANTISED[op]) == []
    assert faults(kernels=["cpu.Add", "cpu.MatMul", "cpu.DequantizeLinear"], weights=_QUANTISED[op]) != []


def test_every_type_of_a_gguf_file_is_known_by_the_kernels_of_the_llama_plugin():
    types = pytest.importorskip("gguf").GGMLQuantizationType
    integers = {"I8", "I16", "I32", "I64"}
    names = [one.name for one in types if one.name not in integers]
    assert {"F32", "BF16", "Q4_K", "MXFP4", "NVFP4"} <= set(names)
    for name in names:
        assert faults(kernels=["cpu.ADD(F32)", f"cpu.MUL_MAT({name})"], weights=name) == [], name
    # Of a quantised model whose products are all of floats.
    assert faults(kernels=["cpu.ADD(F32)", "cpu.MUL_MAT(F32)"], weights="Q4_K") != []


@pytest.mark.parametrize(
    ("kernel", "weights"),
    [
        ("bitsandbytes.gemm_4bit.default", "NF4"),
        ("bitsandbytes.gemv_4bit.default", "FP4"),
        ("bitsandbytes.int8_scaled_mm.default", "int8"),
        ("aten._weight_int4pack_mm_for_cpu.default", "INT4"),
        ("quantized.linear_dynamic.default", "INT8"),
    ],
)
def test_quantised_operations_of_torch_are_known_and_weights_made_floats_first_are_not(kernel: str, weights: str):
    assert faults(kernels=["cpu.aten.add.Tensor", f"cpu.{kernel}"], weights=weights) == []
    made_floats = ["cpu.aten.mm.default", "cpu.bitsandbytes.dequantize_4bit.default"]
    assert faults(kernels=made_floats, weights=weights) == [
        "backend cpu with quantised weights, but no quantised kernel"
    ]


@pytest.mark.parametrize("weights", ["F64", "F32", "F16", "BF16", "float64", "tensor(double)"])
def test_weights_that_plugins_call_floats_need_no_quantised_kernel(weights: str):
    assert faults(kernels=["cpu.aten.mm.default"], weights=weights) == []


def test_a_quantised_run_without_one_is_refused_and_a_float_one_is_not():
    kernels = ["gemm_avx2", "softmax"]
    assert faults(kernels=kernels) == ["backend cpu with quantised weights, but no quantised kernel"]
    assert faults(kernels=["cuda_i2s"]) == ["backend cpu with quantised weights, but no quantised kernel"]
    assert faults(kernels=kernels, weights="F32") == []


@pytest.mark.parametrize("kernels", [["fallback_i2s", "dequant_q4"], ["fp32_matmul"]])
def test_nothing_but_fallbacks_is_refused(kernels: list[str]):
    assert faults(kernels=kernels) == ["every kernel is a fallback: the promised path was not taken"]


@pytest.mark.parametrize(
    "change",
    [
        {"compute_path": "mock"},
        {"compute_path": "Real"},
        {"kernels": []},
        {"kernels": ["i2s", " "]},
        {"kernels": ["i2s", "x" * 129]},
        {"kernels": ["i2s", "a\nb"]},
        {"kernels": ["i2s"] * 10_001},
        {"tokens_generated": 17},
    ],
)
def test_what_shows_nothing_is_refused(change: dict[str, Any]):
    assert faults(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "2.0.0"},
        {"schema_version": 1.0},
        {"compute_path": None},
        {"backend": 3},
        {"kernels": "i2s"},
        {"kernels": ["i2s", 4]},
        {"tokens_requested": -1},
        {"tokens_per_second": "fast"},
        {"deterministic": "yes"},
        {"environment": []},
        {"model": 7},
    ],
)
def test_another_form_is_refused(change: dict[str, Any]):
    with pytest.raises(ValueError, match="has "):
        InferenceEvidence.from_json({**BODY, **change})


def test_kernels_named_twice_only_warn():
    found = InferenceEvidence.from_json({**BODY, "kernels": ["i2s", "i2s"]})
    assert faults_of_evidence(found) == []
    assert warnings_of_evidence(found) == ["names 1 kernels twice"]
