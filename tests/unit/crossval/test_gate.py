"""Gates over sides that can be run, over stored ones, and over documents; their reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import (
    BadInput,
    GateUndecided,
    LocalFile,
    NotFound,
    NotVerified,
    Regression,
    StokerError,
    Usage,
    WorkFailed,
)
from stoker.core.jsontext import loads
from stoker.crossval.bench import BenchResult, BenchRun, outcome_of_error, write_result
from stoker.crossval.gate import GateFacts, GateResult, PairedGate, raise_verdict, report_of_gate
from stoker.crossval.gate_rule import GateLimit, GateRule
from stoker.crossval.gate_run import GatePlace, GateRequest, run_gate
from stoker.crossval.gate_sides import JobSide, ProgramSide, read_side
from stoker.crossval.measures import parse_limit
from stoker.crossval.receipt_check import ReceiptRules, check_receipt_file
from stoker.crossval.report_formats import write_report
from stoker.crossval.result_receipts import receipt_of_gate, receipt_path, write_receipt
from stoker.crossval.scored_documents import DocumentScore, decide_documents, read_documents
from stoker.crossval.stored_sides import StoredSide, decide_stored

RULE = GateRule()
PERPLEXITY = GateLimit(metric="perplexity", change=0.02)


class Side:
    """A side that gives the same measures again and again, and counts its turns in a shared list."""

    shown = "side"

    def __init__(self, name: str, turns: list[str], values: Iterator[dict[str, float]]) -> None:
        self.name = name
        self.turns = turns
        self.values = values

    def facts(self) -> dict[str, object]:
        return {"kind": "test"}

    def measure(self) -> BenchRun:
        self.turns.append(self.name)
        return BenchRun(at_s=0.0, measures=next(self.values))

    def close(self) -> None:
        pass


def always(*values: dict[str, float]) -> Iterator[dict[str, float]]:
    while True:
        yield from values


def paired(baseline: dict[str, float], candidate: dict[str, float], *limits: str) -> tuple[PairedGate, list[str]]:
    turns: list[str] = []
    sides = Side("A", turns, always(baseline)), Side("B", turns, always(candidate))
    return PairedGate(*sides, list(map(parse_limit, limits)), RULE), turns


def test_sides_take_turns_after_a_warmup_and_what_repeats_is_decided_after_three_pairs() -> None:
    gate, turns = paired({"perplexity": 10.0}, {"perplexity": 10.1})
    assert list(gate.steps()) == [1, 2, 3]
    assert "".join(turns) == "AB" + "AB" + "BA" + "AB"
    assert gate.result().outcome == "passed"
    assert gate.result().pairs[2] == {"perplexity": (10.0, 10.1)}


def test_a_gate_stops_at_the_first_regression_and_after_the_most_pairs() -> None:
    turns: list[str] = []
    noise = always({"latency": 1.2, "perplexity": 9.0}, {"latency": 0.9, "perplexity": 9.0})
    gate = PairedGate(Side("A", turns, always({"latency": 1.0, "perplexity": 9.0})), Side("B", turns, noise), [], RULE)
    assert list(gate.steps())[-1] == 200
    assert [one.outcome for one in gate.result().verdicts] == ["undecided", "passed"]
    with pytest.raises(GateUndecided, match="the noise allows no answer") as caught:
        raise_verdict(gate.result())
    assert set(caught.value.data["pairs_needed"]) == {"latency"}  # type: ignore[call-overload]  # a map
    worse, _ = paired({"latency": 1.0, "perplexity": 9.0}, {"latency": 1.0, "perplexity": 10.0})
    assert list(worse.steps()) == [1, 2, 3]
    with pytest.raises(Regression, match=r"perplexity \+11.11 %"):
        raise_verdict(worse.result())


def test_a_measure_that_is_missing_later_is_an_error_and_the_pairs_before_it_stay() -> None:
    turns: list[str] = []
    values = iter([{"latency": 1.0}, {"latency": 1.0}, {"other": 1.0}])
    gate = PairedGate(Side("A", turns, always({"latency": 1.0})), Side("B", turns, values), [], RULE)
    with pytest.raises(WorkFailed, match="latency was not measured in pair 2"):
        list(gate.steps())
    assert len(gate.result().pairs) == 1
    assert gate.result().outcome == "undecided"


def test_a_measure_that_the_candidate_no_longer_reports_is_an_error_unless_it_is_off() -> None:
    gate, _ = paired({"perplexity": 10.0, "seconds": 1.0}, {"seconds": 1.0})
    with pytest.raises(WorkFailed, match="the candidate has no perplexity") as caught:
        list(gate.steps())
    assert "--limit perplexity=off" in caught.value.hint
    assert gate.result().outcome == "undecided"
    for name in ("perplexity", "eval.perplexity"):
        gate, _ = paired({name: 10.0, "seconds": 1.0}, {"seconds": 1.0}, f"{name}=off")
        list(gate.steps())
        assert gate.result().outcome == "passed"
    # What has no limit may come and go.
    gate, _ = paired({"loss": 10.0, "seconds": 1.0}, {"seconds": 1.0, "perplexity": 3.0})
    list(gate.steps())
    assert gate.result().outcome == "passed"
    gate, _ = paired({"loss": 10.0, "seconds": 1.0}, {"seconds": 1.0}, "loss=1%")
    with pytest.raises(WorkFailed, match="the candidate has no loss"):
        list(gate.steps())


def test_a_stored_measure_that_the_candidate_no_longer_has_is_an_error_unless_it_is_off() -> None:
    old = StoredSide(shown="old", machine="desk", samples=({"perplexity": 9.0, "ppl": 9.0, "seconds": 1.0},))
    new = StoredSide(shown="new", machine="desk", samples=({"ppl": 9.0},))
    with pytest.raises(WorkFailed, match="new has no perplexity, which old has"):
        decide_stored(old, new, [], RULE)
    with pytest.raises(WorkFailed, match="new has no perplexity"):
        decide_stored(old, new, [parse_limit("perplexity=1%")], RULE)
    assert outcome(old, new, "perplexity=off", "ppl=1%") == "passed"


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_stored_value_that_is_no_number_fails_a_candidate_and_refuses_a_baseline(odd: float) -> None:
    for metric in ("latency", "perplexity"):
        fine, bad = stored(1.0, 1.1, 1.2, metric=metric), stored(1.0, odd, 1.2, metric=metric, machine="lab")
        assert outcome(fine, bad) == "failed"
        with pytest.raises(BadInput, match="of the baseline is"):
            outcome(bad, fine)


@pytest.mark.parametrize("metric", ["latency", "tokens_per_second", "perplexity"])
def test_the_receipt_of_a_value_that_is_no_number_states_the_same_failure(metric: str, tmp_path: Path) -> None:
    values = always(*[{metric: 10.0}] * 2, {metric: math.nan})
    gate = PairedGate(Side("A", [], always({metric: 10.0})), Side("B", [], values), [], RULE)
    list(gate.steps(warmup=0))
    report = report_of_gate(gate.result(), GateFacts(baseline="old", candidate="new", rule=RULE))
    assert report.outcome == "failed"
    path = tmp_path / "gate.json"
    write_report(report, str(path))
    write_receipt(receipt_of_gate(report, {}, [str(path)], {}), receipt_path(str(path)))
    found = check_receipt_file(receipt_path(str(path)), ReceiptRules(now_s=0.0))
    assert (found.differs, found.result) == ((), "FAILED")


def test_sides_without_a_limited_metric_are_refused() -> None:
    gate, _ = paired({"loss": 1.0}, {"loss": 1.0})
    with pytest.raises(Usage, match="no metric has a limit"):
        list(gate.steps())
    assert gate.result().verdicts == ()


def stored(
    *values: float, metric: str = "perplexity", machine: str = "desk", labels: tuple[str, ...] = ()
) -> StoredSide:
    return StoredSide(shown="x", machine=machine, samples=tuple({metric: value} for value in values), labels=labels)


def outcome(baseline: StoredSide, candidate: StoredSide, *limits: str) -> str:
    return decide_stored(baseline, candidate, list(map(parse_limit, limits)), RULE).outcome


def test_stored_numbers_without_noise_are_decided_and_times_are_not() -> None:
    assert outcome(stored(10.0), stored(10.1)) == "passed"
    assert outcome(stored(10.0, 10.0), stored(10.5)) == "failed"
    assert outcome(stored(10.0), stored(math.inf)) == "failed"
    times = [stored(*(1.0, 1.01, 0.99, 1.0), metric="latency"), stored(*(1.1, 1.11, 1.09, 1.1), metric="latency")]
    result = decide_stored(times[0], times[1], [], RULE)
    assert result.outcome == "undecided"
    assert result.verdicts[0].pairs_needed is not None
    assert outcome(times[0], stored(9.0, metric="latency")) == "failed"
    elsewhere = decide_stored(times[0], stored(9.0, metric="latency", machine="lab"), [], RULE)
    assert elsewhere.outcome == "undecided"
    assert "desk and lab" in elsewhere.reason
    assert outcome(stored(1.0, metric="latency"), stored(1.0, metric="latency"), "p95=5%") == "undecided"


def test_trials_are_paired_by_their_labels() -> None:
    seeds = tuple(f"seed={number}" for number in range(8))
    base = stored(*(10.0 + number for number in range(8)), labels=seeds)
    assert outcome(base, stored(*(10.1 + number for number in range(8)), labels=seeds)) == "passed"
    assert outcome(base, stored(*(11.0 + number for number in range(8)), labels=seeds)) == "failed"
    few = stored(10.0, 11.0, labels=seeds[:2]), stored(11.0, 12.0, labels=seeds[:2])
    assert outcome(*few) == "undecided"
    assert "do not belong together" in decide_stored(base, few[0], [], RULE).reason


def test_sides_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(Usage, match="no metric in common"):
        decide_stored(stored(1.0), stored(1.0, metric="loss"), [], RULE)


def scores(*nlls: float, tokens: int = 100) -> list[DocumentScore]:
    return [DocumentScore(name=f"d{number}", tokens=tokens, nll=nll) for number, nll in enumerate(nlls)]


def test_documents_are_compared_by_name_and_must_have_the_same_tokens() -> None:
    base = scores(*(200.0 + number for number in range(20)))
    verdict = decide_documents(base, scores(*(210.0 + number for number in range(20))), PERPLEXITY, RULE)[0]
    assert verdict.outcome == "failed"
    assert verdict.baseline == pytest.approx(math.exp(2.095))
    assert decide_documents(base, list(reversed(base)), PERPLEXITY, RULE)[0].outcome == "passed"
    with pytest.raises(NotVerified, match="the tokenizers disagree"):
        decide_documents(base, scores(*(200.0,) * 20, tokens=99), PERPLEXITY, RULE)
    with pytest.raises(BadInput, match="on one side only"):
        decide_documents(base, base[1:], PERPLEXITY, RULE)
    with pytest.raises(BadInput, match="same name"):
        decide_documents([*base, base[0]], base, PERPLEXITY, RULE)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "nonsense",
        '{"document": "a", "tokens": 0, "nll": 1}',
        '{"document": "a", "tokens": "x", "nll": 1}',
        f'{{"document": "a", "tokens": 1{"0" * 300}, "nll": 1}}',
        f'{{"document": "a", "tokens": 1, "nll": {"9" * 400}}}',
        '{"document": "a", "tokens": {"$float": "inf"}, "nll": 1}',
    ],
)
def test_a_line_that_is_no_scored_document_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"document": "ok", "tokens": 3, "nll": 5.5}}\n\n{line}\n')
    with pytest.raises(LocalFile, match="line 3"):
        read_documents(str(path))
    path.write_text("")
    with pytest.raises(LocalFile, match="no documents"):
        read_documents(str(path))


# What a side is.


def test_a_side_is_found_by_its_text(tmp_path: Path) -> None:
    program = tmp_path / "bench.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "a.jsonl").write_text('{"document": "a", "tokens": 3, "nll": 5.5}')
    (tmp_path / "plan.json").write_text('{"stoker_plan": 1, "nodes": {"a": {}, "b": {}}}')
    result = BenchResult(
        subject={}, machine={"name": "desk", "devices": [{"name": "H200"}]}, versions={},
        runs=(BenchRun(at_s=0.0, measures={"latency_ms": (1.0, 3.0)}),),
    )  # fmt: skip
    write_result(result, str(tmp_path / "a.bench.json"))

    def side(text: str, *program: str) -> object:
        return read_side(text, folder=str(tmp_path), program=program, search="/bin:/usr/bin")

    assert side("sh -c 'exit 0'") == ProgramSide(argv=("sh", "-c", "exit 0"), folder=str(tmp_path))
    assert side("bench.sh") == ProgramSide(argv=(str(program),), folder=str(tmp_path))
    assert side(".", "make", "bench") == ProgramSide(argv=("make", "bench"), folder=str(tmp_path))
    assert side("last") == JobSide(name="last")
    assert side("sweep/3") == JobSide(name="sweep/3")
    documents, bench, plan = side("a.jsonl"), side("a.bench.json"), side("plan.json")
    assert isinstance(documents, StoredSide)
    assert documents.documents[0].nll == 5.5
    assert isinstance(bench, StoredSide)
    assert (bench.machine, bench.samples) == ("desk H200", ({"latency_ms": 2.0, "latency_ms_p95": 2.9},))
    assert isinstance(plan, ProgramSide)
    assert plan.argv[-3:] == ("--rerun", "a,b", "--no-out")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), WorkFailed("no memory")])
def test_a_benchmark_that_did_not_finish_is_no_side(error: BaseException, tmp_path: Path) -> None:
    run = BenchRun(at_s=0.0, measures={"perplexity": 10.0})
    result = BenchResult(
        subject={}, machine={"name": "desk"}, versions={}, runs=(run,), outcome=outcome_of_error(error)
    )
    write_result(result, str(tmp_path / "a.bench.json"))
    with pytest.raises(Usage, match=r"a.bench.json: the benchmark did not finish \((interrupted|failed) after 1 run\)"):
        read_side("a.bench.json", folder=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("no-such-program --x", NotFound, "no such file or program"),
        ("./missing", NotFound, "no such file or program"),
        ("'open", Usage, "not a command line"),
        ("notes.txt", Usage, "neither can be run nor has measurements"),
        ("old.py", Usage, "neither can be run nor has measurements"),
        (".", Usage, "is a folder without a model"),
        ("twice.json", LocalFile, "given twice"),
        ("words.json", Usage, "neither can be run nor has measurements"),
        ("large.json", LocalFile, "beyond the largest number"),
        ("long.json", LocalFile, "a number of 5,000 digits is too long"),
    ],
)
def test_a_text_that_is_no_side_is_named(text: str, kind: type[StokerError], message: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "old.py").write_text("print('latency_ms=1')")
    (tmp_path / "twice.json").write_text('{"perplexity": 1, "perplexity": 2}')
    (tmp_path / "large.json").write_text(f'{{"perplexity": {"9" * 400}}}')
    (tmp_path / "long.json").write_text(f'{{"perplexity": {"9" * 5000}}}')
    (tmp_path / "words.json").write_text('{"name": ["a"]}')
    with pytest.raises(kind, match=message) as raised:
        read_side(text, folder=str(tmp_path), search="/bin:/usr/bin")
    assert ('"python old.py"' in raised.value.hint) == (text == "old.py")


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="not a folder"):
        read_side("missing", folder=str(tmp_path), program=("true",))


# The report.

PLACE = GatePlace(clock=FakeClock(), environment={"PATH": "/bin:/usr/bin"}, machine={"name": "desk"}, versions={})


def test_a_report_is_written_when_the_gate_passes_fails_breaks_or_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    request = GateRequest(baseline="old", candidate="new", reports=(str(path),), warmup=0)
    place = str(tmp_path)

    def program(line: str) -> ProgramSide:
        return ProgramSide(argv=("sh", "-c", line), folder=place)

    run_gate(request, lambda: [stored(10.0), stored(10.0)], PLACE)
    assert loads(path.read_text())["outcome"] == "passed"
    run_gate(request, lambda: [stored(10.0), stored(11.0)], PLACE)
    assert loads(path.read_text())["outcome"] == "failed"
    sides = [program("echo perplexity=3"), program("echo oops >&2; exit 4")]
    with pytest.raises(WorkFailed, match="exit status 4: oops"):
        run_gate(request, lambda: sides, PLACE)
    body = loads(path.read_text())
    assert (body["outcome"], body["details"]["error"]["error"]) == ("error", "work_failed")

    def interrupted(steps: Iterator[int]) -> Iterator[int]:
        yield next(steps)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_gate(request, lambda: [program("echo perplexity=3")] * 2, PLACE, interrupted)
    body = loads(path.read_text())
    assert body["reason"] == "interrupted after 1 pair"
    assert len(body["details"]["pairs"]) == 1
    with pytest.raises(Usage, match="can't be run again: it only has numbers"):
        run_gate(request, lambda: [stored(10.0), program("true")], PLACE)
    assert loads(path.read_text())["outcome"] == "error"


def test_what_an_interrupted_gate_had_not_decided_is_undecided_in_its_report() -> None:
    gate, _ = paired({"perplexity": 10.0}, {"perplexity": 10.0})
    list(gate.steps())
    facts = GateFacts(baseline="old", candidate="new", rule=RULE)
    report = report_of_gate(gate.result(), facts, KeyboardInterrupt())
    assert [one.outcome for one in report.checks] == ["undecided"]
    assert report_of_gate(gate.result(), facts).checks[0].outcome == "passed"
    assert report_of_gate(GateResult(verdicts=()), facts, StopIteration()).reason == "StopIteration"
