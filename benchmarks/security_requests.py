"""The security cases that are requests to a coordinator: floods, others' jobs, bodies, tokens, and the small ones."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fleet import Coordinator
from security_scene import (
    NotAsExpected,
    Scene,
    Tried,
    ask_as_owner,
    asked,
    attacking,
    request,
    said_by,
    socket_of,
    state_of,
    target_of,
    token_for,
    wait_until,
)

from stoker.core.capability import Capability
from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.core.job import job_id
from stoker.protocol.enrolment_messages import read_code
from stoker.protocol.tree_messages import frame
from stoker.store.archives.archive_members import listing_bytes
from tests.servers import attacker

TLS = "0.0.0.0:0"
MIB = 1 << 20
LARGEST_BYTES = 256 * MIB
MOST_WAIT_S = 10.0
"""How long an attack may make others wait."""
FLOOR_MIB = 2048
"""What stays free of the coordinator's disk."""


def order(name: str, *argv: str, **more: Any) -> dict[str, Any]:
    """Return an order of a program, as whoever submits it sends it."""
    args: dict[str, Any] = {"argv": list(argv), "params": {"name": name}, **more.pop("args", {})}
    identity = more.pop("identity", args)
    wanted = job_id(recipe="command", schema_version=1, args=identity)
    needs = {"ram_bytes": 128 * MIB}
    fields = {"id": wanted, "name": name, "recipe": "command", "args": args, "identity": identity}
    return {**fields, "requirements": needs, **more}


def submission(*orders: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"jobs": list(orders), **more}


