"""Receipts of gates, benchmarks and comparisons: they verify, and what was changed in them does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import NotVerified
from stoker.core.frozen import changed
from stoker.crossval.bench import BenchResult, BenchRun, write_result
from stoker.crossval.gate import GateFacts, GateResult, PairedGate, report_of_gate
from stoker.crossval.gate_rule import GateRule, MetricVerdict
from stoker.crossval.ladder import LayerRow, Parity, judge, judge_layers, judge_positions, passed, skipped
from stoker.crossval.limits import TIERS, Limits, known_limits, with_changes
from stoker.crossval.measures import parse_limit
from stoker.crossval.metrics import PositionRow
from stoker.crossval.receipt_check import ReceiptFinding, ReceiptRules, check_receipt_bytes, check_receipt_file
from stoker.crossval.report_formats import CheckReport, write_report
from stoker.crossval.result_receipts import (
    receipt_of_bench,
    receipt_of_gate,
    receipt_of_parity,
    receipt_path,
    write_receipt,
)
from stoker.crossval.signing import create_key, sign_receipt
from stoker.crossval.stored_sides import StoredSide, decide_stored
from stoker.crossval.trace import TraceHeader
from stoker.store.statements import Statement, parse_statement
from tests.unit.crossval.test_gate import Side, always

RULES = ReceiptRules(now_s=0.0, tiers=known_limits())
FACTS = GateFacts(baseline="old", candidate="new", rule=GateRule())


def tampered(statement: Statement, change: Callable[[dict[str, Any]], object]) -> ReceiptFinding:
    """Verify a receipt with another predicate and a checksum that fits it."""
    predicate = json.loads(json.dumps(dict(statement.predicate)))
    change(predicate)
    return check_receipt_bytes(changed(statement, predicate=predicate).to_bytes(), "/r.json", RULES)


def gated(baseline: dict[str, float], candidate: dict[str, float], *limits: str) -> GateResult:
    turns: list[str] = []
    sides = Side("A", turns, always(baseline)), Side("B", turns, always(candidate))
    gate = PairedGate(*sides, list(map(parse_limit, limits)), GateRule())
    list(gate.steps())
    return gate.result()


def receipt(result: GateResult, folder: Path, error: BaseException | None = None) -> tuple[Statement, CheckReport]:
    path = str(folder / "gate.json")
    report = report_of_gate(result, FACTS, error)
    write_report(report, path)
    candidate = {"kind": "file", "file": "runs/new.json", "digest": {"sha256": "cd" * 32}}
    sides: dict[str, Any] = {"baseline": {"kind": "program"}, "candidate": candidate}
    made = receipt_of_gate(report, sides, [path], {"stoker": "1"})
    write_receipt(made, receipt_path(path))
    return made, report


def verified(folder: Path, name: str = "gate") -> ReceiptFinding:
    return check_receipt_file(str(folder / f"{name}.receipt.json"), RULES)


@pytest.mark.parametrize(
    ("candidate", "result"),
    [
        ({"perplexity": 10.1, "tokens_per_second": 100.0}, "PASSED"),
        ({"perplexity": 10.2, "tokens_per_second": 96.0}, "PASSED"),
        ({"perplexity": 10.3, "tokens_per_second": 100.0}, "FAILED"),
        ({"perplexity": 10.0, "tokens_per_second": 94.0}, "FAILED"),
        ({"perplexity": math.nan, "tokens_per_second": 100.0}, "FAILED"),
    ],
)
def test_the_receipt_of_a_gate_verifies_and_its_verdict_follows_from_its_rows(
    candidate: dict[str, float], result: str, tmp_path: Path
) -> None:
    made, _ = receipt(gated({"perplexity": 10.0, "tokens_per_second": 100.0}, candidate), tmp_path)
    found = verified(tmp_path)
    assert (found.what, found.differs, found.verified_files, found.missing) == ("gate", (), 1, ("new.json",))
    assert found.result == result
    measured = {one["measure"]: one for one in made.predicate["stoker_measures"] if one["test"] == "perplexity"}
    assert set(measured) == {"interval of the change", "change of a pair"}
    (tmp_path / "gate.json").write_text("{}")
    assert "its sha256 is" in verified(tmp_path).differs[0]


def test_a_gate_whose_rows_or_verdict_were_changed_does_not_verify(tmp_path: Path) -> None:
    made, _ = receipt(gated({"perplexity": 10.0}, {"perplexity": 10.1}), tmp_path)

    def worse(predicate: dict[str, Any]) -> None:
        predicate["stoker_measures"][0]["values"] = [0.5, 0.5]

    assert "is not within" in tampered(made, worse).differs[0]
    failed, _ = receipt(gated({"perplexity": 10.0}, {"perplexity": 11.0}), tmp_path)

    def claimed(predicate: dict[str, Any]) -> None:
        predicate |= {"result": "PASSED", "passedTests": ["perplexity"], "failedTests": []}

    assert tampered(made, claimed).differs == ()
    assert "yet the test passed" in tampered(failed, claimed).differs[0]


def test_an_undecided_gate_and_one_that_broke_say_why(tmp_path: Path) -> None:
    times = StoredSide(shown="x", machine="desk", samples=({"latency": 1.0}, {"latency": 1.01}))
    made, _ = receipt(decide_stored(times, times, [], GateRule()), tmp_path)
    assert made.predicate["result"] == "WARNED"
    assert "times of another moment" in made.predicate["stoker_reasons"]["latency"]
    assert verified(tmp_path).differs == ()
    broken, _ = receipt(GateResult(verdicts=()), tmp_path, KeyboardInterrupt())
    assert (broken.predicate["result"], broken.predicate["failedTests"]) == ("FAILED", ["gate"])
    assert verified(tmp_path).differs == ()


def test_a_metric_without_an_interval_is_no_pass(tmp_path: Path) -> None:
    result = gated({"latency": 1.0}, {"latency": 1.0})
    bare = MetricVerdict(limit=result.verdicts[0].limit, outcome="passed", reason="trust me")
    made, _ = receipt(changed(result, verdicts=(bare,)), tmp_path)
    assert made.predicate["passedTests"] == ["latency"]
    assert verified(tmp_path).differs == ("latency: passed without a measure: a claim, not evidence",)


# Benchmarks.

SUBJECT = {
    "kind": "model",
    "model": "/models/m.gguf",
    "digest": {"sha256": "ab" * 32},
    "decoded_tokens": 4,
    "device": "cpu",
    "weights": "Q8_0",
    "kernels": ["MUL_MAT(Q8_0)"],
    "fallbacks": [],
}


def bench(**change: Any) -> BenchResult:
    run = BenchRun(at_s=0.0, measures={"tokens_per_second": 50.0})
    base = BenchResult(
        subject=SUBJECT,
        machine={"name": "desk"},
        versions={"stoker": "1"},
        runs=(run, run),
        about={"requested_runs": 2},
    )
    return changed(base, **change)


def test_the_receipt_of_a_benchmark_has_the_model_the_result_and_how_it_ran(tmp_path: Path) -> None:
    path = str(tmp_path / "a.bench.json")
    write_result(bench(), path)
    made = receipt_of_bench(bench(), path)
    write_receipt(made, receipt_path(path))
    found = verified(tmp_path, "a.bench")
    assert (found.what, found.differs, found.verified_files, found.missing) == ("bench", (), 1, ("m.gguf",))
    evidence = made.predicate["stoker_evidence"]
    assert (evidence["tokens_generated"], evidence["backend"], evidence["model"]["name"]) == (8, "cpu", "m.gguf")


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ({"device": "cuda"}, "no kernel of a GPU"),
        ({"kernels": ["MUL_MAT(F32)"]}, "no quantised kernel"),
        ({"kernels": ["fallback_matmul"]}, "promised path was not taken"),
    ],
)
def test_a_benchmark_that_took_another_path_does_not_verify(subject: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = str(tmp_path / "a.bench.json")
    result = bench(subject={**SUBJECT, **subject})
    write_result(result, path)
    write_receipt(receipt_of_bench(result, path), receipt_path(path))
    assert text in verified(tmp_path, "a.bench").differs[0]


def test_a_benchmark_with_a_fallback_is_a_warning_and_one_that_ended_early_a_failure(tmp_path: Path) -> None:
    path = str(tmp_path / "r.json")
    write_result(bench(), path)
    fell = receipt_of_bench(bench(subject={**SUBJECT, "fallbacks": ["device cuda was requested"]}), path)
    assert (fell.predicate["result"], fell.predicate["warnedTests"]) == ("WARNED", ["path"])
    early = bench(outcome="interrupted", runs=bench().runs[:1], error={"message": "interrupted"})
    made = receipt_of_bench(early, path)
    assert made.predicate["failedTests"] == ["runs"]
    assert tampered(made, lambda _: None).differs == ()
    assert tampered(made, lambda one: one["stoker_measures"][0].update(values=[2.0])).differs == ()
    assert (
        receipt_of_bench(bench(subject={"kind": "program", "argv": ["x"]}), path).predicate.get("stoker_evidence")
        is None
    )


# Comparisons.


def header(**change: Any) -> TraceHeader:
    ran = {"device": "cpu", "weights": "F32", "kernels": ["mm"]}
    base = TraceHeader(
        runtime="torch", version="2", model="m.gguf", sha256="ab" * 32, ids=(1, 2), texts=("a b",), tokens=((1, 2),),
        n_vocab=4, n_layers=1, ran=ran, tensors=3, used=3, requested={"device": "cpu", "seed": 42},
        files={"m.gguf": "ab" * 32},
    )  # fmt: skip
    return changed(base, **change)


def parity(nmse: float = 1e-12, error: float = 1e-13, limits: Limits = TIERS["f32"]) -> Parity:
    row = PositionRow(pos=0, nmse=nmse, max_abs=1e-6, max_abs_sd=1e-6, kl=1e-12, top1=True, top5=1.0, cosine=1.0)
    steps = [
        passed("files"),
        judge_layers("layers", [LayerRow(layer=0, name="l_out-0", error=error)], limits),
        skipped("head", "neither side runs one layer alone"),
        judge_positions("logits", [row, changed(row, pos=1)], limits),
    ]
    return judge(steps, limits)


def compared(found: Parity, ours: TraceHeader | None = None) -> Statement:
    return receipt_of_parity(found, ours or header(), header(), verdict=b"{}", name="parity.json")


def test_the_receipt_of_a_comparison_verifies_with_the_limits_of_its_precision(tmp_path: Path) -> None:
    good, bad = compared(parity()), compared(parity(nmse=1e-3))
    assert (good.predicate["result"], bad.predicate["result"]) == ("PASSED", "FAILED")
    for made in (good, bad):
        assert tampered(made, lambda _: None).differs == ()
    (tmp_path / "parity.json").write_text("{}")
    write_receipt(good, str(tmp_path / "parity.receipt.json"))
    assert verified(tmp_path, "parity").verified_files == 1
    assert parse_statement(good.to_bytes(), "r").subject[1].digest == {"sha256": "ab" * 32}

    def loosened(predicate: dict[str, Any]) -> None:
        for one in predicate["stoker_measures"]:
            if one["measure"] == "nmse":
                one["most"] = 1.0

    assert "looser than 1e-09 of f32" in tampered(good, loosened).differs[0]


def test_a_comparison_with_changed_limits_is_held_to_those_of_its_precision(tmp_path: Path) -> None:
    stricter = compared(parity(limits=with_changes(TIERS["f32"], {"nmse": 1e-10})))
    looser = compared(parity(nmse=1e-3, limits=with_changes(TIERS["f32"], {"nmse": 1.0})))
    assert [one.predicate["result"] for one in (stricter, looser)] == ["PASSED", "PASSED"]
    assert [one.predicate["stoker_tier"] for one in (stricter, looser)] == ["f32", "f32"]
    assert tampered(stricter, lambda _: None).differs == ()
    (difference,) = tampered(looser, lambda _: None).differs
    assert difference == "logits: nmse has the limit at most 1, looser than 1e-09 of f32"
    (difference,) = tampered(looser, lambda predicate: predicate.pop("stoker_tier")).differs
    assert "names unknown limits" in difference
    path = tmp_path / "parity.receipt.json"
    write_receipt(looser, str(path))
    with pytest.raises(NotVerified, match="looser than"):
        sign_receipt(str(path), key_file=create_key(str(tmp_path / "key.pem")).key_file)


def test_a_comparison_that_decided_nothing_is_no_pass() -> None:
    made = compared(
        judge([passed("files"), skipped("logits", "both sides tell only their most probable tokens")], TIERS["f32"])
    )
    assert (made.predicate["result"], made.predicate["warnedTests"]) == ("WARNED", ["verdict"])
    assert tampered(made, lambda _: None).differs == ()


def test_a_comparison_that_ran_elsewhere_is_a_difference_in_strict_verification() -> None:
    fell = compared(parity(), header(requested={"device": "cuda"}))
    data = fell.to_bytes()
    assert check_receipt_bytes(data, "/r.json", RULES).differs == ()
    assert "'cuda' was requested" in check_receipt_bytes(data, "/r.json", changed(RULES, is_strict=True)).differs[0]
