"""Kubernetes: the manifests that are sent, what a cluster shows and what that means. kubectl is the real one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import LaunchDoubtful, LaunchRefused, NoBackend, StokerError
from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationCause, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.devices.checkup import CheckStatus
from stoker.host.command_runner import SubprocessRunner
from stoker.launch.commands import HostCommands
from stoker.launch.kubernetes import KubernetesLauncher
from stoker.launch.launchers import NEXT
from tests.servers.kubernetes_api import KubernetesApi
from tests.unit.launch.golden_scripts import same_as_golden

FLEET = "4c1d0a"
SMALL = Pool(name="gpu", backend=PoolBackend.KUBERNETES, options={"image": "stoker:1"})
POOL = changed(
    SMALL,
    each=PoolShape(cpu_cores=8, ram_mb=65_536, gpus=(PoolGpu(type="a100", vram_mb=40_960),) * 2),
    wall_s=7200.5,
    setup=("export X='a \"b\" $c'",),
    options={
        "context": "lab",
        "gpu-resource": "nvidia.com/mig-1g.5gb",
        "image": "registry.example.org/lab/stoker:1.2@sha256:00ff",
        "image-pull-secret": "registry",
        "namespace": "train",
        "node-selector": "kubernetes.io/arch=amd64,lab7/disk=",
        "priority-class": "low",
        "run-as-user": "1000",
        "runtime-class": "nvidia",
        "service-account": "trainer",
        "tolerations": "nvidia.com/gpu:NoSchedule,team=lab7,spot",
    },
)
# An id that YAML would read as a number.
TWO = [Allocation(id="12e456", pool="gpu"), Allocation(id="7f3a2c", pool="gpu")]
TICKETS = {one.id: f'{{"v": 1, "key": "{"5e" * 32}"}}\n' for one in TWO}


@pytest.fixture
def launcher(kubernetes_api: KubernetesApi, tmp_path: Path) -> Callable[..., KubernetesLauncher]:
    def made(kubeconfig: str = "", path: str = "") -> KubernetesLauncher:
        environment = {"HOME": str(tmp_path), "KUBECONFIG": kubeconfig or str(kubernetes_api.kubeconfig())}
        environment["PATH"] = path or os.environ["PATH"]
        return KubernetesLauncher(HostCommands(SubprocessRunner(environment), control_folder=str(tmp_path / "control")))

    return made


def without_kubectl() -> KubernetesLauncher:
    return KubernetesLauncher(HostCommands(SubprocessRunner({}), control_folder="/none"))


def manifests(pool: Pool) -> list[dict[str, Any]]:
    documents = without_kubectl().render(pool, TWO, fleet=FLEET).stdin.split(NEXT)
    return [item for document in documents for item in json.loads(document)["items"]]


def test_what_is_sent_is_kept() -> None:
    rendered = without_kubectl().render(POOL, TWO[1:], fleet=FLEET)
    same_as_golden("kubernetes.txt", f"{' '.join(rendered.argv)}\n{rendered.stdin}")


@pytest.mark.parametrize("pool", [SMALL, POOL], ids=["small", "all options"])
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_every_manifest_fits_the_strict_schema_of_its_kind(pool: Pool, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    made = manifests(pool)
    assert [item["kind"] for item in made] == ["Secret", "Secret", "Job", "Job"]
    for item in made:
        validator.validate(item, version, strict=True)


def test_a_schema_refuses_a_field_that_no_cluster_knows() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    job = manifests(SMALL)[2]
    job["spec"]["template"]["spec"]["activeDeadline"] = 1
    with pytest.raises(validator.ValidationError):
        validator.validate(job, "1.37", strict=True)


def test_a_job_is_tried_once_and_its_pod_has_the_pools_limits() -> None:
    spec = manifests(POOL)[2]["spec"]
    pod = spec["template"]["spec"]
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert (pod["activeDeadlineSeconds"], pod["terminationGracePeriodSeconds"]) == (7201, 120)
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "65536Mi", "nvidia.com/mig-1g.5gb": "2"}
    assert pod["volumes"][0]["secret"] == {"secretName": "stoker-gpu-12e456", "defaultMode": 0o400}
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64", "lab7/disk": ""}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "lab7"},
        {"key": "spot", "operator": "Exists"},
    ]


def test_a_ticket_is_a_secret_that_is_there_before_its_job(
    kubernetes_api: KubernetesApi, launcher: Callable[..., KubernetesLauncher]
) -> None:
    made = launcher()
    rendered = made.render(SMALL, TWO, fleet=FLEET)
    # Debian's kubectl first reads the API's schema, which this server has not.
    old = "failed to download openapi: the server could not find the requested resource"
    assert made.forecast(rendered) in ("accepted in a dry run", old)
    assert kubernetes_api.objects["jobs"] == {}
    assert made.submit(rendered, TICKETS) == {one.id: one.name for one in TWO}
    jobs, secrets = kubernetes_api.objects["jobs"], kubernetes_api.objects["secrets"]
    assert list(secrets) == list(jobs) == [one.name for one in TWO]
    for one in TWO:
        assert secrets[one.name]["stringData"] == {"ticket": TICKETS[one.id]}
    creations = [one for one in kubernetes_api.requests if one.startswith("create")]
    assert creations[-4:] == ["create secrets"] * 2 + ["create jobs"] * 2
    with pytest.raises(LaunchDoubtful, match="already exists"):
        made.submit(rendered, TICKETS)
    made.clean(SMALL, TWO)
    assert secrets == {}


@pytest.mark.parametrize("lost", ["create secrets", "create jobs"])
def test_no_lost_answer_leaves_a_job_without_its_secret(
    kubernetes_api: KubernetesApi, launcher: Callable[..., KubernetesLauncher], lost: str
) -> None:
    kubernetes_api.loses = {lost}
    made = launcher()
    with pytest.raises(LaunchDoubtful):
        made.submit(made.render(SMALL, TWO[:1], fleet=FLEET), TICKETS)
    assert set(kubernetes_api.objects["jobs"]) == ({TWO[0].name} if lost == "create jobs" else set())
    assert set(kubernetes_api.objects["secrets"]) == {TWO[0].name}
    kubernetes_api.loses = set()
    found = [one.id for one in made.look(SMALL, fleet=FLEET)]
    assert found == ([TWO[0].id] if lost == "create jobs" else [])
    made.clean(SMALL, TWO)
    assert kubernetes_api.objects["secrets"] == {}


def test_without_the_right_to_make_secrets_no_job_is_made(
    kubernetes_api: KubernetesApi, launcher: Callable[..., KubernetesLauncher]
) -> None:
    kubernetes_api.forbidden = {"create secrets"}
    made = launcher()
    with pytest.raises(LaunchRefused, match="secrets is forbidden") as refused:
        made.submit(made.render(SMALL, TWO[:1], fleet=FLEET), TICKETS)
    assert "can-i" in refused.value.hint
    assert kubernetes_api.objects["jobs"] == {}
    (rights,) = [one for one in made.check(SMALL) if one.name == "rights"]
    assert (rights.verdict, rights.message) == (CheckStatus.BAD, "not allowed: create secrets")


@pytest.mark.parametrize(
    "printed",
    ["", "maintenance", "stoker:list\\nJob", "stoker:list\\nPod\\ta\\tb\\t\\t\\t\\t\\t{}\\t[]", "stoker:list\\n<html>"],
)
def test_what_is_no_list_of_kubectl_ends_nothing(
    launcher: Callable[..., KubernetesLauncher], tmp_path: Path, printed: str
) -> None:
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    (tmp_path / "kubectl").chmod(0o755)
    made = launcher(path=f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NoBackend, match="no list of Jobs"):
        made.look(SMALL, fleet=FLEET, known=[changed(TWO[0], backend_id=TWO[0].name)])


def test_rights_are_checked_in_the_namespace_of_the_context(
    kubernetes_api: KubernetesApi, launcher: Callable[..., KubernetesLauncher]
) -> None:
    kubernetes_api.forbidden = {"get pods/log"}
    made = launcher()
    (rights,) = [one for one in made.check(SMALL) if one.name == "rights"]
    assert rights.message == "not allowed: get pods/log"
    elsewhere = changed(SMALL, options={**SMALL.options, "namespace": "other"})
    (rights,) = [one for one in made.check(elsewhere) if one.name == "rights"]
    assert "create jobs" in rights.message


def test_of_several_those_are_made_whose_secret_could_be_made(
    kubernetes_api: KubernetesApi, launcher: Callable[..., KubernetesLauncher]
) -> None:
    made = launcher()
    taken = made.render(SMALL, TWO[:1], fleet=FLEET)
    made.submit(taken, TICKETS)
    for kept in ("jobs", "secrets"):
        other = Allocation(id=f"00000{len(kept)}", pool="gpu")
        if kept == "jobs":
            del kubernetes_api.objects["secrets"][TWO[0].name]
        with pytest.raises(LaunchDoubtful, match="1 of 2 Jobs created"):
            made.submit(made.render(SMALL, [TWO[0], other], fleet=FLEET), {**TICKETS, other.id: "x"})
        assert kubernetes_api.objects["jobs"].keys() == kubernetes_api.objects["secrets"].keys()
        assert other.name in kubernetes_api.objects["jobs"]


def test_a_request_that_failed_is_refused_or_not_possible_now_or_in_doubt(
    kubernetes_api: KubernetesApi, launcher: Callable[..., KubernetesLauncher]
) -> None:
    made = launcher()
    rendered = made.render(SMALL, TWO[:1], fleet=FLEET)

    def failure(of: KubernetesLauncher) -> StokerError:
        with pytest.raises(StokerError) as raised:
            of.submit(rendered, TICKETS)
        return raised.value

    kubernetes_api.is_locked = True
    locked = failure(made)
    kubernetes_api.is_locked = False
    assert (type(locked), "log in again" in locked.hint) == (NoBackend, True)
    assert type(failure(launcher(str(kubernetes_api.kubeconfig("http://127.0.0.1:1"))))) is NoBackend
    assert "KUBECONFIG" in failure(launcher("/none")).hint
    missing = failure(launcher(path="/none"))
    assert (type(missing), "kubectl not found" in missing.message) == (NoBackend, True)
    kubernetes_api.loses = {"create jobs"}
    assert type(failure(made)) is LaunchDoubtful
    kubernetes_api.loses, kubernetes_api.forbidden = set(), {"list jobs"}
    with pytest.raises(LaunchRefused, match="cannot list resource"):
        made.look(SMALL, fleet=FLEET)


def terminated(code: int, reason: str = "Error") -> dict[str, Any]:
    times = {"startedAt": "2026-11-18T08:00:10Z", "finishedAt": "2026-11-18T09:00:00Z"}
    return {"terminated": {"exitCode": code, "reason": reason, **times}}


RUNS = {"running": {"startedAt": "2026-11-18T08:05:00Z"}}
FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "has reached\nits limit"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "other\twork"}
UNFIT = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes\nare available"}
COMPLETE = {"type": "Complete", "status": "True"}
PULLS = {"waiting": {"reason": "ContainerCreating"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
LATE = {"phase": "Failed", "reason": "DeadlineExceeded", "state": terminated(137)}
DISPLACED = {"phase": "Failed", "state": terminated(137), "conditions": [DISRUPTED]}
# By id: the Job's condition, the pod's status, and the state, the cause and the words that they mean.
SHOWN: dict[str, tuple[Any, Any, str]] = {
    "000001": (None, {"phase": "Pending", "conditions": [UNFIT]}, "waiting - Unschedulable: 0/3 nodes are available"),
    "000002": (None, {"phase": "Running", "state": RUNS}, "started - "),
    "000003": (None, {"phase": "Pending", "state": NO_IMAGE}, "started - ImagePullBackOff: no such image"),
    "000004": (None, {"phase": "Pending", "state": PULLS}, "waiting - ContainerCreating"),
    "000005": (COMPLETE, {"phase": "Succeeded", "state": terminated(0)}, "ended finished Complete"),
    "000006": (FAILED, {"phase": "Failed", "state": terminated(75)}, "ended finished exit 75"),
    "000007": (FAILED, {"phase": "Failed", "state": terminated(3)}, "ended failed exit 3"),
    "000008": (FAILED, {"phase": "Failed", "state": terminated(137, "OOMKilled")}, "ended out_of_memory OOMKilled"),
    "000009": (FAILED, DISPLACED, "ended preempted DisruptionTarget: PreemptionByScheduler: other work"),
    "00000a": (FAILED, LATE, "ended preempted DeadlineExceeded"),
    "00000b": (FAILED, {"phase": "Failed", "reason": "Evicted"}, "ended preempted Evicted"),
    "00000c": (FAILED, None, "ended preempted BackoffLimitExceeded: has reached its limit; its pod is gone"),
    "00000d": (None, None, "waiting - no pod yet"),
    "00000e": ("deleted", {"phase": "Running", "state": RUNS}, "started - terminating"),
    "00000f": (
        "deleted",
        {"phase": "Failed", "state": terminated(137)},
        "ended cancelled_there Job deleted; exit 137",
    ),
}


def test_what_a_cluster_shows_becomes_a_state_a_cause_and_its_own_words(
    kubernetes_api: KubernetesApi, launcher: Callable[..., KubernetesLauncher]
) -> None:
    for id, (condition, status, _) in SHOWN.items():
        one = Allocation(id=id, pool="gpu")
        job = json.loads(without_kubectl().render(SMALL, [one], fleet=FLEET).stdin.split(NEXT)[1])["items"][0]
        if condition != "deleted":
            kubernetes_api.objects["jobs"][one.name] = {
                **job,
                "status": {"conditions": [condition] if condition else []},
            }
        if status is not None:
            pod: dict[str, Any] = {"kind": "Pod", "apiVersion": "v1", "spec": job["spec"]["template"]["spec"]}
            pod["metadata"] = {**job["spec"]["template"]["metadata"], "name": f"{one.name}-x"}
            pod["status"] = {**status, "startTime": "2026-11-18T08:00:00Z"}
            if "state" in status:
                pod["status"]["containerStatuses"] = [{"name": "worker", "state": status["state"]}]
            kubernetes_api.objects["pods"][f"{one.name}-x"] = pod
    known = Allocation(id="abcdef", pool="gpu", backend_id="stoker-gpu-abcdef")
    seen = {one.id: one for one in launcher().look(SMALL, fleet=FLEET, known=[known])}
    assert seen.pop("abcdef").cause is AllocationCause.CANCELLED_THERE
    shown = {id: f"{one.state} {one.cause or '-'} {one.reason}" for id, one in seen.items()}
    assert shown == {id: text for id, (_, _, text) in SHOWN.items()}
    # The limit counts from the pod's start.
    eight = datetime(2026, 11, 18, 8, tzinfo=UTC).timestamp()
    assert seen["000002"].ends_s == eight + SMALL.wall_s
