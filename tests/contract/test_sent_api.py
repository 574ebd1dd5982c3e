"""Manifests sent as text and jobs again, at a real coordinator: submitted, refused, and closed in while checked."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stoker.coordinator.http.request_checks import RequestChecks
from stoker.core.errors import BadInput, InternalError, TooLarge
from stoker.protocol.sent_messages import MOST_MANIFEST, RepeatJobRequest
from tests.servers.coordinator import TOKEN, Fleet, coordinator

JOBS = '[[jobs]]\nname = "trees"\nrecipe = "tabular/gbt"\n'


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("sent")
    (folder / "queue.db").write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{folder}/queue.db", folder) as fleet:
        yield fleet


def post(fleet: Fleet, path: str, body: object) -> tuple[int, dict[str, Any]]:
    """Ask as `curl -d` does."""
    parts = urlsplit(fleet.url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    link.request("POST", path, json.dumps(body), headers)
    reply = link.getresponse()
    data = json.loads(reply.read())
    link.close()
    return reply.status, data


def test_a_manifest_is_tried_submitted_and_its_job_submitted_again_with_other_values(fleet: Fleet):
    sent = {"name": "m.toml", "text": f'{JOBS}sweep = {{ lr = [0.1, 0.2] }}\nafter = ["nobody"]'}
    status, tried = post(fleet, "/v1/manifests", {**sent, "dry_run": True})
    assert (status, tried["answer"]) == (200, None)
    ((fault),) = tried["faults"]
    assert (fault["line"], fault["key"]) == (5, "jobs[0].after[0]")
    sent["text"] = f"{JOBS}sweep = {{ lr = [0.1, 0.2] }}"
    assert post(fleet, "/v1/manifests", {**sent, "dry_run": True})[1]["answer"]["counts"]["new"] == 2
    assert fleet.client().jobs().total == 0, "a dry run submits nothing"
    assert post(fleet, "/v1/manifests", sent)[1]["answer"]["counts"]["new"] == 2
    sent["text"] = f'{JOBS}hyper = {{ data = "../../etc/passwd" }}'
    status, refused = post(fleet, "/v1/manifests", sent)
    assert (status // 100, refused["error"], refused["hint"]) == (
        4,
        "manifest_faults",
        "type there: stoker submit m.toml",
    )
    assert fleet.client().jobs().total == 2, "all or none"
    sent["text"] = f"{JOBS}sweep ="
    message = post(fleet, "/v1/manifests", sent)[1]["message"]
    assert re.match(r"m\.toml:\d+:\d+: is not TOML", message), message

    client = fleet.client()
    form = client.repeat_form("trees/2")
    assert (form.name, form.program, form.can_submit) == ("trees-2", "", True)
    settings = {one.path: one.text for one in form.settings}
    assert (settings["lr"], settings["model.trees"]) == ("0.2", "200")
    wrong = client.repeat("trees/2", RepeatJobRequest(changes=("lr=7", "folds=x"), dry_run=True))
    assert [one.key for one in wrong.faults] == ["lr", "folds"]
    request = RepeatJobRequest(changes=("model.trees=50",), name="small")
    made = client.repeat("trees/2", request)
    assert made.answer is not None
    assert made.answer.counts["new"] == 1
    assert (made.job, made.differs) == ("small", ("model.trees: 200 → 50",))
    assert made.command == "stoker submit --again trees/2 model.trees=50 --name small"
    story = client.job("small")
    assert (story.spec.args["lr"], story.spec.args["model"]["trees"], story.job.name) == (0.2, 50, "small")
    with pytest.raises(BadInput, match="nothing differs from trees/2"):
        client.repeat("trees/2", RepeatJobRequest())


def test_a_sweep_of_a_nested_value_given_as_text_is_taken(fleet: Fleet):
    text = f'{JOBS}sweep = {{ "model.trees" = "50,100" }}'
    status, tried = post(fleet, "/v1/manifests", {"name": "m.toml", "text": text, "dry_run": True})
    assert (status, tried["answer"]["counts"]["new"]) == (200, 2), tried


def test_a_manifest_that_waits_for_very_many_jobs_asks_the_database_for_none(fleet: Fleet):
    after = ", ".join(f'"nobody/{number}"' for number in range(20_000))
    status, refused = post(fleet, "/v1/manifests", {"text": f"{JOBS}after = [{after}]", "dry_run": True})
    assert (status, refused["error"], refused["message"]) == (
        413,
        "too_large",
        "its jobs wait for more than 1,000 others",
    )


def test_one_user_has_few_checks_at_a_time_and_those_who_wait_hold_no_thread(fleet: Fleet):
    with ThreadPoolExecutor(6) as threads:
        body = {"text": JOBS, "dry_run": True}
        answers = list(threads.map(lambda _: post(fleet, "/v1/manifests", body), range(6)))
    statuses = sorted(status for status, _ in answers)
    assert statuses.count(200) >= 2
    assert set(statuses[2:]) <= {200, 429}
    assert 429 in statuses
    refused = next(said for status, said in answers if status == 429)
    assert refused["message"] == "2 checks of manifests or jobs of yours are not done yet"


def test_what_is_too_large_or_no_manifest_is_refused_before_it_is_checked(fleet: Fleet):
    for body in (
        {"text": "x" * (MOST_MANIFEST + 1)},
        {"text": "", "name": "../m.toml"},
        {"text": "", "name": "m.json"},
        {"text": 5},
        {"text": "", "more": [[]] * 100_000},
        {"text": "x" * (6 << 20)},
        {},
    ):
        status, answer = post(fleet, "/v1/manifests", {**body, "dry_run": True})
        assert status in (400, 413, 422), answer


def test_a_check_that_takes_too_long_is_ended():
    with pytest.raises(TooLarge, match=r"longer than 0\.01 s"):
        RequestChecks(limit_s=0.01).manifest("m.toml", JOBS, set)


PROBE = """
import os, socket, subprocess, sys
from stoker.coordinator.http import request_child
found = []
request_child._limit()
request_child._close_in()
for name, act in {
    "passwd": lambda: open("/etc/passwd").read(),
    "own environment": lambda: open("/proc/self/environ").read(),
    "parent": lambda: open(sys.prefix + "/../../../../../etc/passwd").read(),
    "by descriptor": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "list": lambda: os.listdir("/"),
    "relative list": lambda: os.listdir(),
    "write": lambda: open(os.__file__ + "c2", "w"),
    "program": lambda: subprocess.run(["true"]),
    "shell": lambda: os.system("true"),
    "network": lambda: socket.create_connection(("127.0.0.1", 9)),
}.items():
    try:
        act()
        found.append(name)
    except PermissionError:
        pass
import wave
print(found, dict(os.environ).get("SECRET"), os.path.exists("secret.txt"))
"""


def test_a_child_that_fails_is_a_bug_of_ours_and_tells_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        RequestChecks, "run_closed_in", lambda *_: subprocess.CompletedProcess([], 1, b"", b"/home/x: secret")
    )
    with pytest.raises(InternalError, match="exit code 1") as found:
        RequestChecks().manifest("m.toml", JOBS, set)
    assert "secret" not in json.dumps(found.value.to_dict())


def test_the_child_reads_nothing_but_the_installed_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "secret.txt").write_text("hidden")
    monkeypatch.setenv("SECRET", "hidden")
    seen = RequestChecks().run_closed_in(["-c", PROBE], b"")
    assert seen.stdout.decode().strip() == "[] None False", seen.stderr.decode()
