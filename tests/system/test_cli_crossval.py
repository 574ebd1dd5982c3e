"""`stoker crossval` and `full-crossval` as users run them: real plug-ins in processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.crossval import _gravity
from tests.system.shell import Done, Shell, finish, wait_until

pytest.importorskip("xllamacpp")

REPORTS = {"parity.html", "parity.md", "parity.xml", "report.json", "parity.json", "parity.receipt.json"}

# Loads a model; then it exits.
CRASHES = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "hello":
        print(json.dumps({"v": 1, "name": "crashes", "version": "1", "can": ["tokenize", "logits"]}), flush=True)
    elif request["op"] == "load":
        ran = {"device": "cpu", "weights": "F32", "kv": "F32", "flash": False, "kernels": []}
        print(json.dumps({"ok": True, "n_vocab": 100, "n_layers": 2, "ran": ran, "tensors": 0, "used": 0}), flush=True)
    else:
        print("out of luck", file=sys.err)
        sys.exit(3)
"""

# Prints its loss and how long it took, and keeps one weight.
TRAINS = """
import json, os, struct, sys, time
print(f"loss={sys.argv[1]} step_time={time.time()}")
header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
with open(os.path.join(os.environ["STOKER_OUT"], "w.safetensors"), "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + struct.pack("<f", float(sys.argv[1])))
"""


@pytest.fixture
def model(shell: Shell) -> str:
    done(shell, "fixtures", "--size", "tiny", "--output", "models/tiny", "--formats", "f32")
    return "models/tiny/model-f32.gguf"


def done(shell: Shell, *words: object, code: int = 0) -> Done:
    found = shell.stoker(*words)
    assert found.code == code, found.out + found.err
    return found


def report(shell: Shell, name: str = "crossval") -> Path:
    folder = shell.folder / "stoker-out" / name
    assert REPORTS - {"parity.json", "parity.receipt.json"} <= {one.name for one in folder.iterdir()}
    return folder


def test_a_model_is_compared_found_by_itself_and_the_second_time_nothing_runs(shell: Shell, model: str):
    first = done(shell, "crossval", "--candidate", "llama.cpp", "--positions", "16")
    assert "logits" in first.out
    verdict = json.loads((report(shell) / "parity.json").read_text())
    assert verdict["outcome"] == "passed"
    assert verdict["candidate"]["model"] == Path(model).name
    second = done(shell, "crossval", "--candidate", "llama.cpp", "--positions", "16")
    assert "all 3 stages were cached" in second.out
    # Reports are replaced, not kept beside.
    assert {one.name for one in report(shell).iterdir()} == REPORTS
    shown = done(shell, "crossval", "--candidate", "llama.cpp", "--dry-run").out
    assert "OMP_NUM_THREADS=1" in shown
    assert "STOKER_SEED=42" in shown
    assert "STOKER_SEED=0" in done(shell, "crossval", "--candidate", "llama.cpp", "--seed", "0", "--dry-run").out
    receipt = "stoker-out/crossval/parity.receipt.json"
    verified = done(shell, "receipt", "verify", receipt, "--dir", "stoker-out/crossval", "--dir", Path(model).parent)
    assert "parity of parity.json, model-f32.gguf: PASSED, not signed, 2 files verified" in verified.out
    # An expected failure that does not come is named.
    noted = done(shell, "crossval", "--candidate", "llama.cpp", "--positions", "16", "--xfail", "x until 2027-06-01")
    assert "remove --xfail" in noted.err


def test_of_several_references_each_has_its_reports_and_the_worst_decides(shell: Shell, model: str):
    (shell.folder / "crashes.py").write_text(CRASHES)
    common = ("crossval", "--model", model, "--candidate", "llama.cpp", "--positions", "16", "--no-layers")
    both = done(shell, *common, "--reference", "./crashes.py", "--reference", "llama.cpp", code=1)
    assert "reference llama.cpp:" in both.out
    assert json.loads((report(shell, "crossval-llama.cpp") / "parity.json").read_text())["outcome"] == "passed"
    assert json.loads((report(shell, "crossval-crashes.py") / "report.json").read_text())["outcome"] == "error"
    shown = done(shell, *common, "--reference", "torch", "--reference", "llama.cpp", "--dry-run").out
    assert "reference torch:" in shown
    twice = done(shell, *common, "--reference", "a b", "--reference", "a-b", code=2)
    assert "two references would write to one folder" in twice.err


@pytest.mark.parametrize(
    ("codes", "worst"), [((0, 0), 0), ((0, 18), 18), ((18, 15), 15), ((15, 1), 1), ((15, 41), 41), ((41, 1), 1)]
)
def test_a_failure_matters_more_than_tokenizers_and_these_more_than_no_answer(codes: tuple[int, ...], worst: int):
    assert max(codes, key=_gravity) == worst


def test_a_plug_in_that_crashes_leaves_a_report_with_its_last_words(shell: Shell, model: str):
    (shell.folder / "crashes.py").write_text(CRASHES)
    # What an earlier comparison left there is no verdict of this one.
    stale = shell.folder / "stoker-out" / "crossval" / "parity.json"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"outcome": "passed"}')
    sides = ("--candidate", "llama.cpp", "--reference", "./crashes.py")
    found = done(shell, "crossval", "--model", model, *sides, code=1)
    assert "exit" in found.err
    body = json.loads((report(shell) / "report.json").read_text())
    assert (body["outcome"], body["about"]["exit code"]) == ("error", 1)
    assert "crashes.py" in body["reason"]
    assert not stale.exists()
    # A known failure of a runtime is accepted until its day; a pipeline sees it as skipped.
    known = done(shell, "crossval", "--model", model, *sides, "--xfail", "0.6 can't load it until 2027-06-01")
    assert "expected failure until 2027-06-01: 0.6 can't load it" in known.err
    assert 'failures="0" errors="0" skipped="1"' in (report(shell) / "parity.xml").read_text()
    assert "expected failure until" in (report(shell) / "parity.html").read_text()


