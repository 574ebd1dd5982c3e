"""The recipes of `crossval`: comparisons, benchmarks and gates as stages of plans.

Only what declares them is here; what a stage does is imported in its body.
"""

from __future__ import annotations

from stoker.crossval.gate_stages import BenchReport, GateReport, bench, bench_stage, gate, gate_stage
from stoker.crossval.parity_stages import (
    ParityReport,
    ParityTrace,
    ask_candidate,
    ask_reference,
    compare,
    parity,
    read_trace,
    trace,
    trace_candidate,
    trace_reference,
)
from stoker.engine.recipe import Cookbook

COOKBOOK = Cookbook(
    name="crossval",
    summary="whether a model, an adapter or a program still does what it did",
    recipes=(parity, trace, gate, bench),
    stages=(
        trace_reference,
        trace_candidate,
        ask_reference,
        ask_candidate,
        read_trace,
        compare,
        gate_stage,
        bench_stage,
    ),
    kinds=(ParityTrace, ParityReport, GateReport, BenchReport),
    prefill={
        "crossval/gate": {"baseline": "sleep 0.01", "candidate": "sleep 0.01", "limits": ["latency=50%"]},
        "crossval/bench": {"program": "sleep 0.01"},
    },
)
