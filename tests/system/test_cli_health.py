"""Health, notifications and torture as people use them, on one real fleet."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.receiver import receiver
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, finish, wait_until


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[Shell]:
    """A shell with a coordinator and a worker, for all tests here."""
    shell = Shell(tmp_path_factory.mktemp("health"), index=index)
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    serving.stdout.readline()
    working = shell.start("work", "--name", "lab1", "--slots", "2")
    try:
        yield shell
    finally:
        for process in (working, serving):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)


def test_a_command_runs_once_a_submission_has_ended_and_is_told_how(home: Shell):
    told = home.folder / "told.txt"
    script = f'echo "$STOKER_NOTIFY_STATE $STOKER_NOTIFY_FAILED $STOKER_NOTIFY_NAMES" >> {told}'
    done = home.stoker("submit", "-y", "--in-place", "--name", "ends", "--notify", script, "--", "sh", "-c", "exit 3")
    assert done.code == 0, done.err
    assert "notify.log" in done.err
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
    assert told.read_text() == "failed 1 ends\n"
    log = home.home / "state" / "notify.log"
    wait_until(lambda: "command ended: exit status 0" in log.read_text())
    assert log.stat().st_mode & 0o077 == 0


def test_an_address_is_told_as_jobs_end_and_its_hook_ends_with_them(home: Shell):
    with receiver() as told:
        done = home.stoker("submit", "-y", "--in-place", "--name", "hooked", "--notify", told.url, "--", "true")
        assert done.code == 0, done.err
        (message,) = told.wait_for(1)
        body = json.loads(message.body)
        assert (body["event"], body["name"]) == ("completed", "hooked")
        with desk_of(home) as desk:
            wait_until(lambda: all(hook.closed_s is not None for hook in desk.client.hooks()))


def test_an_address_that_is_never_told_anything_keeps_no_job_from_being_submitted(home: Shell):
    where = "http://169.254.169.254/"
    done = home.stoker("submit", "-y", "--in-place", "--name", "untold", "--notify", where, "--", "true", "untold")
    assert done.code == 0, done.err
    assert f"no webhook for {where}: " in done.err
    assert "submitted to" in done.out


def test_an_admin_adds_tries_and_removes_a_hook(home: Shell):
    with receiver() as told:
        (made,) = home.stoker("admin", "notify", "add", told.url, "--on", "symptom", "--json").objects()
        number = made["hook"]["id"]
        assert home.stoker("admin", "notify", "test", number).out == f"webhook {number}: delivered\n"
        assert json.loads(told.messages[0].body)["event"] == "test"
    assert told.url in home.stoker("admin", "notify").out
    assert home.stoker("admin", "notify", "rm", number).code == 0
    with desk_of(home) as desk:
        assert next(hook for hook in desk.client.hooks() if hook.id == number).closed_s is not None


def test_a_desktop_is_added_tried_and_removed_without_a_coordinator(shell: Shell, tmp_path: Path):
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s " "$@" > {tmp_path}/shown\n')
    program.chmod(0o755)
    shell.env |= {"DISPLAY": ":0", "PATH": f"{tmp_path}:{shell.env['PATH']}"}
    notify = ("admin", "notify")
    refused = shell.stoker(*notify, "add", "--desktop", "--on", "submitted")
    assert (refused.code, "a desktop does not show submitted" in refused.err) == (2, True)
    (made,) = shell.stoker(*notify, "add", "--desktop", "--on", "finished,stuck", "--json").objects()
    assert made == {"id": "desktop", "on": ["completed", "symptom"], "user": "", "is_present": True}
    assert shell.stoker(*notify).out.startswith("desktop: completed, symptom, while")
    assert shell.stoker(*notify, "test", "desktop").out == "desktop: shown\n"
    assert "test of the notifications" in (tmp_path / "shown").read_text()
    assert shell.stoker(*notify, "rm", "desktop").out == "desktop: off\n"


def test_torture_prints_every_promise_and_leaves_nothing_behind(home: Shell):
    (said,) = home.stoker("admin", "torture", "--for", "2s", "--jobs", "20", "--seed", "7", "--json").objects()
    assert said["is_well"], said
    assert said["tried"]["submitted jobs"] > 0
    assert said["refused"].get("words of the past", 0) == said["tried"].get("words of the past", 0)
    assert said["verdict"]["rules"]["one_lease"] == 0
    assert _unended(home) == []


def test_an_interrupted_torture_cleans_up(home: Shell):
    process = home.start("admin", "torture", "--for", "60s", "--jobs", "20")
    wait_until(lambda: _unended(home))
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert _unended(home) == []


@pytest.mark.timing
def test_machines_show_tells_how_a_machine_is(home: Shell):
    with desk_of(home) as desk:
        # Its worker may still be starting.
        wait_until(lambda: any(one.name == "lab1" for one in desk.client.machines()))
        wait_until(lambda: desk.client.machine("lab1").report)
        shown = desk.client.machine("lab1")
    assert {one["name"] for one in shown.report["findings"]} >= {"cpu", "memory", "disk"}
    assert not shown.is_skewed
    done = home.stoker("machines", "show", "lab1")
    assert done.code == 0, done.err
    for text in ("protocol 2", "as the coordinator's", "doctor", "checks"):
        assert text in done.out


def desk_of(home: Shell) -> FleetDesk:
    return FleetDesk(json.loads((home.home / "state" / "serve.json").read_text())["url"], home.home)


def _unended(home: Shell) -> list[str]:
    with desk_of(home) as desk:
        found = desk.states().items()
        return [name for name, (state, _) in found if name.startswith("torture") and state in _OPEN]


_OPEN = ("pending", "claimed", "running")