def test_an_export_that_does_not_show_the_input_of_its_first_layer_is_compared_by_names(shell: Shell):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: nothing can export")
    done(shell, "fixtures", "--size", "tiny", "--output", "models/tiny", "--formats", "safetensors")
    # Its tokenizer is beside it.
    program = str(Path(__file__).parents[1] / "fakes" / "onnx_export.py")
    export = [sys.executable, program, "models/tiny", "models/tiny/m.onnx"]
    subprocess.run(export, check=True, capture_output=True, cwd=shell.folder)
    words = ("--candidate", "onnx", "--reference", "torch", "--reference-model", "models/tiny")
    done(shell, "crossval", "--model", "models/tiny/m.onnx", *words, "--positions", "16", "--no-decode")
    steps = {step["step"]: step for step in json.loads((report(shell) / "parity.json").read_text())["steps"]}
    assert [row["name"] for row in steps["layers"]["layers"]] == ["l_out-1"]
    assert "layer 0 not compared" in steps["layers"]["reason"]
    assert steps["head"]["outcome"] == "passed"


def test_a_program_that_was_changed_is_compared_anew(shell: Shell):
    guide = (Path(__file__).parents[2] / "docs/guides/crossval-plugins.md").read_text("utf-8")
    for name, source in (("ours.py", "bigram.py"), ("theirs.py", "bigram.py"), ("bigram.json", "bigram.json")):
        found = re.search(rf"```\w+ file={re.escape(source)}\n(.*?)```", guide, re.DOTALL)
        assert found is not None
        (shell.folder / name).write_text(found[1], "utf-8")
    words = ("crossval", "--model", "bigram.json", "--candidate", "./ours.py", "--reference", "./theirs.py")
    done(shell, *words, "--text", "abab")
    text = (shell.folder / "ours.py").read_text()
    changed = text.replace('*model["table"][token]', '*(3 * value for value in model["table"][token])')
    assert changed != text
    (shell.folder / "ours.py").write_text(changed)
    assert "kl" in done(shell, *words, "--text", "abab", code=1).err


def test_a_comparison_that_is_killed_leaves_no_pass_and_keeps_others_out_of_its_folder(shell: Shell, model: str):
    (shell.folder / "hangs.py").write_text("import time\nopen('started', 'w').close()\ntime.sleep(600)")
    running = shell.start("crossval", "--model", model, "--candidate", "llama.cpp", "--reference", "./hangs.py")
    wait_until((shell.folder / "started").exists)
    refused = done(shell, "crossval", "--model", model, "--candidate", "llama.cpp", code=16)
    assert "--name NAME" in refused.err
    running.kill()
    finish(running)
    body = json.loads((report(shell) / "report.json").read_text())
    assert (body["outcome"], body["reason"]) == ("error", "the comparison did not finish")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--model", "nothing.gguf"), 16, "there is no model"),
        ((), 16, "stoker fixtures"),
        (("--model", "nothing.gguf", "--candidate", "tensorflow"), 2, "unknown runtime"),
        (("--limit", "kl=x"), 2, "--limit kl=1e-6"),
        (("--xfail", "because"), 2, "until YYYY-MM-DD"),
        (("one",), 2, "two jobs"),
    ],
)
def test_what_can_not_be_compared_is_named(shell: Shell, words: tuple[str, ...], code: int, said: str):
    found = done(shell, "crossval", *words, code=code)
    assert said in found.err


def test_two_jobs_differ_first_in_their_config_and_their_numbers_decide(shell: Shell):
    (shell.folder / "train.py").write_text(TRAINS)
    for name, loss in (("before", 0.5), ("same", 0.5), ("after", 0.25)):
        done(shell, "run", "--name", name, f"loss={loss}", "--", sys.executable, "train.py", "{loss}")
    same = json.loads(done(shell, "crossval", "before", "same", "--json").out.splitlines()[-1])
    assert (same["outcome"], same["first_difference"]) == ("passed", None)
    assert same["layers"][-1]["text"] == "the same (1 metric, 1 tensor)"
    found = done(shell, "crossval", "before", "after", code=1)
    assert "first difference: config" in found.out
    assert "w.safetensors: w: 1 value differs" in found.out
    report(shell, "crossval-before-after")
    assert "numbers=1e-6" in done(shell, "crossval", "before", "after", "--limit", "kl=1", code=2).err
    done(shell, "crossval", "before", "after", "--limit", "numbers=1")


def test_a_result_that_a_later_run_replaced_in_the_store_is_read_from_its_folder(shell: Shell):
    (shell.folder / "train.py").write_text(TRAINS.replace("float(sys.argv[1])", "time.time() % 1"))
    for name in ("first", "second"):
        done(shell, "run", "--name", name, "--", sys.executable, "train.py", "0.5")
    assert "w.safetensors: w: 1 value differs" in done(shell, "crossval", "first", "second", code=1).out
    # An edited file is no result of that job.
    weights = shell.folder / "stoker-out" / "first" / "w.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert "weights not compared" in done(shell, "crossval", "first", "second").out
