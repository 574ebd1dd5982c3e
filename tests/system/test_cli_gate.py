"""`stoker gate` and `stoker bench` as a user gives them: exit codes, formats, and a report every time."""

from __future__ import annotations

import json
import signal
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stoker.core.digests import digest_bytes
from tests.system.shell import Shell, finish, wait_until
from tests.unit.crossval.test_model_subject import MODEL

SAME = ("--limit", "latency=off")
"""Without the time of the whole program, only what repeats is left: three pairs."""


def side(perplexity: str) -> str:
    return f"sh -c 'echo perplexity={perplexity}'"


@pytest.mark.parametrize(
    ("candidate", "code", "outcome"), [("10.1", 0, "passed"), ("11", 17, "failed"), ("nan", 17, "failed")]
)
def test_a_gate_has_an_exit_code_and_a_report_for_each_outcome(
    shell: Shell, candidate: str, code: int, outcome: str
) -> None:
    done = shell.stoker("gate", "--baseline", side("10"), "--candidate", side(candidate), *SAME)
    assert done.code == code, done.err
    body = json.loads((shell.folder / "stoker-out" / "gate" / "report.json").read_text())
    assert body["outcome"] == outcome
    assert body["about"]["pairs"] in (3, 10)
    assert ("regression: perplexity" in done.err) is (code == 17)
    assert "perplexity" in done.out


def test_a_gate_that_can_not_decide_ends_with_18_and_says_what_it_would_take(shell: Shell) -> None:
    words = ("gate", "--baseline", "sleep 0.001", "--candidate", "sleep 0.001", "--pairs", "4", "--warmup", "0")
    done = shell.stoker(*words, "--report", "gate.xml", "--report", "gate.md", "--json")
    assert done.code == 18
    report, error = done.objects()
    assert (report["outcome"], error["error"], error["exit_code"]) == ("undecided", "gate_undecided", 18)
    assert error["data"]["pairs_needed"] == {"seconds": 7}
    assert ET.parse(shell.folder / "gate.xml").getroot().get("errors") == "1"
    assert "**undecided**" in (shell.folder / "gate.md").read_text()


def test_one_program_runs_in_two_folders_and_any_format_goes_to_standard_output(shell: Shell) -> None:
    for name, value in (("old", "10"), ("new", "10.05")):
        (shell.folder / name).mkdir()
        (shell.folder / name / "value").write_text(f"perplexity={value}\n")
    words = ("gate", "--baseline", "old", "--candidate", "new", *SAME, "--format", "junit", "--", "cat", "value")
    done = shell.stoker(*words)
    assert done.code == 0, done.err
    assert ET.fromstring(done.out)[0].get("tests") == "1"


def test_results_of_benchmarks_are_gated_but_their_times_are_not_decided(shell: Shell) -> None:
    for name in ("a", "b"):
        # Not so short that a busy machine makes it many times as long: that would be more than drift.
        program = "sleep 0.3; echo perplexity=10"
        done = shell.stoker("bench", "--runs", 4, "-o", f"{name}.bench.json", "--", "sh", "-c", program)
        assert done.code == 0, done.err
        assert "4 runs, memory" in done.out
    gate = ("gate", "--baseline", "a.bench.json", "--candidate", "b.bench.json")
    done = shell.stoker(*gate)
    assert done.code == 18
    assert "times of another moment drift" in done.err
    assert shell.stoker(*gate, *SAME).code == 0


