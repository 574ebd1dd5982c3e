"""What a receipt states of tests follows from the rows that are in it, or is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stoker.crossval.measured_results import MeasuredValues, ResultFacts, faults_of, result_of

NMSE = MeasuredValues(test="logits", name="nmse", values=(1e-12, 2e-11), most=1e-9)
TOP1 = MeasuredValues(test="logits", name="top1", values=(1.0, 1.0, 0.0, 1.0), least=0.7, take="mean")
TIERS = {"f32": {"nmse": 1e-9, "top1": 1.0}}


def a_pass(*measures: MeasuredValues, facts: ResultFacts | None = None) -> dict[str, Any]:
    return result_of("parity", {"logits": "passed"}, measures or (NMSE, TOP1), facts or ResultFacts())


def test_a_result_that_follows_from_its_rows_has_no_faults():
    assert a_pass()["result"] == "PASSED"
    assert faults_of(a_pass()) == []


@pytest.mark.parametrize(
    "measure",
    [
        MeasuredValues(test="logits", name="nmse", values=(1e-12, 2e-9), most=1e-9),
        MeasuredValues(test="logits", name="nmse", values=(1e-12, math.nan), most=1e-9),
        MeasuredValues(test="logits", name="nmse", values=(1e-12, math.inf), most=math.inf),
        MeasuredValues(test="logits", name="top1", values=(1.0, 0.0), least=0.7, take="mean"),
        MeasuredValues(test="logits", name="time", values=(1.0, 5.0, 9.0), most=4.0, take="median"),
        MeasuredValues(test="logits", name="time", values=(1.0, math.nan, 1.0), most=4.0, take="median"),
    ],
)
def test_one_measure_over_its_limit_is_enough(measure: MeasuredValues):
    assert faults_of(a_pass(NMSE, measure))


def test_a_mean_is_decided_over_all_rows():
    assert TOP1.worst is None
    assert MeasuredValues(test="t", name="top1", values=TOP1.values, least=0.8, take="mean").worst == 0.75


def test_a_test_that_passed_without_values_is_a_claim():
    (fault,) = faults_of(result_of("parity", {"logits": "passed", "files": "passed"}, [NMSE], ResultFacts()))
    assert fault == "files: passed without a measure: a claim, not evidence"


def test_warnings_and_failures_without_a_value_need_a_reason():
    outcomes: dict[str, Any] = {"logits": "warned", "decode": "failed"}
    assert len(faults_of(result_of("parity", outcomes, [], ResultFacts()))) == 2
    facts = ResultFacts(reasons={"logits": "expected until 2027-01-01: #7", "decode": "signal 6"})
    found = result_of("parity", outcomes, [], facts)
    assert (found["result"], faults_of(found)) == ("FAILED", [])


def test_a_verdict_that_its_tests_do_not_give_is_a_fault():
    claimed = {**result_of("gate", {"logits": "failed"}, [NMSE], ResultFacts(reasons={"logits": "x"}))}
    claimed["result"] = "PASSED"
    assert faults_of(claimed) == ["states PASSED, its tests say FAILED"]
    assert result_of("gate", {}, [], ResultFacts())["result"] == "WARNED"


def test_limits_may_be_stricter_than_those_of_a_tier_and_not_looser():
    facts = ResultFacts(tier="f32")
    strict = MeasuredValues(test="logits", name="nmse", values=(0.0,), most=1e-10)
    loose = MeasuredValues(test="logits", name="nmse", values=(0.0,), most=1e-3)
    assert faults_of(a_pass(strict, facts=facts), tiers=TIERS) == []
    assert faults_of(a_pass(loose, facts=facts)) == []
    (fault,) = faults_of(a_pass(loose, facts=facts), tiers=TIERS)
    assert "looser than 1e-09 of f32" in fault
    assert "unknown limits" in faults_of(a_pass(NMSE, facts=ResultFacts(tier="f8")), tiers=TIERS)[0]


def test_a_strict_run_that_fell_back_is_a_fault():
    fell: dict[str, Any] = {"requested": {"candidate": {"device": "cuda"}}, "ran": {"candidate": {"device": "cpu"}}}
    assert faults_of(a_pass(facts=ResultFacts(**fell))) == []
    (fault,) = faults_of(a_pass(facts=ResultFacts(**fell, is_strict=True)))
    assert fault == "candidate: device 'cuda' was requested, it ran with 'cpu'"


@pytest.mark.parametrize(
    "change",
    [
        {"stoker_kind": "other"},
        {"passedTests": "logits"},
        {"failedTests": ["logits"]},
        {"passedTests": [7]},
        {"stoker_measures": None},
        {"stoker_measures": [{}]},
        {"stoker_measures": [{**NMSE.to_json(), "values": []}]},
        {"stoker_measures": [{**NMSE.to_json(), "values": ["1"]}]},
        {"stoker_measures": [{**NMSE.to_json(), "values": [True]}]},
        {"stoker_measures": [{**NMSE.to_json(), "most": math.inf}]},
        {"stoker_measures": [{**NMSE.to_json(), "most": 10**400}]},
        {"stoker_measures": [{**NMSE.to_json(), "least": -(10**400)}]},
        {"stoker_measures": [{**NMSE.to_json(), "values": [10**400]}]},
        {"stoker_measures": [{**NMSE.to_json(), "values": [1.7e308, 1.7e308], "take": "mean"}]},
        {"stoker_measures": [{**NMSE.to_json(), "take": "best"}]},
        {"stoker_measures": [{**NMSE.to_json(), "more": 1}]},
        {"stoker_measures": [{"test": "logits", "measure": "nmse", "values": [1.0]}]},
        {"stoker_measures": [{**NMSE.to_json(), "test": "other"}]},
    ],
)
def test_a_predicate_of_another_form_is_a_fault(change: dict[str, Any]):
    assert faults_of({**a_pass(), **change})
