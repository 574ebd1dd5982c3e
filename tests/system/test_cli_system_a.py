"""System A's fleet against `stoker serve --system-a`: its own manifest, its worker, its operator's scripts."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.system_a import Caller, Refused, Worker, tarball
from tests.system.shell import Shell, finish, wait_until

MODELS = ("gbt", "knn", "knn_semi", "mlp", "cnn", "gru", "lstm")
HOSTS = '[[hosts]]\nname = "lab1"\nallow_jobs = ["gbt", "knn"]\n'
JOB = """[[jobs]]
name = "{model}_{mode}"
model = "{model}"
mode = "{mode}"
min_ram_gib = 0.5
seed = 7
split_recipe = "by_day"
train_hosts = ["lab1", "lab2"]
"""


def manifest() -> str:
    return HOSTS + "".join(JOB.format(model=model, mode=mode) for model in MODELS for mode in ("realistic", "oracle"))


@pytest.fixture
def started(shell: Shell) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def serve(shell: Shell, started: list[subprocess.Popen[str]], *words: object) -> dict[str, Any]:
    process = shell.start("serve", "--listen", "127.0.0.1:0", "--json", *words)
    started.append(process)
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def train(job: dict[str, Any]) -> bytes:
    assert set(job) >= {"id", "name", "model", "mode", "hyper", "split_recipe", "train_hosts", "seed"}
    if (job["model"], job["mode"]) == ("knn", "oracle"):
        raise ValueError("no neighbours")
    return tarball(job["name"])


def test_a_host_of_two_models_claims_four_of_fourteen_jobs_and_its_failure_is_visible(shell: Shell, started):
    """A-45."""
    path = shell.folder / "manifest.toml"
    path.write_text(manifest())
    ready = serve(shell, started, "--system-a", "--manifest", path)
    assert ready["system_a"] is True
    url, token = ready["url"], Path(ready["token_file"]).read_text().strip()
    script = Caller(url)
    assert script.ask("GET", "health")["status"] == "ok"
    assert {job["state"] for job in script.jobs().values()} == {"pending"}
    assert len(script.jobs()) == 14
    done = Worker(url, "lab1").work(train)
    assert sorted((job["model"], job["mode"]) for job in done) == [
        ("gbt", "oracle"),
        ("gbt", "realistic"),
        ("knn", "oracle"),
        ("knn", "realistic"),
    ]
    assert {(job["split_recipe"], tuple(job["train_hosts"]), job["seed"]) for job in done} == {
        ("by_day", ("lab1", "lab2"), 7)
    }
    assert all(not {"mode", "seed"} & job["hyper"].keys() for job in done)
    jobs = script.jobs()
    states = [job["state"] for job in jobs.values()]
    assert (states.count("completed"), states.count("failed"), states.count("pending")) == (3, 1, 10)
    assert "ValueError: no neighbours" in jobs["knn_oracle"]["why"]
    # three artifacts, each kept under its model and mode, a line each in the index.
    index = shell.home / "fleet" / "models" / "index.jsonl"
    wait_until(lambda: index.exists() and len(index.read_text().splitlines()) == 3)
    kept = [json.loads(line) for line in index.read_text().splitlines()]
    assert sorted(line["name"] for line in kept) == ["gbt_oracle", "gbt_realistic", "knn_realistic"]
    # Every line that heartbeats brought is shown, not the last alone.
    assert shell.stoker("logs", "gbt_oracle").out.splitlines() == [
        "==> output <==",
        "training gbt",
        "epoch 1",
        "epoch 2",
        "saved",
    ]
    got = shell.stoker("get", "gbt_oracle", "got")
    assert got.code == 0, got
    (model,) = [Path(at, "bundle") for at, _, files in os.walk(shell.folder / "got") if "bundle" in files]
    assert hashlib.sha256(model.read_bytes()).hexdigest() == hashlib.sha256(tarball("gbt_oracle")).hexdigest()
    # It is no machine whose program is too old.
    assert "skewed" not in shell.stoker("machines", "show", "lab1").out
    _operate(url, token, jobs["knn_oracle"]["id"], path)
    started[0].send_signal(signal.SIGTERM)
    ended = finish(started[0])
    assert "WARNING" in ended.err
    assert "--system-a" in ended.err


def _operate(url: str, token: str, failed: str, path: Path) -> None:
    """A-30, A-34, A-25: the operator's routes, with the token and not without."""
    for verb in (Caller(url).requeue, Caller(url).cancel):
        with pytest.raises(Refused) as refused:
            verb(failed)
        assert refused.value.status == 401
    operator = Caller(url, token=token)
    assert operator.requeue(failed)["changed"] == [failed]
    assert operator.jobs()["knn_oracle"]["state"] == "pending"
    assert operator.cancel(failed)["changed"] == [failed]
    assert operator.jobs()["knn_oracle"]["state"] == "cancelled"
    path.write_text(manifest() + JOB.format(model="transformer", mode="oracle"))
    operator.reload()
    assert operator.jobs()["transformer_oracle"]["state"] == "pending"


def test_without_the_flag_the_routes_are_off_and_the_answer_names_it(shell: Shell, started):
    ready = serve(shell, started)
    assert ready["system_a"] is False
    url, token = ready["url"], Path(ready["token_file"]).read_text().strip()
    worker, operator = Worker(url, "lab1"), Caller(url, token=token)
    job = {"id": "a" * 64}
    for ask in (
        worker.claim,
        lambda: worker.heartbeat(job, "x"),
        lambda: worker.put_model(job, b"x"),
        lambda: worker.complete(job, "a" * 64),
        lambda: worker.fail(job, "x"),
        operator.workers,
        lambda: operator.requeue("a" * 64),
        operator.reload,
    ):
        with pytest.raises(Refused) as refused:
            ask()
        assert refused.value.status == 404
        assert "--system-a" in refused.value.body["hint"]