def test_a_result_beside_a_program_is_run_again_as_long_as_its_program_is_what_it_was(shell: Shell) -> None:
    script = shell.folder / "value.sh"
    script.write_text("echo x >> runs; echo perplexity=10\n")
    made = shell.stoker("bench", "--runs", 1, "--warmup", 0, "-o", "a.bench.json", "--", "sh", "value.sh")
    assert made.code == 0, made.err
    gate = ("gate", "--baseline", "a.bench.json", "--candidate", side("10.1"), *SAME)
    done = shell.stoker(*gate)
    assert done.code == 0, done.err
    assert "a.bench.json is run again" in done.err
    assert (shell.folder / "runs").read_text().count("x") == 5, "one benchmark, one warmup, three pairs"
    for receipt in ("a.bench.receipt.json", "stoker-out/gate/report.receipt.json"):
        verified = shell.stoker("receipt", "verify", receipt)
        assert (verified.code, "1 file verified" in verified.out) == (0, True), verified.err
    script.write_text("echo perplexity=12\n")
    changed = shell.stoker(*gate)
    assert changed.code == 2
    assert "a.bench.json can't be run again: value.sh has changed since" in changed.err
    both = shell.stoker("gate", "--baseline", "a.bench.json", "--candidate", "a.bench.json", "--rerun")
    assert both.code == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("bench", "tiny.gguf", "--timeout", "3s"), "--timeout: only of a program"),
        (("bench", "tiny.gguf", "--measure", "accuracy", "--on", "lab1"), "--measure: only of a program"),
        (
            ("bench", "--runtime", "torch", "--strict", "--prompt", "4", "--", "true"),
            "--runtime, --strict, --prompt: only of a model",
        ),
        (("bench", "tiny.gguf", "--on", "lab1", "-o", "base.bench.json"), "--on and --out exclude each other"),
        (("gate", "--baseline", "a.json", "--candidate", "a.json", "--timeout", "3s"), "no side is one"),
        (("gate", "--baseline", "a.json", "--candidate", "a.json", "--confidence", "0"), "confidence 0"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(shell: Shell, words: tuple[str, ...], text: str) -> None:
    (shell.folder / "a.json").write_text('{"perplexity": 9.8}')
    old = shell.folder / "base.bench.json"
    old.write_text("an older result")
    done = shell.stoker(*words)
    assert (done.code, text in done.err) == (2, True), done.err
    assert old.read_text() == "an older result"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("program=true", "runtime=torch"), "runtime and strict are of a model"),
        (("model=a.json", "timeout_s=3"), "measures and timeout_s are of a program"),
    ],
)
def test_an_argument_that_would_have_no_effect_is_refused(shell: Shell, words: tuple[str, ...], text: str) -> None:
    (shell.folder / "a.json").write_text('{"perplexity": 9.8}')
    done = shell.stoker("run", "crossval/bench", "runs=1", *words)
    assert (done.code, text in done.err) == (41, True), done.err


def test_a_benchmark_that_failed_is_nothing_to_compare_with(shell: Shell) -> None:
    failing = ("sh", "-c", "echo x >> runs; echo perplexity=9; test $(wc -l < runs) -lt 3")
    assert shell.stoker("bench", "--runs", 5, "-o", "a.bench.json", "--", *failing).code == 1
    for words in (
        ("gate", "--baseline", "a.bench.json", "--candidate", side("9"), *SAME),
        ("bench", "--against", "a.bench.json", "--", "touch", "started"),
    ):
        done = shell.stoker(*words)
        assert (done.code, "did not finish (failed after 1 run)" in done.err) == (2, True), done.err
    assert not (shell.folder / "started").exists()


def test_plain_numbers_in_json_are_gated(shell: Shell) -> None:
    (shell.folder / "old.json").write_text('{"eval": {"perplexity": 9.8, "accuracy": 0.7}, "model": "a"}')
    (shell.folder / "new.json").write_text('{"eval": {"perplexity": 9.9, "accuracy": 0.6}, "model": "b"}')
    gate = ("gate", "--baseline", "old.json", "--candidate", "new.json")
    assert shell.stoker(*gate).code == 0
    worse = shell.stoker(*gate, "--limit", "eval.accuracy=-5%")
    assert (worse.code, "eval.accuracy −14.29 %" in worse.err) == (17, True)
    (shell.folder / "old.json").write_text('{"name": "no number"}')
    assert shell.stoker(*gate).code == 2


def test_jobs_are_gated_by_their_metrics(shell: Shell) -> None:
    for name, loss in (("old", "2.0"), ("new", "2.5")):
        run = shell.stoker("run", "--name", name, "--", "sh", "-c", f"echo val_loss={loss}")
        assert run.code == 0, run.err
    gate = ("gate", "--baseline", "old", "--candidate", "new", *SAME, "--limit")
    assert shell.stoker(*gate, "val_loss=10%").code == 17
    assert shell.stoker(*gate, "val_loss=30%").code == 0
    missing = shell.stoker("gate", "--baseline", "nowhere", "--candidate", "new")
    assert missing.code == 1
    assert "nowhere" in missing.err
    assert json.loads((shell.folder / "stoker-out" / "gate" / "report.json").read_text())["outcome"] == "error"


