"""Workers as actors of a Ray cluster without a dashboard.

The launcher does not import Ray. This module is also a program (`python -m stoker.launch.ray_actors VERB ADDRESS`) that
does, in a process of its own: it starts and asks detached actors, each with the name of its allocation in a namespace
of the fleet. A name exists once, so a request that is repeated starts nothing twice.

An actor gets its ticket as an argument, which the cluster stores: whoever may run code there can read it until the
worker has used it. The worker ends with its actor, however that ends.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.core.device import MIB
from stoker.core.errors import LaunchDoubtful, LaunchRefused, NoBackend, StokerError
from stoker.core.pool import LABEL, Allocation, AllocationCause, AllocationState, Pool
from stoker.core.text import one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.host.command_runner import ProbeFailure, ProbeOutput
from stoker.host.install import pip_install
from stoker.launch.commands import HostCommands
from stoker.launch.launchers import (
    NEXT,
    AllocationStatus,
    Rendered,
    fill,
    not_checked,
    ticket_hole,
    with_lost,
    worker_command,
)

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 - its name
RAY_PYTHON = "python3"
LOG_BYTES = 4096
_ACTOR_LIMIT_S = 90.0
"""To import Ray and to connect to a cluster takes seconds."""
_SHOWN_BYTES = 1 << 14
TOKEN_HINT = f"set {TOKEN_VARIABLE}, or write the cluster's token to ~/.ray/auth_token"
# By the exit status of the entrypoint; a signal is negative.
EXIT_CAUSES = {
    **dict.fromkeys((0, 75), AllocationCause.FINISHED),
    **dict.fromkeys((143, -15), AllocationCause.PREEMPTED),
}


class RayActors:
    """Starts workers as detached actors of a Ray cluster without a dashboard, by a program that imports Ray."""

    def __init__(self, commands: HostCommands, token: Callable[[], str], *, python: str) -> None:
        """`python` has Ray, in the version of the cluster."""
        self._commands = commands
        self._token = token
        self._python = python

    def render(self, pool: Pool, allocations: Sequence[Allocation], *, fleet: str) -> Rendered:
        bodies = [json.dumps(_actor_body(pool, one, fleet), indent=2) for one in allocations]
        ids = tuple(one.id for one in allocations)
        return Rendered(argv=self._argv("submit", pool), stdin=NEXT.join(bodies) + "\n", ids=ids)

    def submit(self, rendered: Rendered, tickets: Mapping[str, str]) -> Mapping[str, str]:
        bodies = fill(rendered.stdin, {id: json.dumps(text)[1:-1] for id, text in tickets.items()})
        names: list[str] = self._ask(rendered.argv, bodies, is_submit=True)
        return dict(zip(rendered.ids, names, strict=True))

    def look(self, pool: Pool, *, fleet: str, known: Sequence[Allocation] = ()) -> tuple[AllocationStatus, ...]:
        shown: dict[str, dict[str, Any]] = self._read(pool, "look", {"namespace": _namespace(fleet)})
        found = []
        for name, status in shown.items():
            id = name.rpartition("-")[2]
            if name == Allocation(id=id, pool=pool.name).name:
                found.append(_actor_status(id, name, status, pool))
        return with_lost(found, known, "actor not found", AllocationCause.PREEMPTED)

    def cancel(self, pool: Pool, backend_ids: Sequence[str]) -> None:
        self._read(pool, "cancel", {"names": list(backend_ids), "margin_s": pool.end_margin_s})

    def log(self, pool: Pool, allocation: Allocation) -> str:
        logs: list[str] = self._read(pool, "log", {"names": [allocation.name]})
        return "".join(logs)[-LOG_BYTES:]

    def clean(self, pool: Pool, allocations: Sequence[Allocation]) -> None:
        self._read(pool, "clean", {"names": [one.name for one in allocations]})

    def check(self, pool: Pool, *, url: str = "") -> tuple[Check, ...]:
        try:
            found: dict[str, Any] = self._read(pool, "check", {})
        except StokerError as error:
            return (Check("reached", CheckStatus.BAD, error.message, error.hint),)
        python = not_checked(f"{pool.python or RAY_PYTHON} on the cluster's nodes", "an actor", url)
        resources = ", ".join(f"{name} {number:g}" for name, number in sorted(found["resources"].items()))
        return (
            Check("reached", CheckStatus.OK, f"{address_of(pool)}: Ray {found['version']}, without a dashboard"),
            Check("limits", CheckStatus.OK, f"in all {resources}"),
            python,
        )

    def _argv(self, verb: str, pool: Pool) -> tuple[str, ...]:
        return (self._python, "-m", "stoker.launch.ray_actors", verb, address_of(pool))

    def _read(self, pool: Pool, verb: str, body: Mapping[str, Any]) -> Any:
        return self._ask(self._argv(verb, pool), json.dumps(body) + "\n")

    def _ask(self, argv: Sequence[str], text: str, *, is_submit: bool = False) -> Any:
        """Run the program; return its answer. It gets the token in the first line of its input."""
        reply = self._commands.run("", argv, stdin=f"{self._token()}\n{text}", limit_s=_ACTOR_LIMIT_S)
        lines = reply.out.strip().splitlines() if isinstance(reply, ProbeOutput) else []
        try:
            answer = json.loads(lines[-1])
        except (IndexError, ValueError):
            why = reply.why if isinstance(reply, ProbeFailure) else words_of(reply.err.encode())
            if is_submit:
                raise LaunchDoubtful(f"Ray: {why}") from None
            raise NoBackend(f"Ray: {why}", hint="is the cluster up? ray status") from None
        if "answer" in answer:
            return answer["answer"]
        if answer["error"] == "missing":
            raise NoBackend("Ray is not installed here", hint=pip_install("stoker[ray]"))
        if answer["error"] == "refused":
            raise LaunchRefused(f"Ray: {answer['text']}", hint="stoker pools check")
        raise NoBackend(f"Ray: {answer['text']}", hint=f"is {argv[-1]} the cluster's address? {TOKEN_HINT}")


def _namespace(fleet: str) -> str:
    return f"{LABEL}-{fleet}"


def _actor_body(pool: Pool, allocation: Allocation, fleet: str) -> dict[str, Any]:
    command = worker_command(pool, '"$PWD/ticket"', python=RAY_PYTHON)
    return {
        "name": allocation.name,
        "namespace": _namespace(fleet),
        "ticket": ticket_hole(allocation),
        "setup": "\n".join(pool.setup) or ":",
        "command": command,
        "margin_s": math.ceil(pool.end_margin_s),
        "resources": resources_of(pool),
    }


def _actor_status(id: str, name: str, status: Mapping[str, Any], pool: Pool) -> AllocationStatus:
    """Return what an actor reported of its worker; empty: it has not started; with `lost`: it died."""
    if "lost" in status:
        reason, cause = one_line(f"{status['lost']}", 300), AllocationCause.PREEMPTED
        return AllocationStatus(id=id, backend_id=name, state=AllocationState.ENDED, reason=reason, cause=cause)
    if not status:
        return AllocationStatus(id=id, backend_id=name, state=AllocationState.WAITING, reason="waits for resources")
    code = status["code"]
    if code is None:
        ends_s = status["started_s"] + pool.wall_s
        return AllocationStatus(id=id, backend_id=name, state=AllocationState.STARTED, ends_s=ends_s)
    cause = EXIT_CAUSES.get(code, AllocationCause.FAILED)
    return AllocationStatus(
        id=id,
        backend_id=name,
        state=AllocationState.ENDED,
        reason=f"exit {code}",
        cause=AllocationCause.CANCELLED_THERE if status["is_stopped"] else cause,
    )


def resources_of(pool: Pool) -> dict[str, Any]:
    """Return what an actor takes of its node, as options of Ray."""
    found: dict[str, Any] = {"num_cpus": pool.each.cpu_cores, "num_gpus": len(pool.each.gpus)}
    if pool.each.ram_mb is not None:
        found["memory"] = pool.each.ram_mb * MIB
    if "resources" in pool.options:
        # A name may contain colons, and no equals sign.
        pairs = (one.partition("=") for one in pool.options["resources"].split(","))
        found["resources"] = {name: float(number) for name, _, number in pairs}
    return found


def address_of(pool: Pool) -> str:
    """Return the address of a pool's cluster."""
    return pool.options["address"].rstrip("/")


