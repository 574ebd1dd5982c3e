"""How much faster than PEFT are eight adapters trained in company on one GPU, and how much memory does it save?

    python benchmarks/adapters_gpu.py                    # judges what was recorded on an H200
    python benchmarks/adapters_gpu.py --from FILE        # judges other measurements
    python benchmarks/adapters_gpu.py --measure FILE     # measures here, then judges; needs a GPU, torch and peft

The base is a Llama of 1.1 G parameters with random weights in bf16; adapters have rank 16 on all seven linears; a row
has 512 tokens. `sides/adapters_peft.py` and `sides/adapters_company.py` measure, part by part; `sides/adapters_run.py`
measures what a whole `stoker run` makes of it, `sides/adapters_nf4.py` bases in four bits, and
`sides/adapters_general.py` bases that transformers computes. Each side's best window decides. PEFT makes an adapter in
fp32; in bf16 it is quicker and learns with less precision; ours have fp32 masters. Compiled PEFT and its processes have
adapters in bf16.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import recordings
from adapters_cases import MODEL, SHAPES, SIZES, flop_per_token, frozen_flop_per_token
from harness import Benchmark
from recordings import GIB, row

GOALS = {
    "eager-fp32": ("PEFT as it comes, one after another", {512: 25.0, 2048: 7.0, 8192: 2.5}),
    "eager-bf16": ("PEFT in bf16, one after another", {512: 25.0, 2048: 7.0, 8192: 2.5}),
    "compiled": ("PEFT compiled, one after another", {512: 10.0, 2048: 2.0, 8192: 1.15}),
    "liger": ("PEFT with Liger's kernels, one after another", {512: 1.5, 2048: 1.5, 8192: None}),
    "processes": ("PEFT in {count} processes at once", {512: 4.0, 2048: 2.0, 8192: 1.3}),
}
"""How many times as quick as the peer, at each number of tokens of one adapter in a step."""
SHARE = 0.60
MEMORY = 0.45
WITHIN = 1.15
EVALUATED = 1 / 0.9
FOUR_BITS = 1 / 0.75
PAUSE_S = 2.0
FLOP_PER_S = 790e12
"""What the card does with large matrices in bf16."""
SHARES = {"qwen3-0.6g": 0.50, "qwen2-1.5g": 0.60, "llama-1.1g": 0.62, "llama-8g": 0.72}
"""Of that, the engine's goal over each shape, at 2,048 tokens of each adapter in a step."""
GENERAL = 1 / 2
UNIFORM = {
    "32x512": ("32 adapters", "8x512"),
    "ranks-512": ("ranks 8, 16 and 64 together", "8x512"),
    "ranks-2048": ("ranks 8, 16 and 64 together", "8x2048"),
    "packed-512": ("sequences of 32 to 512 tokens, packed", "8x512"),
    "packed-2048": ("sequences of 32 to 512 tokens, packed", "8x2048"),
}
WHOLE = {
    "8x512": ("512 tokens of each in a step", WITHIN),
    "8x2048": ("2,048 tokens of each in a step", WITHIN),
    "8x8192": ("8,192 tokens of each in a step", WITHIN),
    "packed-512": ("a row of packed texts of each in a step", WITHIN),
    "packed-2048": ("4 rows of packed texts of each in a step", WITHIN),
    "ragged-2048": ("4 texts of 60 to 500 tokens of each in a step", WITHIN),
    "apart-2048": ("4 texts of 60 to 500 tokens of each in a step, each in its own order", None),
    "mixed-2048": (
        "2 rows of 1,024 packed tokens of each in a step, ranks 8 to 64, evaluated every 40 updates",
        EVALUATED,
    ),
}
"""What is run as a user runs it, and at most how often the time of the engine it may take."""
_seconds_row = partial(row, unit="s")
Parts = dict[str, dict[str, Any]]


def main() -> int:
    measure = recordings.by_sides(
        "adapters_peft.py", "adapters_company.py", "adapters_run.py", "adapters_nf4.py", "adapters_general.py"
    )
    bench, recording = recordings.start("adapters_gpu", str(__doc__), "adapters_h200.json", measure)
    told = recording.told
    peft, company = _figures(told.get("peft", {}), "peft"), _figures(told.get("company", {}), "company")
    _speeds(bench, peft, company)
    _sameness(bench, company)
    _whole_runs(bench, told.get("run", {}), WHOLE)
    for name in sorted(name for name in told if name.startswith("run ")):
        _whole_runs(bench, told[name], {"mixed-2048": WHOLE["mixed-2048"]}, f"{name.removeprefix('run ')}, ")
    _engines(bench, told)
    _four_bits(bench, told.get("nf4", {}))
    _general(bench, told.get("general", {}))
    _memory(bench, peft, company)
    _context(bench, told)
    _rungs(bench, told.get("company", {}))
    if "provenance" in told:
        bench.notes.append(told["provenance"])
    bench.notes.append("Measured by: " + "; ".join(f"`{command}`" for command in recording.commands) + ".")
    return bench.finish()


