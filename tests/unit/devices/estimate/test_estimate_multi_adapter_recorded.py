"""Shared processes that were measured on an H200, against what is foretold for them today.

What the allocator holds beyond tensors was fitted to these very companies: that part is a guard against changes, and
proves nothing. That tensors are counted right does not lean on it.
"""

from __future__ import annotations

import json
import re

import pytest

from stoker.core.device import GIB
from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.shared_base import MultiAdapterTraining, estimate_adapters
from tests.unit.devices.estimate.recorded import ROOT

RECORDED = json.loads((ROOT / "benchmarks" / "recorded" / "adapters_h200.json").read_text())["company"]
MEASURED = {
    name: found
    for name, found in RECORDED.items()
    if re.fullmatch(r"\d+x\d+", name) and "reserved_bytes" in found
}  # fmt: skip
JUDGING = json.loads((ROOT / "benchmarks" / "recorded" / "shared_process_memory_h200.json").read_text())["companies"]
"""Measured after the constants were set."""
CONTEXT_BYTES = 758 * 1024**2
SEQUENCE = 512
SHAPE = read_shape(
    {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
    }
)  # fmt: skip


def company(name: str) -> MultiAdapterTraining:
    adapters, tokens = map(int, name.split("x"))
    return MultiAdapterTraining(
        shape=SHAPE, adapters=adapters, rows=tokens // SEQUENCE, sequence=SEQUENCE, is_packed=False
    )


def test_some_were_measured():
    assert len(MEASURED) > 3


@pytest.mark.parametrize("name", MEASURED)
def test_tensors_are_counted_to_within_a_few_percent(name):
    told, found = estimate_adapters(company(name), gpu="NVIDIA H200"), MEASURED[name]
    terms = {term.name: term.size_bytes for term in (*told.base, *told.member)}
    tensors_bytes = told.total_bytes - terms["context"] - told.adapters * terms["fragmentation"]
    assert tensors_bytes == pytest.approx(found["allocated_bytes"], rel=0.05)


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_foretold_is_not_below_the_peak_by_more_than_a_twentieth_nor_far_above(name):
    told = estimate_adapters(company(name), gpu="NVIDIA H200").total_bytes
    peak_bytes = MEASURED[name]["reserved_bytes"] + CONTEXT_BYTES
    assert 0.95 * peak_bytes < told < 1.15 * peak_bytes, f"{told / GIB:.2f} and {peak_bytes / GIB:.2f} GiB"


@pytest.mark.parametrize("name", JUDGING)
def test_a_company_measured_later_is_foretold_within_the_goal(name):
    found = JUDGING[name]
    case = found["case"]
    told = estimate_adapters(
        MultiAdapterTraining(
            shape=read_shape(case["config"]),
            adapters=case["adapters"],
            rank=case["rank"],
            rows=case["rows"],
            sequence=case["sequence"],
            is_compiled=case.get("compiled", True),
            is_packed=case.get("packed", False),
        ),
        gpu="NVIDIA H200",
    )
    peak_bytes = found["memory"]["peak_bytes"]
    assert 0.95 * peak_bytes < told.total_bytes < 1.15 * peak_bytes