@pytest.mark.parametrize("command", ["gate", "bench"])
def test_a_program_that_fails_or_is_interrupted_leaves_a_report(shell: Shell, command: str) -> None:
    kind = {"gate": "stoker-out/gate/report.json", "bench": "stoker-out/bench/result.json"}[command]
    report = shell.folder / kind

    def start(line: str) -> subprocess.Popen[str]:
        program = ("--", "sh", "-c", line)
        sides = ("--baseline", ".", "--candidate", ".") if command == "gate" else ()
        return shell.start(command, *sides, *program)

    failed = finish(start("echo no memory >&2; exit 9"))
    assert failed.code == 1
    assert "exit status 9: no memory" in failed.err
    assert json.loads(report.read_text())["outcome"] in ("error", "failed")
    report.unlink()
    running = start("echo x >> runs; test $(wc -l < runs) -lt 4 || sleep 60")
    wait_until(lambda: (shell.folder / "runs").exists() and len((shell.folder / "runs").read_text()) >= 8)
    assert "did not finish" in report.read_text(), "what a kill would leave"
    running.send_signal(signal.SIGINT)
    assert finish(running).code == 130
    body = json.loads(report.read_text())
    assert body["outcome"] in ("error", "interrupted")
    assert "interrupted" in json.dumps(body)


def test_a_gate_is_a_stage_whose_failure_has_the_gates_exit_code(shell: Shell, tmp_path: Path) -> None:
    words = ("run", "crossval/gate", f"baseline={side('10')!r}", "limits=[latency=off]", "--name", "gate")
    worse = shell.stoker(*words, f"candidate={side('11')!r}")
    assert worse.code == 17, worse.err
    assert "perplexity +10.00 %" in worse.err
    report = shell.folder / "stoker-out" / "gate" / "report.json"
    assert json.loads(report.read_text())["outcome"] == "failed"
    kept = shell.stoker(*words, f"candidate={side('11')!r}", "fails=false")
    assert kept.code == 0, kept.err


def test_a_benchmark_on_another_machine_is_a_job_of_the_fleet(shell: Shell) -> None:
    model = shell.folder / "m-2-t"
    model.write_text("weights")
    sent = shell.stoker("bench", model, "--on", "lab1", "--runtime", "torch")
    assert (sent.code, "no coordinator" in sent.err) == (34, True)
    # Of tokens that come at once, only the mean time is known: these come one by one.
    slow = MODEL.replace("            print(", "            time.sleep(0.05); print(").replace(
        "import base64,", "import time, base64,"
    )
    (shell.folder / "fake.py").write_text(slow)
    words = ("model=m-2-t", "runtime=./fake.py", "runs=2", "decode=4", "--name", "model")
    measured = shell.stoker("run", "crossval/bench", *words)
    assert measured.code == 0, measured.err
    result = json.loads((shell.folder / "stoker-out" / "model" / "result.json").read_text())
    assert (result["subject"]["digest"], result["summary"]["latency_ms"]["count"]) == (
        {"sha256": digest_bytes(b"weights")},
        8,
    )
    here = shell.stoker("run", "crossval/bench", "program=\"sh -c 'echo perplexity=3'\"", "runs=3", "--name", "speed")
    assert here.code == 0, here.err
    result = json.loads((shell.folder / "stoker-out" / "speed" / "result.json").read_text())
    assert result["summary"]["perplexity"]["count"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gate", "--candidate", "x"), "--baseline is missing"),
        (("gate", "--baseline", "x", "--candidate", "y", "--report", "a.html"), "does not end with"),
        (("gate", "--baseline", "x", "--candidate", "y", "--limit", "latency"), "is not NAME=CHANGE"),
        (("gate", "--baseline", "x", "--candidate", "y", "--format", "yaml"), "is not one of"),
        (("gate", "--baseline", "x", "--candidate", "y", "--confidence", "2"), "is not between"),
        (("bench",), "either MODEL or a PROGRAM"),
        (("bench", "notes.txt", "--", "true"), "either MODEL or a PROGRAM"),
    ],
)
def test_what_is_typed_wrong_is_named(shell: Shell, words: tuple[str, ...], message: str) -> None:
    done = shell.stoker(*words)
    assert done.code == 2
    assert message in done.err