def _figures(parts: Parts, side: str) -> Parts:
    """Return every measured case under one name, whichever part it was measured in."""
    found: Parts = {}
    for name, part in parts.items():
        if "tokens_per_s" in part:
            found[name] = part
        for inner, case in part.items():
            if side == "peft" and isinstance(case, dict) and "tokens_per_s" in case:
                found[f"{name.partition('-')[0]}-{inner}" if name.endswith(inner) else f"{name}-{inner}"] = case
    if "flop_per_s" in parts.get("matrix", {}):
        found["matrix"] = parts["matrix"]
    return found


def _speeds(bench: Benchmark, peft: Parts, company: Parts) -> None:
    for peer, (words, goals) in GOALS.items():
        for size, goal in goals.items():
            theirs = peft.get(f"{peer}-{size}")
            bench.rows.append(
                _seconds_row(
                    f"8 adapters, {size:,} tokens of each in a step: 1 M tokens",
                    words.format(count=(theirs or {}).get("count", 8)),
                    _seconds(company.get(f"8x{size}")),
                    _seconds(theirs),
                    None if goal is None else 1 / goal,
                )
            )
    for size in SIZES:
        one = company.get(f"1x{size}")
        question = f"1 adapter, {size:,} tokens in a step: 1 M tokens"
        bench.rows.append(
            _seconds_row(question, "PEFT in bf16", _seconds(one), _seconds(peft.get(f"eager-bf16-{size}")), 1.0)
        )
        compiled = _seconds(peft.get(f"compiled-{size}"))
        bench.rows.append(_seconds_row(question, "PEFT compiled", _seconds(one), compiled, 1.0))
        if graphs := _seconds(peft.get(f"graphs-{size}")):
            bench.rows.append(_seconds_row(question, "PEFT compiled, CUDA graphs", _seconds(one), graphs, None))


def _sameness(bench: Benchmark, company: Parts) -> None:
    for name, (words, uniform) in UNIFORM.items():
        size = int(uniform.partition("x")[2])
        question = f"{words}, {size:,} tokens of each in a step: 1 M tokens"
        ours, theirs = _seconds(company.get(name)), _seconds(company.get(uniform))
        bench.rows.append(_seconds_row(question, "8 adapters of rank 16, full rows", ours, theirs, WITHIN))


def _whole_runs(bench: Benchmark, runs: Parts, cases: Mapping[str, tuple[str, float | None]], shape: str = "") -> None:
    """What is trained in a whole run once it has begun, beside the engine alone on the same machine."""
    for name, (words, at_most) in cases.items():
        size = name.rpartition("-")[2].rpartition("x")[2]
        question = f"{shape}8 adapters in a whole `stoker run`, once compiled, {words}: 1 M tokens"
        ours, engine = _seconds(runs.get(name)), _seconds(runs.get(f"engine-{size}"))
        bench.rows.append(_seconds_row(question, f"the engine alone, full rows, {size} tokens", ours, engine, at_most))
        if pauses := runs.get(name, {}).get("pauses"):
            asked = (
                f"{shape}8 adapters in a whole `stoker run`, {words}: longest time between two reports after the first"
            )
            bench.rows.append(_seconds_row(asked, f"{PAUSE_S:.0f} s", pauses[0][0], PAUSE_S, 1.0))
    for name, part in runs.items():
        if "whole_s" in part and "first_update_s" in part:
            whole = f"{part['whole_s']:.0f} s in all, {part['first_update_s']:.0f} s before its first update"
            bench.notes.append(f"The whole run {shape}{name}, in an empty home: {whole} ({part['told'][-1]}).")


def _engines(bench: Benchmark, told: dict[str, Any]) -> None:
    """What the engine makes of the card over each shape."""
    for shape, share in SHARES.items():
        part = told.get("run" if shape == "llama-1.1g" else f"run {shape}", {}).get("engine-2048", {})
        rate = part.get("tokens_per_s")
        reached = rate * flop_per_token(SHAPES[shape]) / 1e12 if rate else None
        wanted = share * FLOP_PER_S / 1e12
        question = f"{shape}, 8 × 2,048 tokens, the engine: TFLOP/s that are {share:.0%} of 790"
        bench.rows.append(row(question, "TFLOP/s reached", wanted, reached, 1.0))


def _four_bits(bench: Benchmark, parts: Parts) -> None:
    question = "8 adapters over a Llama of 8 G in four bits"
    for size in (512, 2048):
        ours, theirs = _seconds(parts.get(f"nf4-{size}")), _seconds(parts.get(f"auto-{size}"))
        asked = f"{question}, {size:,} tokens of each in a step: 1 M tokens"
        bench.rows.append(_seconds_row(asked, "the same base in bf16", ours, theirs, FOUR_BITS))
    taken = parts.get("nf4-512", {}).get("base_bytes")
    bench.rows.append(row(f"{question}: GB of the base", "5.6 GB", taken / 1e9 if taken else None, 5.6, 1.0))


