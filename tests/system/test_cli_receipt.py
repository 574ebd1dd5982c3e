"""`stoker receipt` as a user gives it: show, verify, sign, and keys of a home."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from stoker.coordinator.auth import open_ca
from tests.system.shell import Shell

TRAIN = """
import os, sys
lr = float(sys.argv[1])
if lr > 1:
    raise ValueError("diverged")
print(f"loss={lr / 2}")
with open(os.path.join(os.environ["STOKER_OUT"], "model.txt"), "w") as file:
    file.write(f"weights {lr}")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Shell:
    """A shell in which a job and a sweep have run, and the job's receipt is a file beside them."""
    shell = Shell(tmp_path_factory.mktemp("trained"), index=index)
    (shell.folder / "train.py").write_text(TRAIN)
    run = ["--", sys.executable, "train.py", "{lr}"]
    assert shell.stoker("run", "lr=0.5", "env.SECRET=hunter2", "--name", "one", *run).code == 0
    assert shell.stoker("run", "lr=0.1,2", "--name", "sweep", *run).code == 1
    shown = shell.stoker("receipt", "show", "one", "--out", "one.receipt.json")
    assert shown.code == 0, shown.err
    return shell


def test_a_receipt_is_shown_as_text_and_as_the_receipt_itself(trained: Shell) -> None:
    lines = trained.stoker("receipt", "show", "one").out.splitlines()
    assert lines[0] == "one: completed"
    assert any(line.split()[:3] == ["metric", "loss", "0.25"] for line in lines)
    assert any(line.startswith("  made from   code: train.py  sha256 ") for line in lines)
    assert any(line.startswith("  made        model.txt  sha256 ") for line in lines)
    (body,) = trained.stoker("receipt", "show", "one", "--json").objects()
    assert body == json.loads((trained.folder / "one.receipt.json").read_text())
    assert body["predicate"]["stoker_metrics"] == {"loss": 0.25}
    assert "hunter2" not in json.dumps(body)


def test_each_trial_of_a_sweep_has_one_and_a_failed_one_says_so(trained: Shell) -> None:
    good, bad = (trained.stoker("receipt", "show", f"sweep/{number}", "--json").objects()[0] for number in (1, 2))
    assert (good["predicate"]["stoker_state"], good["predicate"]["stoker_metrics"]) == ("completed", {"loss": 0.05})
    assert bad["predicate"]["stoker_state"] == "failed"
    assert "diverged" in bad["predicate"]["stoker_error"]["message"]
    assert [list(one["digest"]) for one in bad["subject"]] == [["stokerJob"]]
    (whole,) = trained.stoker("receipt", "show", "sweep", "--json").objects()
    assert (whole["predicate"]["stoker_state"], [one["name"] for one in whole["subject"]]) == ("failed", ["lr=0.1"])


def test_a_receipt_is_verified_with_its_files_and_an_edited_one_or_file_is_not(trained: Shell) -> None:
    done = trained.stoker("receipt", "verify", "one.receipt.json")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("one.receipt.json  job of one: completed, not signed, 1 file verified\n")
    assert trained.stoker("check", "one.receipt.json").code == 0
    text = (trained.folder / "one.receipt.json").read_text()
    (trained.folder / "edited.json").write_text(text.replace("0.25", "0.26"))
    for command in (("receipt", "verify"), ("check",)):
        edited = trained.stoker(*command, "edited.json")
        assert edited.code == 15
        assert "does not match its own checksum" in edited.err
    (trained.folder / "other").mkdir()
    (trained.folder / "other" / "model.txt").write_text("weights 0.7")
    assert "--dir elsewhere: no such folder" in trained.stoker("receipt", "verify", "x.json", "--dir", "elsewhere").err
    moved = trained.stoker("receipt", "verify", "one.receipt.json", "--dir", "other", "--json")
    assert moved.code == 15
    (finding,) = moved.objects()[:1]
    assert (finding["what"], finding["is_good"], finding["verified_files"]) == ("job", False, 1)


def test_a_receipt_is_compared_with_this_machine_if_asked(trained: Shell) -> None:
    assert trained.stoker("receipt", "verify", "one.receipt.json", "--here").code == 0


def test_a_signed_receipt_is_verified_by_key_and_nobody_elses_is(trained: Shell) -> None:
    made = trained.stoker("receipt", "key")
    assert made.code == 0, made.err
    assert trained.stoker("receipt", "key").code == 16
    signed = trained.stoker("receipt", "sign", "one.receipt.json", "--json")
    assert signed.code == 0, signed.err
    assert signed.objects()[0]["file"].endswith("one.receipt.signed.json")
    done = trained.stoker("receipt", "verify", "one.receipt.signed.json", "--signed")
    assert done.code == 0, done.err
    assert "job of one: completed, signed by key " in done.out
    assert trained.stoker("receipt", "key", "other.pem").code == 0
    foreign = trained.stoker("receipt", "verify", "one.receipt.signed.json", "--key", "other.pub")
    assert foreign.code == 15
    assert "is not trusted" in foreign.err
    for asked in (("--signed",), ("--key", "other.pub")):
        unsigned = trained.stoker("receipt", "verify", "one.receipt.json", *asked)
        assert (unsigned.code, "stoker receipt sign" in unsigned.err) == (15, True)


def test_bad_input_is_named_with_its_exit_code(trained: Shell) -> None:
    (trained.folder / "nothing.json").write_text('{"a": 1}')
    for words, code, text in (
        (("verify",), 2, "FILE is missing"),
        (("verify", "gone.json"), 16, "no such file"),
        (("verify", "nothing.json"), 15, "is not a receipt"),
        (("show", "gone"), 1, "there is no job 'gone'"),
        (("show", "one/3"), 1, "no trial '3'"),
        (("sign", "nothing.json", "--key", "gone.pem"), 15, "is not a statement"),
        (("sign", "one.receipt.json", "--key", "gone.pem"), 16, "gone.pem"),
        (("certify", "other.pub", "--name", "ann"), 1, "this home has no CA"),
        (("certify", "other.pub"), 2, "--name"),
    ):
        done = trained.stoker("receipt", *words)
        assert (done.code, text in done.err) == (code, True), (words, done)


def test_a_key_that_is_named_is_the_only_one_that_is_trusted(shell: Shell) -> None:
    open_ca(str(shell.home / "state" / "authority"), fleet="desk", now_s=time.time())
    run = shell.stoker("run", "--name", "one", "--", sys.executable, "-c", "print('loss=1')")
    assert run.code == 0, run.err
    for words in (
        ("show", "one", "--out", "one.json"),
        ("key", "ann.pem"),
        ("key", "other.pem"),
        ("certify", "ann.pub", "--name", "ann"),
        ("sign", "one.json", "--key", "ann.pem"),
    ):
        done = shell.stoker("receipt", *words)
        assert done.code == 0, done.err
    verify = ("receipt", "verify", "one.signed.json", "--signed")
    fleet = shell.stoker(*verify)
    assert (fleet.code, "signed by ann, certified by the fleet" in fleet.out) == (0, True), fleet.err
    assert shell.stoker(*verify, "--key", "ann.pub").code == 0
    foreign = shell.stoker(*verify, "--key", "other.pub")
    assert (foreign.code, "is not trusted" in foreign.err) == (15, True), foreign