def uploads_of(files: dict[str, bytes], token: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the digest of a tree, and the requests that bring it to a coordinator."""
    entries = tuple(TreeEntry(path, len(data), digest_bytes(data)) for path, data in sorted(files.items()))
    tree = Tree(entries)
    pack = b"".join(frame(digest_bytes(data), data) for data in files.values())
    listing = listing_bytes(tree)
    return tree.digest(), [
        request("POST", "/v1/contents", pack, token=token),
        request("PUT", f"/v1/trees/{tree.digest()}", listing, token=token),
    ]


def expected(answers: Iterable[tuple[int, str]], status: int = 200) -> None:
    """Raise `NotAsExpected` where something was answered otherwise."""
    for code, text in answers:
        if code != status:
            raise NotAsExpected(f"{status} was expected, not {code}: {text[:500]}")


# 2


def floods(scene: Scene) -> Iterator[Tried]:
    """Send every part of a request without end, or byte by byte, over TCP, TLS and the Unix socket."""
    with scene.serving() as coordinator:
        (barred,) = asked(socket_of(coordinator), [request("GET", "/v1/health")])
        yield Tried(what="the socket of another user", through="" if barred[0] == 0 else f"answered {barred[0]}")
        yield from _flooded(scene, target_of(coordinator), attacker.NOBODY)
        # Only the coordinator's own user gets as far.
        yield from _flooded(scene, socket_of(coordinator), os.geteuid())
    if not scene.quick:
        with scene.serving(name="tls", listen=TLS) as coordinator:
            yield from _flooded(scene, target_of(coordinator), attacker.NOBODY)


def _flooded(scene: Scene, target: dict[str, Any], user: int) -> Iterator[Tried]:
    seconds, most_bytes = (0.0, 16 * MIB) if scene.quick else (0.5, 64 * MIB)
    with ExitStack() as held:
        dripping = None
        if not scene.quick:
            host = attacker.host_of(target).encode()
            heads = [(head % host).decode() for head in attacker.DRIPS.values() for _ in range(20)]
            asked_for = {"target": target, "heads": heads, "seconds": 25.0}
            dripping = held.enter_context(attacking("drip", user=user, **asked_for))
            said_by(dripping)
        # Whole requests are judged by memory and times alone, which a smoke run does not judge.
        sorts = [sort for sort in attacker.FLOODS if not (scene.quick and sort in attacker.WHOLE)]
        asked_for = {"target": target, "seconds": seconds, "most_bytes": most_bytes, "sorts": sorts}
        # A coordinator takes a second to close a connection that is cut: in a full run each sort is judged alone.
        asked_for["at_once"] = scene.quick
        flooding = held.enter_context(attacking("flood", user=user, **asked_for))
        for sort in sorts:
            taken_bytes = said_by(flooding)["longest_bytes"]
            is_taken = taken_bytes >= most_bytes and sort not in attacker.WHOLE
            through = f"all of {most_bytes // MIB} MiB were taken" if is_taken else ""
            yield Tried(what=f"{sort}, over {target['kind']}", through=through)
        answers = said_by(dripping) if dripping is not None else []
    for number, sort in enumerate(attacker.DRIPS) if answers else ():
        open_count = answers[number * 20 : number * 20 + 20].count(None)
        through = f"{open_count} of 20 are open after 25 s" if open_count else ""
        yield Tried(what=f"{sort} byte by byte, over {target['kind']}", through=through)


# 5


def anothers_job(scene: Scene) -> Iterator[Tried]:
    """Rewrite, cancel, move and forge a pending job of another submitter."""
    with scene.serving() as coordinator:
        ann, ben = token_for(coordinator, "ann"), token_for(coordinator, "ben")
        target, job = target_of(coordinator), order("train", "true", folder="/")
        expected(asked(target, [request("POST", "/v1/jobs", submission(job, submitter="ann@desk"), token=ann)]))
        evil = {**job, "args": {**job["args"], "argv": ["touch", "/evil"]}}
        forged = {**evil, "identity": evil["args"]}
        tries: dict[str, tuple[str, Any]] = {
            "the same id, other arguments": ("/v1/jobs", submission(evil)),
            "the same id, other arguments and identity": ("/v1/jobs", submission(forged)),
            "an id of zeros": ("/v1/jobs", submission({**job, "id": "0" * 64})),
            "another folder": ("/v1/jobs", submission({**job, "folder": "/home"})),
            "other code": ("/v1/jobs", submission({**job, "code_tree": "e" * 64})),
            "a secret": ("/v1/jobs", submission({**job, "secrets": ["API_KEY"]})),
            "a priority": ("/v1/jobs", submission({**job, "priority": 9})),
            "another machine": ("/v1/jobs", submission({**job, "allowed_hosts": ["bens"]})),
            "an interpreter": (
                "/v1/jobs",
                submission({**job, "environment": [{"kind": "python", "path": "/home/ben/python"}]}),
            ),
            "in the other's name": ("/v1/jobs", submission({**job, "priority": 9}, submitter="ann (ann@desk)")),
            "run again for changed code": (
                "/v1/jobs",
                submission({**job, "code": {"a": "b"}}, on_changed_code="rerun"),
            ),
            "cancel": ("/v1/jobs/train/cancel", {}),
            "requeue": ("/v1/jobs/train/requeue", {}),
            "priority": ("/v1/jobs/train/priority", {"priority": 5}),
            "pin": ("/v1/jobs/train/pin", {"machine": "bens"}),
            "cancel by id": ("/v1/jobs/cancel", {"jobs": [job["id"]]}),
            "requeue by id": ("/v1/jobs/requeue", {"jobs": [job["id"]]}),
            "priority by id": ("/v1/jobs/priority", {"jobs": [job["id"]], "priority": 5}),
        }
        before = _story(coordinator)
        answers = asked(target, [request("POST", path, body, token=ben) for path, body in tries.values()])
        for what, (status, text) in zip(tries, answers, strict=True):
            # Whoever submits the same job follows it: that is no change.
            is_followed = status == 200 and '"outcome":"known"' in text
            is_refused = 400 <= status < 500 or is_followed
            yield Tried(what=what, through="" if is_refused else f"answered {status}: {text[:200]}")
        through = "" if _story(coordinator) == before else "the job is another now"
        yield Tried(what="all of them together", through=through)
        expected(asked(target, [request("POST", "/v1/jobs/train/priority", {"priority": 5}, token=ann)]))
        authors = [event.get("by") for event in _story(coordinator)["events"]]
        expects = ["ann (ann@desk)", "ann"]
        yield Tried(what="changes without an author", through="" if authors == expects else f"by {authors}")


def _story(coordinator: Coordinator) -> dict[str, Any]:
    """Return all that is known of the job, and who changed it."""
    story = ask_as_owner(coordinator, "GET", "/v1/jobs/train")
    events = ask_as_owner(coordinator, "GET", "/v1/jobs/train/events")["events"]
    return {"story": story, "events": events}


# 6


def slow_bodies(scene: Scene) -> Iterator[Tried]:
    """Hold bodies open byte by byte, with the role submit and without any right, while others upload."""
    with scene.serving() as coordinator:
        ann, ben = token_for(coordinator, "ann"), token_for(coordinator, "ben")
        target = target_of(coordinator)
        shown = f"host: {attacker.host_of(target)}\r\nx-operator-token: {ben}\r\n"
        sorts = {
            "POST /v1/contents": 8 * MIB,
            f"PUT /v1/trees/{'a' * 64}": MIB,
            "POST /v1/jobs": 200 * MIB,
            "POST /v1/contents/missing": 2 * MIB,
        }
        heads = [f"{sort} HTTP/1.1\r\n{shown}content-length: {size}\r\n\r\n" for sort, size in sorts.items()]
        seconds = 30.0
        with attacking("drip", target=target, heads=heads * 16, seconds=seconds) as process:
            said_by(process)
            yield from _others_go_on(scene, coordinator, ann)
            if scene.quick and process.stdin is not None:
                # How long they would have been borne is asked in a full run.
                process.stdin.write("enough\n")
                process.stdin.flush()
            answers = said_by(process)
        for number, sort in enumerate(() if scene.quick else sorts):
            open_count = answers[number :: len(sorts)].count(None)
            through = f"{open_count} of 16 are open after {seconds:.0f} s" if open_count else ""
            yield Tried(what=f"{sort.partition('/a')[0]}, byte by byte", through=through)
        yield from _without_lease(target, "without any right")
    if not scene.quick:
        with scene.serving(name="tls", listen=TLS) as coordinator:
            target = {**target_of(coordinator), "certificate": _certificate(scene, coordinator, "idle")}
            yield from _without_lease(target, "as a machine without a lease")


def _others_go_on(scene: Scene, coordinator: Coordinator, token: str) -> Iterator[Tried]:
    target = target_of(coordinator)
    _, uploads = uploads_of({"data.bin": os.urandom(100_000)}, token)
    job = order("meanwhile", "true", folder="/")
    begun_s = time.perf_counter()
    answers = asked(target, [*uploads, request("POST", "/v1/jobs", submission(job), token=token)])
    took_s = time.perf_counter() - begun_s
    wrong = [f"{status}: {text[:100]}" for status, text in answers if status != 200]
    through = f"others got {wrong}" if wrong else f"others waited {took_s:.1f} s" if took_s > MOST_WAIT_S else ""
    yield Tried(what="others' trees and jobs meanwhile", through=through)
    if not scene.quick:
        with scene.started(coordinator.home, "work", "--name", "honest", "--json"):
            try:
                wait_until(lambda: state_of(coordinator, "meanwhile") == "completed", "a result meanwhile", 20.0)
                through = ""
            except NotAsExpected as error:
                through = str(error)
        yield Tried(what="the recording of results meanwhile", through=through)


def _without_lease(target: dict[str, Any], how: str) -> Iterator[Tried]:
    """Begin bodies of workers: they are refused by their head."""
    attempt = f"/v1/attempts/{'a' * 64}/files/logs/a.log?offset=0&attempt=1&epoch=1&generation=1"
    paths = (f"PUT {attempt}", f"PATCH /v1/uploads/{'a' * 32}?offset=0", f"PUT /v1/model/{'a' * 64}")
    shown = f"host: {attacker.host_of(target)}\r\ncontent-length: {8 * MIB}\r\n\r\n"
    heads = [f"{path} HTTP/1.1\r\n{shown}" for path in paths]
    with attacking("drip", target=target, heads=heads * 16, seconds=5.0) as process:
        said_by(process)
        answers = said_by(process)
    for number, path in enumerate(paths):
        got = {str(one) for one in answers[number :: len(paths)]}
        through = "" if all(one.startswith("HTTP/1.1 4") for one in got) else f"answered {got}"
        yield Tried(what=f"{path.partition('/a' * 2)[0][:20]} {how}", through=through)


def _certificate(scene: Scene, coordinator: Coordinator, name: str) -> str:
    """Have a machine join; return a copy of its certificate and key that the attacker may read."""
    home = scene.place(f"machine-{name}", mode=0o700)
    joined = scene.stoker(home, "join", invited(scene, coordinator), "--name", name, "--json")
    if joined.returncode:
        raise NotAsExpected(joined.stdout + joined.stderr)
    texts = {path: path.read_text() for path in (home / "state").rglob("*.pem")}
    certificate = [text for text in texts.values() if "CERTIFICATE" in text and "PRIVATE KEY" in text]
    if not certificate:
        certificate = [
            *(text for path, text in texts.items() if "CERTIFICATE" in text and "ca" not in path.stem),
            *(text for text in texts.values() if "PRIVATE KEY" in text),
        ]
    copy = scene.place("stolen", user=attacker.NOBODY) / f"{name}.pem"
    copy.write_text("".join(certificate))
    return str(copy)


def invited(scene: Scene, coordinator: Coordinator, *words: str) -> str:
    done = scene.stoker(coordinator.home, "machines", "invite", "--json", *words)
    if done.returncode:
        raise NotAsExpected(done.stderr)
    return f"{json.loads(done.stdout)['code']}@127.0.0.1:{target_of(coordinator)['port']}"


# 7


def large_submissions(scene: Scene) -> Iterator[Tried]:
    """Send many submissions at once, as large as one may be."""
    size_bytes, count = (2 * MIB, 2) if scene.quick else (LARGEST_BYTES - 1000, 6)
    with scene.serving() as coordinator:
        ann = token_for(coordinator, "ann")
        tokens = [token_for(coordinator, name) for name in ("ben", "ced")]
        target = target_of(coordinator)
        for number, shape in enumerate(attacker.BODIES):
            # All shapes at once would only wait for each other.
            many = count if number == 0 or scene.quick else 2
            order_ = {"target": target, "tokens": tokens, "shape": shape, "size_bytes": size_bytes, "count": many}
            with attacking("submit", **order_) as process:
                time.sleep(0.2)
                job = order(f"small-{number}", "true", folder="/")
                begun_s = time.perf_counter()
                expected(asked(target, [request("POST", "/v1/jobs", submission(job), token=ann)]))
                took_s = time.perf_counter() - begun_s
                answers = said_by(process)
            wrong = sorted({one for one in answers if one.startswith("HTTP/1.1 5") and not one.endswith("503")})
            waited = f"a small one waited {took_s:.1f} s" if took_s > MOST_WAIT_S else ""
            through = f"answered {wrong}" if wrong else waited
            yield Tried(what=f"{many} at once: {shape}", through=through)


# 8


def wrong_tokens(scene: Scene) -> Iterator[Tried]:
    """Guess tokens and codes, from the address that right ones come from."""
    with scene.serving() as coordinator:
        right = token_for(coordinator, "reader", "read")
        count = 60 if scene.quick else 400
        wrong = [f"{number:x}" * 8 for number in range(1, count)] + [right[:-1], right + "x", right.swapcase(), " "]
        tries = [request("GET", "/v1/jobs", token=one) for one in wrong]
        between = max(1, len(tries) // 10)
        mixed = [
            one
            for number, tried in enumerate(tries)
            for one in (
                (tried, request("GET", "/v1/jobs", token=right)) if number % between == between - 1 else (tried,)
            )
        ]
        answers = asked(target_of(coordinator), mixed)
        guessed = [status for one, (status, _) in zip(mixed, answers, strict=True) if one["token"] != right]
        shown = [status for one, (status, _) in zip(mixed, answers, strict=True) if one["token"] == right]
        opened = sum(status == 200 for status in guessed)
        yield Tried(what=f"{len(guessed)} wrong tokens", through=f"{opened} opened" if opened else "")
        yield Tried(what="guesses without end", through="" if 429 in guessed else "no limit was met")
        locked = sum(status != 200 for status in shown)
        yield Tried(what=f"{len(shown)} right tokens between", through=f"{locked} were locked out" if locked else "")
    if not scene.quick:
        yield from _wrong_proofs(scene)


def _wrong_proofs(scene: Scene) -> Iterator[Tried]:
    with scene.serving(name="tls", listen=TLS) as coordinator:
        word = invited(scene, coordinator)
        code, nonce = read_code(word.partition("@")[0]), "0" * 32
        target = target_of(coordinator)
        ((_, begun),) = asked(target, [request("POST", "/v1/join/begin", {"id": code.id, "nonce": nonce})])
        words = {"id": code.id, "nonce": nonce, "server_nonce": json.loads(begun)["nonce"], "name": "thief"}
        proofs = [request("POST", "/v1/join/finish", {**words, "proof": f"{number:064x}"}) for number in range(100)]
        guessed = [status for status, _ in asked(target, proofs)]
        opened = guessed.count(200)
        yield Tried(what=f"{len(guessed)} wrong proofs", through=f"{opened} joined" if opened else "")
        yield Tried(what="proofs without end", through="" if 429 in guessed else "no limit was met")
        home = scene.place("joiner", mode=0o700)
        joined = scene.stoker(home, "join", word, "--name", "joiner", "--json")
        through = f"locked out: {joined.stderr[:200]}" if joined.returncode else ""
        yield Tried(what="the right code after them", through=through)


# 9


def small_ones(scene: Scene) -> Iterator[Tried]:
    """Try the five small ones: tokens without end, what `begin` tells, the disk's floor, models, crash reports."""
    with scene.serving("--system-a") as coordinator:
        made = scene.stoker(coordinator.home, "admin", "tokens", "make", "ci", "--role", "read", "--json")
        views = ask_as_owner(coordinator, "GET", "/v1/tokens")["tokens"]
        ends_s = [view["expires_s"] for view in views if view["name"] == "ci"]
        lasts = [round((end_s - time.time()) / 86400) if end_s else None for end_s in ends_s]
        is_year = made.returncode == 0 and lasts == [365]
        yield Tried(what="a token's end", through="" if is_year else f"days: {lasts} {made.stderr[:200]}")
        yield from _models(coordinator)
    yield from _crash_reports(scene)
    if not scene.quick:
        yield from _begins(scene)
        yield from _full_disk(scene)


def _models(coordinator: Coordinator) -> Iterator[Tried]:
    """Hand in models for a job that somebody else has claimed, and for one that nobody has."""
    target = target_of(coordinator)
    token, data = token_for(coordinator, "ann"), b"model"
    sha = digest_bytes(data)
    orders = [order(name, "true", name, folder="/") for name in ("held", "free")]
    expected(asked(target, [request("POST", "/v1/jobs", submission(*orders), token=token)]))
    grant = _granted(coordinator)
    for number, one in enumerate(orders):
        what = "of another's claim" if one["id"] == grant["job"] else "without a claim"
        paths = (f"/v1/model/{one['id']}", f"/v1/model/{one['id']}?sha256={sha}")
        for status, text in asked(target, [request("PUT", path, data) for path in paths]):
            refused = 400 <= status < 500
            yield Tried(what=f"PUT /v1/model {what}", through="" if refused else f"{number} {status}: {text[:200]}")


def _granted(coordinator: Coordinator) -> dict[str, Any]:
    """Claim a job as a worker of the coordinator's own user, by hand."""
    found = Capability(
        hostname="lab",
        os="linux",
        arch="x86_64",
        cpu_cores=16,
        ram_total_bytes=64 << 30,
        ram_available_bytes=64 << 30,
    )
    who = {"worker": "lab", "incarnation": "start-lab"}
    hello = {**who, "capability": found.to_dict(), "capability_digest": "lab", "slots": 1}
    ask_as_owner(coordinator, "POST", "/v1/hello", hello)
    grants = ask_as_owner(coordinator, "POST", "/v1/claims", {**who, "request_id": "lab-claim-1"})["grants"]
    grant: dict[str, Any] = grants[0]
    return grant


def _begins(scene: Scene) -> Iterator[Tried]:
    """Ask what invitations of all sorts are for, as a stranger, and one that does not exist."""
    with scene.serving(name="tls", listen=TLS) as coordinator:
        sorts = {
            "of a machine": ("--name", "hidden-name"),
            "of any machine": (),
            "of an admin": ("--operator", "--role", "admin", "--name", "hidden-name"),
        }
        ids = {
            sort: read_code(invited(scene, coordinator, *words).partition("@")[0]).id for sort, words in sorts.items()
        }
        ids["of nobody"] = ids["of a machine"][::-1]
        tries = [request("POST", "/v1/join/begin", {"id": one, "nonce": "0" * 32}) for one in ids.values()]
        answers = asked(target_of(coordinator), tries)
        shapes = [
            (status, {name: len(str(value)) for name, value in json.loads(text).items() if name != "server_s"})
            for status, text in answers
        ]
        for sort, (_, text), shape in zip(ids, answers, shapes, strict=True):
            tells = [word for word in ("hidden", "admin", "operate") if word in text]
            through = f"it tells {tells}" if tells else "" if shape == shapes[-1] else f"unlike others: {shape}"
            yield Tried(what=f"/v1/join/begin {sort}", through=through)


@contextmanager
def _small_disk(folder: Path, size_mib: int) -> Iterator[bool]:
    """Mount a disk of a size at a folder, if that is permitted."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=700", "tmpfs", str(folder)]
    is_mounted = subprocess.run(words, check=False, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _full_disk(scene: Scene) -> Iterator[Tried]:
    """Upload, in each way that there is, more than the disk has above its floor."""
    with _small_disk(scene.place("small", mode=0o700), FLOOR_MIB + 12) as is_mounted:
        if not is_mounted:
            scene.missing["uploads beyond the disk's floor"] = "a small disk can't be mounted here"
            return
        with scene.serving("--system-a", name="small") as coordinator:
            ann, target = token_for(coordinator, "ann"), target_of(coordinator)
            job = order("held", "true", folder="/")
            expected(asked(target, [request("POST", "/v1/jobs", submission(job), token=ann)]))
            grant = _granted(coordinator)
            lease = "&".join(f"{name}={grant[name]}" for name in ("attempt", "epoch", "generation"))
            piece = os.urandom(4 * MIB)
            file = f"/v1/attempts/{grant['job']}/files/logs/a.log?{lease}"
            offsets = range(0, 16 * MIB, 4 * MIB)
            ways: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
                "files of an attempt": (
                    socket_of(coordinator),
                    [request("PUT", f"{file}&offset={offset}", piece) for offset in offsets],
                ),
                "an upload of a result": (
                    socket_of(coordinator),
                    [request("POST", "/v1/uploads", {"digest": "a" * 64, "size_bytes": 64 * MIB})],
                ),
                "an upload of a person": (
                    target,
                    [request("POST", "/v1/uploads", {"digest": "b" * 64, "size_bytes": 64 * MIB}, token=ann)],
                ),
                "contents": (
                    target,
                    [
                        request("POST", "/v1/contents", frame(digest_bytes(data), data), token=ann)
                        for data in (os.urandom(MIB) for _ in range(8))
                    ],
                ),
            }
            for what, (where, requests) in ways.items():
                user = os.geteuid() if where["kind"] == "unix" else attacker.NOBODY
                answers = asked(where, requests, user=user)
                is_refused = answers[-1][0] == 507
                through = "" if is_refused else f"answered {answers[-1][0]}: {answers[-1][1][:200]}"
                yield Tried(what=f"beyond the disk's floor: {what}", through=through)
            free = os.statvfs(coordinator.home)
            left_mib = free.f_bavail * free.f_frsize // MIB
            # The database has a log of its own.
            yield Tried(what="the floor", through="" if left_mib >= FLOOR_MIB - 8 else f"{left_mib} MiB are left")


_CRASHING = """
import sys
class Planted:
    def find_spec(self, name, *_):
        if name == "stoker.store.local_store":
            raise ZeroDivisionError("planted")
sys.meta_path.insert(0, Planted())
"""
_FORESEEN = """
for s in 0 1 2 3 4 5; do
  ln -s "$VICTIM" "$TMPDIR/crash-$(date -d "+$s seconds" +%Y%m%d-%H%M%S)-$$.txt"
done
exec "$@"
"""


def _crash_reports(scene: Scene) -> Iterator[Tried]:
    """Crash a command that can't write to its home, where names in the temporary folder are foreseen."""
    shared, code = scene.place("shared", mode=0o777, user=attacker.NOBODY), scene.place("planted")
    (code / "sitecustomize.py").write_text(_CRASHING)
    victim = scene.folder / "victim"
    victim.write_text("mine")
    home = scene.folder / "no-home"
    home.write_text("a file")
    settings = {"TMPDIR": str(shared), "VICTIM": str(victim), "PYTHONPATH": str(code)}
    command = [str(scene.peer.program("stoker")), "store", "verify"]
    environment = scene.environment(home, settings)
    done = subprocess.run(
        ["sh", "-c", _FORESEEN, "sh", *command], env=environment, capture_output=True, text=True, check=False
    )
    reports = [path for path in shared.iterdir() if not path.is_symlink()]
    if done.returncode != 70 or not list(shared.iterdir()):
        raise NotAsExpected(f"it did not crash: {done.returncode} {done.stderr[:500]}")
    modes = {path.stat().st_mode & 0o777 for path in reports}
    is_closed = victim.read_text() == "mine" and len(reports) == 1 and modes == {0o600}
    yield Tried(what="a crash report at a foreseen name", through="" if is_closed else f"{reports} {modes}")


CASES: dict[int, tuple[str, Callable[[Scene], Iterator[Tried]]]] = {
    2: ("requests without end", floods),
    5: ("another submitter's job", anothers_job),
    6: ("slow bodies", slow_bodies),
    7: ("large submissions at once", large_submissions),
    8: ("wrong tokens beside right ones", wrong_tokens),
    9: ("the small ones", small_ones),
}
