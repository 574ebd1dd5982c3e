"""Evidence of an inference: that the work was really done, on the device and with the kernels that were promised.

The rules are of the receipts of system C (schema 1.0.0), and hold for those that `bench` and `crossval` state. A run on
a GPU has at least one GPU kernel; a quantised model on a CPU has a quantised kernel; a run with nothing but fallback
kernels did not take the promised path. Kernels are recognised by the words in their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.core.frozen import changed, fields_of, frozen
from stoker.core.jsontext import as_float
from stoker.core.text import lazy_pattern

SCHEMAS = ("1.0.0", "1.0")
REAL = "real"
"""The path of a computation that was done; others (`mock`) are refused."""
MOST_KERNELS = 10_000
LONGEST_KERNEL = 128
GPU_BACKENDS = ("cuda", "rocm", "metal", "vulkan", "sycl")
_ODD = "\x00\n\r\t"

_GPU = lazy_pattern(
    r"(?:^|[^a-z])(?:cuda\d*|gpu|cublas(?:lt)?|cudnn|cutlass|wmma|mma|hip|rocm|rocblas|metal|mps|vulkan|sycl|sm_?\d\d+)"
    r"(?:[^a-z]|$)"
)
_QUANTISED = lazy_pattern(
    # Of llama.cpp and others, whose names have the type of the weights.
    r"(?:^|[^a-z0-9])(?:i2_?s|tl[12]|tq[12]|i?q\d(?:_[0-9k]\w*)?|qk\d*|nf4|(?:mx|nv)?fp[48]|int[48]|w[48]a\d+|gptq|awq"
    # Of ONNX Runtime.
    r"|matmulnbits|matmulbnb4|matmulinteger(?:tofloat)?|dynamicquantizematmul|qlinear[a-z]+|qattention|qgemm|qmoe"
    # Of torch and bitsandbytes.
    r"|gem[mv]_4bit|weight_int[48]pack_mm\w*|int_mm|scaled_mm|quantized\.linear\w*"
    r")(?:[^a-z0-9]|$)"
)
_FALLBACK = lazy_pattern(r"(?:^|[^a-z])(?:dequant\w*|fallback|reference|naive|generic|emulated)(?:[^a-z]|$)|^fp32_")
_FLOATS = (
    *("f64", "f32", "f16", "bf16", "tf32", "fp64", "fp32", "fp16"),
    *("float64", "float32", "float16", "bfloat16", "tensor(double)"),
)


@frozen
class InferenceEvidence:
    """What a runtime tells of one inference."""

    schema_version: str = SCHEMAS[0]
    timestamp: str = ""
    compute_path: str
    backend: str
    """`cpu`, `cuda` …"""
    deterministic: bool
    tokens_requested: int
    tokens_generated: int
    tokens_per_second: float
    kernels: tuple[str, ...]
    weights: str = ""
    """Precision of the weights as they ran: `F32`, `Q8_0`. Empty: not known, and taken for quantised."""
    environment: Mapping[str, Any]
    model: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**fields_of(self), "kernels": list(self.kernels)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> InferenceEvidence:
        """Read evidence strictly. Raises `ValueError` with what is wrong, as the end of a sentence."""
        schema, kernels = raw.get("schema_version"), raw.get("kernels")
        if schema not in SCHEMAS:
            message = f"has schema {str(schema)[:40]!r}; this version reads {' and '.join(SCHEMAS)}"
            raise ValueError(message)
        if not isinstance(kernels, list) or not all(isinstance(one, str) for one in kernels):
            message = "has no list of kernel names"
            raise ValueError(message)
        model = raw.get("model", {})
        made = cls(
            schema_version=schema,
            timestamp=_typed(raw, "timestamp", str, ""),
            compute_path=_typed(raw, "compute_path", str),
            backend=_typed(raw, "backend", str),
            deterministic=_typed(raw, "deterministic", bool, default=False),
            tokens_requested=_typed(raw, "tokens_requested", int, 0),
            tokens_generated=_typed(raw, "tokens_generated", int, 0),
            tokens_per_second=_speed(raw.get("tokens_per_second", 0.0)),
            kernels=tuple(kernels),
            weights=_typed(raw, "weights", str, ""),
            environment=_typed(raw, "environment", dict, {}),
            model={"name": model} if isinstance(model, str) else _typed(raw, "model", dict, {}),
        )
        if min(made.tokens_requested, made.tokens_generated, made.tokens_per_second) < 0:
            message = "has a negative count of tokens"
            raise ValueError(message)
        return changed(made, backend=made.backend.lower())

    @property
    def is_quantised(self) -> bool:
        return self.weights.lower() not in _FLOATS


def is_evidence(body: Mapping[str, Any]) -> bool:
    """Return True if an object is meant as the receipt of an inference."""
    return "compute_path" in body and "schema_version" in body


def faults_of_evidence(found: InferenceEvidence) -> list[str]:
    """Return why evidence does not show that the promised path was taken; empty if it does."""
    return list(_faults(found))


def warnings_of_evidence(found: InferenceEvidence) -> list[str]:
    """Return what is odd and no fault."""
    twice = len(found.kernels) - len(set(found.kernels))
    return [f"names {twice} kernels twice"] if twice else []


def _faults(found: InferenceEvidence) -> Iterator[str]:
    if found.compute_path != REAL:
        yield f"compute path is {found.compute_path[:40]!r}, not {REAL!r}"
    if found.tokens_generated > found.tokens_requested:
        yield f"{found.tokens_generated} tokens were generated, {found.tokens_requested} requested"
    kernels = found.kernels
    if not kernels:
        yield "names no kernels"
        return
    if len(kernels) > MOST_KERNELS:
        yield f"names {len(kernels):,} kernels; at most {MOST_KERNELS:,} are accepted"
        return
    odd = next((one for one in kernels if not one.strip() or len(one) > LONGEST_KERNEL or set(_ODD) & set(one)), None)
    if odd is not None:
        yield f"a kernel's name is empty, longer than {LONGEST_KERNEL} characters, or not plain: {odd[:40]!r}"
        return
    yield from _against_backend(found)


def _against_backend(found: InferenceEvidence) -> Iterator[str]:
    names = [one.lower() for one in found.kernels]
    if all(_FALLBACK.search(one) for one in names):
        yield "every kernel is a fallback: the promised path was not taken"
    elif found.backend in GPU_BACKENDS and not any(_GPU.search(one) for one in names):
        yield f"backend {found.backend}, but no kernel of a GPU"
    elif found.backend == "cpu" and found.is_quantised and not any(_is_quantised(one) for one in names):
        yield "backend cpu with quantised weights, but no quantised kernel"


def _is_quantised(name: str) -> bool:
    return _QUANTISED.search(name) is not None and _GPU.search(name) is None and _FALLBACK.search(name) is None


def _typed(raw: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = raw.get(name, default)
    if type(value) is not kind:
        message = f"has no valid {name}"
        raise ValueError(message)
    return value


def _speed(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        message = "has no valid tokens_per_second"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a type in the program
    return as_float(value)