def _general(bench: Benchmark, parts: Parts) -> None:
    for family in sorted({name.partition("-")[0] for name in parts}):
        ours, theirs = (_seconds(parts.get(f"{family}-{way}")) for way in ("together", "peft"))
        question = f"8 adapters over a base like {family}, general path, 2,048 tokens of each in a step: 1 M tokens"
        bench.rows.append(_seconds_row(question, "PEFT in bf16, one after another", ours, theirs, GENERAL))


def _rungs(bench: Benchmark, company: Parts) -> None:
    for name, part in company.items():
        steps = {
            rung: case["tokens_per_s"]
            for rung, case in part.items()
            if isinstance(case, dict) and "tokens_per_s" in case
        }
        if name.startswith("rungs-") and steps:
            told = ", ".join(f"{rung} {rate:,.0f}" for rung, rate in steps.items())
            bench.notes.append(f"8 adapters, {name[6:]} tokens of each in a step, rung by rung: {told} tokens/s.")


def _memory(bench: Benchmark, peft: Parts, company: Parts) -> None:
    eight, ours = peft.get("processes-1024", {}), company.get("memory", {})
    question = "8 adapters, 1,024 tokens of each in a step: GiB of the card"
    for name, words in (("driver", "as the driver counts"), ("reserved_bytes", "as torch reserves")):
        figures = [_gib(part, name) for part in (ours, eight)]
        at_most = MEMORY if name == "driver" else None
        bench.rows.append(row(f"{question}, {words}", "PEFT in 8 processes", *figures, at_most))


def _context(bench: Benchmark, told: dict[str, Any]) -> None:
    peft, company = told.get("peft", {}), told.get("company", {})
    matrix = peft.get("matrix", {}).get("flop_per_s")
    heads = ["part", "tokens/s, best / median", "TFLOP/s (all, frozen linears alone)", "of the matrix rate"]
    bench.verdicts.append([*heads, "allocated / reserved GiB", "start, s"])
    for side, parts in (("company", company), ("peft", peft)):
        for name, case in _figures(parts, side).items():
            if "tokens_per_s" in case:
                start = _start(parts.get(name) or parts.get(name.rpartition("-")[0]) or {})
                bench.verdicts.append([f"{side} {name}", *_line(case, matrix), start])
        bench.verdicts += [
            [f"{side} {name}", "failed", part["error"].strip().splitlines()[-1][:120].replace("|", "/"), "", "", ""]
            for name, part in parts.items()
            if "error" in part
        ]
    rates = {"at its best": matrix, "under load": peft.get("matrix", {}).get("rates", [None])[-1]}
    best = company.get("8x2048", {}).get("tokens_per_s")
    reached = best * flop_per_token(MODEL) / 1e12 if best else None
    for words, rate in rates.items():
        wanted = None if rate is None or reached is None else rate * SHARE / 1e12
        question = f"8 × 2,048 tokens: TFLOP/s that are 60 % of the matrix rate {words}"
        bench.rows.append(row(question, "TFLOP/s reached", wanted, reached, 1.0))
        if rate is not None:
            told_rate = f"The card multiplies bf16 matrices of 8192 × 8192 at {rate / 1e12:.0f} TFLOP/s {words}."
            bench.notes.append(told_rate)


def _line(case: dict[str, Any], matrix: float | None) -> list[str]:
    rate = case["tokens_per_s"]
    every, frozen = rate * flop_per_token(MODEL), rate * frozen_flop_per_token(MODEL)
    sizes = [case.get(name) for name in ("allocated_bytes", "reserved_bytes")]
    return [
        f"{rate:,.0f} / {case.get('median', rate):,.0f}",
        f"{every / 1e12:.0f}, {frozen / 1e12:.0f}",
        f"{100 * every / matrix:.0f} %" if matrix else "",
        " / ".join("?" if size is None else f"{size / GIB:.1f}" for size in sizes),
    ]


def _start(part: dict[str, Any]) -> str:
    said = {"load_s": "base", "built_s": "built", "compile_s": "compiling", "first_s": "first", "second_s": "second"}
    return ", ".join(f"{words} {part[name]:.1f}" for name, words in said.items() if name in part)


def _seconds(case: dict[str, Any] | None) -> float | None:
    """Of a million tokens."""
    return None if case is None else 1e6 / float(case["tokens_per_s"])


def _gib(part: dict[str, Any], name: str) -> float | None:
    if name == "driver":
        name = "process_bytes" if part.get("process_bytes") else "device_used_bytes"
    return part[name] / GIB if part.get(name) else None


if __name__ == "__main__":
    sys.exit(main())