def words_of(data: bytes) -> str:
    """Return the text of an answer; of a traceback its last line with words."""
    lines = data[-_SHOWN_BYTES:].decode("utf-8", "replace").splitlines()
    spoken = [line for line in lines if any(character.isalpha() for character in line)]
    return one_line(spoken[-1], 400) if spoken else "no text"


# The program that imports Ray. What runs on the cluster's nodes is sent there as it is: Stoker need not be beside Ray.

_LINGER_S = 300.0
"""An actor whose worker has ended leaves after this time, if no launcher removed it before."""
_ANSWER_S = 5.0
# Leads the session of a worker. Its input ends with its actor, however that ends: then the worker ends too.
_LEADER = """\
exec 3<&0 < /dev/null
trap : TERM
( trap '' TERM; cat <&3 > /dev/null; kill -s TERM -- "-$$"; sleep "$1"; rm -rf "$PWD"; kill -s KILL -- "-$$" ) &
worker() {
SETUP
exec COMMAND
}
worker 3<&- &
child=$!
while :; do
  wait "$child"
  code=$?
  kill -0 "$child" 2>/dev/null || exit "$code"
done
"""


class StokerWorker:
    """An actor with one worker. It uses the standard library alone, and is sent to the cluster by value."""

    def __init__(self, body: dict[str, Any], leader: str, linger_s: float) -> None:
        self._folder = tempfile.mkdtemp(prefix="stoker-ray-")
        with open(os.open(f"{self._folder}/ticket", os.O_WRONLY | os.O_CREAT, 0o600), "w") as ticket:
            ticket.write(body["ticket"])
        script = leader.replace("COMMAND", body["command"], 1).replace("SETUP", body["setup"], 1)
        self._status: dict[str, Any] = {"started_s": time.time(), "code": None, "is_stopped": False}
        with open(f"{self._folder}/log", "wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, "bash", str(body["margin_s"])],
                cwd=self._folder,
                # The cluster's own settings and its token are not for jobs.
                env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._wait, args=(linger_s,), daemon=True).start()

    def _wait(self, linger_s: float) -> None:
        # Its number is its group's until it is reaped.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._signal(signal.SIGKILL)
        self._status |= {"ended_s": time.time(), "code": self._process.wait()}
        time.sleep(linger_s)
        self.close()
        os._exit(0)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def status(self) -> dict[str, Any]:
        """Return since when the worker runs, and how it ended."""
        return self._status

    def stop(self, margin_s: float) -> None:
        """Send SIGTERM to the worker, and SIGKILL after a margin."""
        if self._status["code"] is None:
            self._status["is_stopped"] = True
            self._signal(signal.SIGTERM)
            kill = threading.Timer(margin_s, self._signal, (signal.SIGKILL,))
            kill.daemon = True
            kill.start()

    def log(self) -> str:
        """Return the end of what the worker printed."""
        with open(f"{self._folder}/log", "rb") as log:
            return log.read()[-LOG_BYTES:].decode(errors="replace")

    def close(self) -> bool:
        """Remove the worker's folder if it has ended; return False if it has not."""
        if self._status["code"] is None:
            return False
        shutil.rmtree(self._folder, ignore_errors=True)
        return True


