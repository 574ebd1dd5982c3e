"""Ray: the requests that are sent, what a cluster shows and what that means."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import LaunchDoubtful, LaunchRefused, LocalFile, NoBackend, StokerError
from stoker.core.frozen import changed
from stoker.core.pool import Allocation, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.devices.checkup import CheckStatus
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.launch.launchers import NEXT
from stoker.launch.ray import RayLauncher, read_ray_token
from tests.fakes.transport import FakeReply, FakeTransport, Scripted
from tests.servers.ray_jobs import TOKEN, RayJobs
from tests.unit.launch.golden_scripts import same_as_golden

FLEET = "4c1d0a"
POOL = Pool(
    name="gpu",
    backend=PoolBackend.RAY,
    each=PoolShape(cpu_cores=8, ram_mb=65_536, gpus=(PoolGpu(type="a100", vram_mb=40_960),) * 2),
    setup=("export X='a \"b\" $c'",),
    options={"address": "http://head.example.org:8265/", "resources": "accelerator_type:A100=0.001,big=1"},
    python="/bin/true",
)
TWO = [Allocation(id="12e456", pool="gpu"), Allocation(id="7f3a2c", pool="gpu")]
SECRET = "5ec7e7" * 10
TICKETS = {one.id: f'{{"key": "{SECRET}"}}\n' for one in TWO}


@pytest.fixture
def launcher() -> Iterator[RayLauncher]:
    transport = Urllib3Transport(HttpSettings())
    yield RayLauncher(transport, lambda: TOKEN)
    transport.close()


def at(cluster: RayJobs) -> Pool:
    return changed(POOL, options={"address": cluster.url})


def test_what_is_sent_is_kept() -> None:
    rendered = RayLauncher(FakeTransport(lambda _: Scripted()), lambda: TOKEN).render(POOL, TWO, fleet=FLEET)
    files = "".join(f"{path}: {text}\n" for path, text in rendered.files.items())
    same_as_golden("ray.txt", f"{' '.join(rendered.argv)}\n{rendered.stdin}{files}")
    assert [json.loads(body)["submission_id"] for body in rendered.stdin.split(NEXT)] == [one.name for one in TWO]


def test_a_ticket_is_the_one_file_of_a_package_that_only_its_owner_reads(
    ray_jobs: RayJobs, launcher: RayLauncher
) -> None:
    rendered = launcher.render(at(ray_jobs), TWO, fleet=FLEET)
    assert launcher.submit(rendered, TICKETS) == {one.id: one.name for one in TWO}
    assert SECRET not in json.dumps(ray_jobs.jobs)
    with zipfile.ZipFile(io.BytesIO(ray_jobs.packages["stoker-gpu-12e456.zip"])) as package:
        (entry,) = package.infolist()
        assert (entry.filename, entry.external_attr >> 16) == ("ticket", 0o600)
        assert package.read(entry).decode() == TICKETS["12e456"]


def test_a_request_that_is_repeated_starts_nothing_twice(ray_jobs: RayJobs, launcher: RayLauncher) -> None:
    rendered = launcher.render(at(ray_jobs), TWO, fleet=FLEET)
    ray_jobs.loses = {"POST /api/jobs/"}
    with pytest.raises(LaunchDoubtful):
        launcher.submit(rendered, TICKETS)
    ray_jobs.loses = set()
    assert launcher.submit(rendered, TICKETS) == {one.id: one.name for one in TWO}
    assert set(ray_jobs.jobs) == {one.name for one in TWO}


@pytest.mark.parametrize(
    ("status", "text", "expected", "hint"),
    [
        (400, "Traceback\nValueError: entrypoint_num_gpus must be positive\n", LaunchRefused, "pools check"),
        (500, "No available agent to submit job, please try again later.", LaunchDoubtful, ""),
        (503, "busy", NoBackend, ""),
        (404, "404: Not Found", NoBackend, "ray[default]"),
        (302, "elsewhere", NoBackend, ""),
    ],
)
def test_a_refusal_has_rays_own_words(
    ray_jobs: RayJobs, launcher: RayLauncher, status: int, text: str, expected: type[StokerError], hint: str
) -> None:
    ray_jobs.answers = {"POST /api/jobs/": (status, text)}
    with pytest.raises(StokerError) as raised:
        launcher.submit(launcher.render(at(ray_jobs), TWO, fleet=FLEET), TICKETS)
    assert type(raised.value) is expected
    assert text.splitlines()[-1] in raised.value.message
    assert hint in raised.value.hint
    assert TOKEN not in str(raised.value) + raised.value.hint


def test_of_several_some_may_have_been_submitted(ray_jobs: RayJobs, launcher: RayLauncher) -> None:
    ray_jobs.answers = {"PUT /api/packages/gcs/stoker-gpu-7f3a2c.zip": (500, "full")}
    with pytest.raises(LaunchDoubtful, match="1 of 2 jobs submitted"):
        launcher.submit(launcher.render(at(ray_jobs), TWO, fleet=FLEET), TICKETS)
    assert list(ray_jobs.jobs) == ["stoker-gpu-12e456"]


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    transport = FakeTransport(lambda _: Scripted(body=b"[" + b" " * 500))
    read = FakeReply.read

    def drip(reply: FakeReply, _at_most_bytes: int) -> bytes:
        clock.advance(2)
        return read(reply, 1)

    monkeypatch.setattr(FakeReply, "read", drip)
    launcher = RayLauncher(transport, lambda: TOKEN, clock=clock)
    with pytest.raises(NoBackend, match="did not answer completely within 60 s"):
        launcher.look(POOL, fleet=FLEET)
    assert (clock.monotonic_s(), transport.open_replies) == (62, 0)
    with pytest.raises(LaunchDoubtful, match="did not answer completely within 60 s"):
        launcher._post("http://head.example.org:8265/api/jobs/", '{"submission_id": "one"}')


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_or_missing_token_is_an_error_that_does_not_show_it(ray_jobs: RayJobs, token: str) -> None:
    transport = Urllib3Transport(HttpSettings())
    launcher = RayLauncher(transport, lambda: token)
    (check,) = launcher.check(at(ray_jobs))
    transport.close()
    assert (check.verdict, "RAY_AUTH_TOKEN" in check.hint) == (CheckStatus.BAD, True)
    assert not token or token not in check.message


def test_check_warns_of_a_token_that_others_can_read() -> None:
    answers = [Scripted(body=b'{"ray_version": "2.60.0"}'), Scripted(body=b"[]")]
    checks = RayLauncher(FakeTransport.saying(answers), lambda: TOKEN).check(POOL)
    assert {one.name: one.verdict for one in checks}["token"] is CheckStatus.WARN
    not_ray = RayLauncher(FakeTransport(lambda _: Scripted(body=b"<html>")), lambda: TOKEN).check(POOL)
    assert [one.verdict for one in not_ray] == [CheckStatus.BAD]


def job(id: str, status: str, **fields: Any) -> dict[str, Any]:
    name = Allocation(id=id, pool="gpu").name
    return {"submission_id": name, "status": status, "metadata": {"stoker": f"stoker:{FLEET}:{id}"}, **fields}


DIED = "JOB_SUPERVISOR_ACTOR_DIED"
SHOWN = {
    "waiting - Job has not started yet.": job("000001", "PENDING", message="Job has not started yet."),
    "started - ": job("000002", "RUNNING", message="Job is currently running."),
    "ended finished exit 0": job("000003", "SUCCEEDED", driver_exit_code=0, end_time=1000),
    "ended finished exit 75": job("000004", "FAILED", driver_exit_code=75),
    "ended preempted exit -15": job("000005", "FAILED", driver_exit_code=-15),
    "ended failed exit 3": job("000006", "FAILED", driver_exit_code=3, message="Job entrypoint command failed"),
    "ended cancelled_there stopped": job("000007", "STOPPED", message="stopped"),
    "ended preempted its node has died": job("000008", "FAILED", error_type=DIED, message="its node has died"),
    "ended out_of_memory killed: low on memory": job(
        "000009", "FAILED", error_type=DIED, message="killed:\nlow on memory"
    ),
    "ended preempted not within 900 s": job(
        "00000a", "FAILED", error_type="JOB_SUPERVISOR_ACTOR_START_TIMEOUT", message="not within 900 s"
    ),
    "ended failed no such package": job(
        "00000b", "FAILED", error_type="RUNTIME_ENV_SETUP_FAILURE", message="no such package"
    ),
    "ended cancelled_there psutil.NoSuchProcess: 666": job(
        "00000c", "FAILED", message="Traceback:\n x\npsutil.NoSuchProcess: 666\n"
    ),
}
FOREIGN = [
    {**job("0000f1", "RUNNING"), "metadata": {}},
    {**job("0000f2", "RUNNING"), "metadata": None},
    {**job("0000f3", "RUNNING"), "metadata": {"stoker": "stoker:other:0000f3"}},
    {**job("0000f4", "RUNNING"), "submission_id": "stoker-gpu2-0000f4"},
    {**job("0000f5", "A_NEW_STATE")},
    "nonsense",
]


def test_what_a_cluster_shows_becomes_a_state_a_cause_and_its_own_words() -> None:
    body = json.dumps([*SHOWN.values(), *FOREIGN]).encode()
    launcher = RayLauncher(FakeTransport(lambda _: Scripted(body=body)), lambda: TOKEN)
    known = Allocation(id="abcdef", pool="gpu", backend_id="stoker-gpu-abcdef")
    *seen, lost = launcher.look(POOL, fleet=FLEET, known=[known])
    assert [f"{one.state} {one.cause or '-'} {one.reason}" for one in seen] == list(SHOWN)
    assert (lost.id, lost.state, lost.cause) == ("abcdef", "ended", "preempted")


def test_what_still_runs_is_not_cleaned_up(ray_jobs: RayJobs, launcher: RayLauncher) -> None:
    pool = changed(at(ray_jobs), setup=("sleep 60",))
    launcher.submit(launcher.render(pool, TWO[:1], fleet=FLEET), TICKETS)
    launcher.clean(pool, TWO)
    assert list(ray_jobs.jobs) == ["stoker-gpu-12e456"]


def test_the_token_is_where_ray_looks_for_it(tmp_path: Path) -> None:
    assert read_ray_token({}, str(tmp_path)) == ""
    file = tmp_path / ".ray/auth_token"
    file.parent.mkdir()
    file.write_text("of the home\n")
    file.chmod(0o600)
    assert read_ray_token({}, str(tmp_path)) == "of the home"
    assert read_ray_token({"RAY_AUTH_TOKEN_PATH": str(file)}, "/none") == "of the home"
    assert read_ray_token({"RAY_AUTH_TOKEN": "given"}, str(tmp_path)) == "given"
    file.chmod(0o644)
    with pytest.raises(LocalFile):
        read_ray_token({}, str(tmp_path))
