"""An inference is believed if its kernels show that the promised path was taken."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.crossval.evidence import InferenceEvidence, faults_of_evidence, is_evidence, warnings_of_evidence

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