def _answer(ray: Any, verb: str, text: str) -> Any:
    """Do what the launcher asks of the cluster."""
    if verb == "check":
        return {"version": ray.__version__, "resources": ray.cluster_resources()}
    if verb == "submit":
        kind = ray.remote(StokerWorker)
        bodies = [json.loads(one) for one in text.rstrip("\n").split(NEXT)]
        for body in bodies:
            names = {"name": body["name"], "namespace": body["namespace"], "get_if_exists": True}
            kept = {"lifetime": "detached", "max_restarts": 0, "max_concurrency": 4}
            kind.options(**names, **kept, **body["resources"]).remote(body, _LEADER, _LINGER_S)
        return [body["name"] for body in bodies]
    request = json.loads(text)
    # All actors of a cluster: a launcher has the rights of its user there.
    listed = ray.util.list_named_actors(all_namespaces=True)
    if verb == "look":
        listed = [one for one in listed if one["namespace"] == request["namespace"]]
    else:
        is_ours = f"{LABEL}-"
        listed = [one for one in listed if one["name"] in request["names"] and one["namespace"].startswith(is_ours)]
    actors = {}
    for one in listed:
        # It may have ended since.
        with suppress(ValueError):
            actors[one["name"]] = ray.get_actor(one["name"], namespace=one["namespace"])
    calls = {
        "look": lambda actor: actor.status.remote(),
        "cancel": lambda actor: actor.stop.remote(request["margin_s"]),
        "log": lambda actor: actor.log.remote(),
        "clean": lambda actor: actor.close.remote(),
    }
    answers = _answers(ray, {name: calls[verb](actor) for name, actor in actors.items()})
    for name, actor in actors.items():
        # One that has not started answers nothing.
        is_over = answers[name] is True if verb == "clean" else verb == "cancel" and answers[name] == {}
        if is_over:
            ray.kill(actor)
    if verb == "log":
        return [one for one in answers.values() if isinstance(one, str)]
    return answers if verb == "look" else None


def _answers(ray: Any, calls: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of each actor: empty if it has not started, `lost` if it died."""
    ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=_ANSWER_S) if calls else ([], [])
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            found[name] = ray.get(call) if call in ready else {}
        except ray.exceptions.RayError as error:
            found[name] = {"lost": words_of(str(error).encode())}
    return found


def main(argv: Sequence[str]) -> int:
    """Run one verb at a cluster: `VERB ADDRESS`, the token and the request on standard input, the answer in JSON."""
    verb, address = argv
    token, _, text = sys.stdin.read().partition("\n")
    if token:
        os.environ.update({"RAY_AUTH_MODE": "token", TOKEN_VARIABLE: token})
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray  # noqa: PLC0415 - needed by this program only
    except ImportError:
        sys.stdout.write(json.dumps({"error": "missing"}) + "\n")
        return 1
    try:
        ray.init(address=address, namespace=LABEL, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # noqa: BLE001 - Ray's errors have several roots
        sys.stdout.write(json.dumps({"error": "unreachable", "text": words_of(str(error).encode())}) + "\n")
        return 1
    try:
        found: dict[str, Any] = {"answer": _answer(ray, verb, text)}
    except ValueError as error:
        found = {"error": "refused", "text": words_of(str(error).encode())}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
