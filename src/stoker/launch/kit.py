"""Kits: Stoker as it is brought along to machines that do not have it.

A kit is a tree of files by digest: this Stoker as it is installed here, the libraries that a worker needs in the
versions installed here, for the processor, C library and Python of the far side, and uv. uv resolves and unpacks the
libraries on this side, by their hashes; the far side fetches nothing and needs only a Python and a place to write. What
it has of the tree is not sent again. `kit_receiver` is the other end.

A pool without `python` and `via` uses the launcher's own interpreter, and so does a host that shares it. Faults of the
far side are found before anything is sent: `KitRefused`.
"""

from __future__ import annotations

import base64
import gzip
import os
import re
import shlex
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

import stoker
from stoker import __version__
from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes, digest_value
from stoker.core.errors import KitRefused, NoBackend, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import Platform, fits, platform_of, tag_of
from stoker.core.pool import KIT, Pool, PoolBackend, require_valid
from stoker.core.text import format_size, one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.host.command_runner import CommandRunner, ProbeFailure, ProbeOutput
from stoker.host.durable import remove_tree
from stoker.host.install import diagnose, pip_install
from stoker.launch import kit_receiver
from stoker.launch.commands import HostCommands
from stoker.launch.launchers import Log
from stoker.store.trees import walk_tree

_EXTRA = "fleet"
_KEPT_HERE = 4
_RECENT_S = 60.0
_LOOK_LIMIT_S = 120.0
_SEND_LIMIT_S = 900.0
_UV_LIMIT_S = 600.0
_STALE_S = 3600.0
_MOST_TURNS = 3
# Beyond a worker's time limit: Slurm may let a request wait for days.
_SLACK_S = {PoolBackend.SLURM: 7 * 86400.0}
_LEAST_SLACK_S = 3600.0
_GLIBC_MINORS = (17, 28, *range(31, 41))
"""The versions of glibc 2 that uv knows by name."""
_MACHINES = ("x86_64", "aarch64")
_OLDEST_MINOR, _NEWEST_MINOR = 11, 19
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.,:=+@%/-]*")
_FAR_BASE = ".local/state/stoker/kits"
# Of libraries only what a program imports; records of an installation name this machine's paths.
_LEFT_OUT = re.compile(
    r"\.lock|(bin/(?!uv$)|share/|.*\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|uv_\w+\.json)$).*"
)
_COMPILED = re.compile(r"(.*/)?__pycache__/.*")
_TRIAL = "import stoker, cryptography.x509, pydantic_core, yaml, zstandard"
_VERSIONS = "import stoker, sys; print(sys.version.split()[0], stoker.__version__)"
_CONNECT = """\
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
    print("connected")
except OSError as error:
    print(error)
"""
_QUESTION = """\
import platform, sys
flags, base = getattr(sys, "abiflags", "") or "-", getattr(sys, "_base_executable", "") or sys.executable
print(platform.python_version(), sys.implementation.name, flags, base)
sys.exit(0 if sys.version_info >= (3, 11) and sys.implementation.name == "cpython" and flags == "-" else 1)
"""
_WAY_BACK_HINT = "where workers know it by another name: stoker launch watch --url URL; where they can't: --relay HOST"
_SETUP_HINT = "correct setup: a command of it ends the shell"
_PYTHON_HINT = "setup: [module load python/3.12] if there is such a module; or python: one there that has Stoker {}"
_HINTS = {
    "no_space": "free disk space there, or set folder to another path",
    "not_writable": "set folder to a path there in which you may write",
    "not_own": "remove that folder there, or set folder to a path that is yours alone",
    "replaceable": "chmod g-w,o-w that folder there if it is yours, or set folder to a path that is yours alone",
    "failed": "set folder to another path",
    "unusable": f"set python to one there that has Stoker {__version__}",
}


@frozen
class FarSide:
    """What a machine has that workers are to be started on."""

    platform: Platform
    """With the version of the chosen Python."""
    python: str
    base: str
    """The folder of all kits there."""
    is_same: bool = False
    """The launcher's own interpreter and Stoker are there, the same files."""


@frozen
class Kit:
    """One kit, for one platform and interpreter."""

    tree: Tree
    digest: Digest
    sources: Mapping[Digest, str | bytes]
    """Path or content of each file, by digest."""
    executable: str
    """The interpreter there."""


def check_python(reply: ProbeOutput, pool: Pool, python: str) -> Check:
    """Return the check of an interpreter that was to print its version and that of Stoker (`read_versions`)."""
    words = reply.out.split()
    if pool.setup and not words:
        return Check("python", CheckStatus.BAD, _setup_failure(reply), _SETUP_HINT)
    if len(words) != 2 or not words[0][:1].isdigit():
        message = f"{python}: {one_line(reply.out, 200) or 'no output'}"
        return Check("python", CheckStatus.BAD, message, f"set python to one that has Stoker {__version__}")
    if words[1] != __version__:
        message = f"{python}: Stoker {words[1]}, here is {__version__}"
        return Check("python", CheckStatus.BAD, message, f"{python} -m pip install stoker=={__version__}")
    return Check("python", CheckStatus.OK, f"{python}: Python {words[0]}, Stoker {words[1]}")


def is_kit_used(pool: Pool) -> bool:
    """Return True if a pool's workers use a kit, or the launcher's own interpreter where it is the same there."""
    return pool.python == KIT or bool(pool.via and not pool.python)


def read_versions(commands: HostCommands, pool: Pool, python: str) -> ProbeOutput:
    """Let an interpreter print its version and Stoker's, for `check_python`, as a worker is started.

    It runs after the pool's setup commands, in the shell of its workers. Raises `NoBackend`.
    """
    return _after_setup(commands, pool, f"{shlex.quote(python)} -c {shlex.quote(_VERSIONS)} 2>&1 | tail -n 1")


def check_way_back(commands: HostCommands, pool: Pool, python: str, url: str) -> tuple[Check, ...]:
    """Return the check whether the host of a pool's commands reaches the coordinator; nothing without a URL.

    `python` is an interpreter there. Raises `NoBackend`.
    """
    if not url:
        return ()
    split = urlsplit(url)
    words = (python, "-c", _CONNECT, split.hostname or "", f"{split.port or 443}")
    lines = _after_setup(commands, pool, f"{shlex.join(words)} 2>&1").out.splitlines()
    if "connected" in lines:
        nodes = "; compute nodes may differ" if pool.backend is PoolBackend.SLURM else ""
        return (Check("coordinator", CheckStatus.OK, f"{_host(pool)} reaches {url}{nodes}"),)
    text = one_line(lines[-1] if lines else "no output", 200)
    return (Check("coordinator", CheckStatus.BAD, f"{_host(pool)} does not reach {url}: {text}", _WAY_BACK_HINT),)


def _setup_failure(reply: ProbeOutput) -> str:
    said = one_line(reply.err, 300) or "no error output"
    return f"the setup commands ended the shell with exit code {reply.exit_code}: {said}"


class KitBuilder:
    """Makes kits on this side, and keeps their libraries in a folder. Thread-safe."""

    def __init__(  # noqa: PLR0913 - places, and what is packed
        self,
        folder: str,
        uv: str,
        runner: CommandRunner,
        *,
        clock: Clock,
        package: str = os.path.dirname(stoker.__file__),
        requirements: Callable[[], tuple[list[str], list[str]]] | None = None,
        trial: str = _TRIAL,
    ) -> None:
        """`runner` has uv's settings. `trial` is the program that a new kit runs once on the far side."""
        self._folder = folder
        self._uv = uv
        self._runner = runner
        self._clock = clock
        self._package = package
        self._requirements = requirements or requirements_here
        self._trial = trial
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str, str], threading.Lock] = {}
        self._made: dict[tuple[str, str, str], tuple[str, Kit]] = {}
        """With the folder of the libraries."""

    def build(self, far: FarSide) -> Kit:
        """Return the kit for a machine. Raises `KitRefused`. Blocks; the first time it may download libraries."""
        version = far.platform.pythons[0]
        key = (uv_platform(far.platform), version, far.python)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        # uv may take minutes; kits for other machines do not wait for it.
        with lock, _refuse_os_errors():
            if made := self._made.get(key):
                libraries, kit = made
                with suppress(FileNotFoundError):
                    # What is used is not pruned. Where another process has removed it, it is made again.
                    os.utime(libraries)
                    return kit
            minor = ".".join(version.split(".")[:2])
            libraries = self._libraries(key[0], minor, f"{far.platform.machine} {tag_of(version)}")
            kit = _kit(libraries, self._package, far.python, minor)
            self._made[key] = (libraries, kit)
            return kit

    def forget(self) -> None:
        """Read this machine's files again at the next build: one was changed."""
        self._made = {}

    def payload(self, kit: Kit, digests: Iterable[str]) -> str:
        """Write what the receiver reads, the listing and some files; return its path. Caller removes it.

        Raises `KitRefused` if a file was changed or removed here, or the disk is full.
        """
        with _refuse_os_errors():
            self._make_folder()
            descriptor, path = tempfile.mkstemp(prefix=".payload-", dir=self._folder)
            try:
                self._write_payload(descriptor, kit, digests)
            except BaseException:
                self.forget()
                os.unlink(path)
                raise
        return path

    def _write_payload(self, descriptor: int, kit: Kit, digests: Iterable[str]) -> None:
        rows = [[one.path, one.size_bytes, one.sha256, one.executable, None] for one in kit.tree.entries]
        with open(descriptor, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0) as file:
            file.write(dumps({"executable": kit.executable, "program": self._trial, "entries": rows}).encode() + b"\n")
            for digest in digests:
                data = _read(kit.sources[Digest(digest)])
                if digest_bytes(data) != digest:
                    raise KitRefused("files of Stoker changed while they were sent", hint="try again", reason="changed")
                file.write(f"{digest} {len(data)}\n".encode())
                file.write(data)

    def _libraries(self, platform: str, minor: str, where: str) -> str:
        """Return the folder with the libraries of a worker, unpacked for a platform."""
        requirements, pins = self._requirements()
        folder = os.path.join(self._folder, digest_value("kit-libraries", [requirements, pins, platform, minor]))
        if not os.path.isdir(folder):
            if not self._uv:
                raise KitRefused("uv is not installed here", hint=pip_install(f"stoker[{_EXTRA}]"), reason="no_uv")
            self._make_folder()
            new = tempfile.mkdtemp(prefix=".new-", dir=self._folder)
            try:
                self._unpack(new, requirements, pins, platform, minor, where)
                os.rename(os.path.join(new, "libraries"), folder)
            except OSError:
                # Another process may have been faster.
                if not os.path.isdir(folder):
                    raise
            finally:
                remove_tree(new)
            self._prune()
        os.utime(folder)
        return folder

    def _unpack(
        self, new: str, requirements: Sequence[str], pins: Sequence[str], platform: str, minor: str, where: str
    ) -> None:
        names = {name: os.path.join(new, name) for name in ("required", "pins", "lock", "libraries")}
        for name, lines in (("required", requirements), ("pins", pins)):
            with open(names[name], "w", encoding="utf-8") as file:
                file.write("\n".join([*lines, ""]))
        # Our own interpreter: uv would look for one of that version.
        target = ["--python", sys.executable, "--python-platform", platform, "--python-version", minor]
        target += ["--only-binary", ":all:"]
        written = ["-c", names["pins"], "--generate-hashes", "--no-header", "--no-annotate", "-o", names["lock"]]
        # Copies: linked files would change with uv's cache.
        placed = ["--no-deps", "--require-hashes", "--link-mode", "copy", "--target", names["libraries"]]
        for words in (
            ["compile", names["required"], *written, *target],
            ["install", "-r", names["lock"], *placed, *target],
        ):
            reply = self._runner.ask([self._uv, "pip", *words, "--quiet"], limit_s=_UV_LIMIT_S)
            if isinstance(reply, ProbeFailure):
                raise KitRefused(f"libraries for {where}: {reply.why}", hint="try again", reason="no_libraries")
            if reply.exit_code:
                why = diagnose(reply.err.splitlines(), reply.exit_code, where=where).why
                hint = f"set python to one there that has Stoker {__version__}"
                raise KitRefused(f"libraries for {where}: {why}", hint=hint, reason="no_libraries")

    def _make_folder(self) -> None:
        """Make the folder; remove what killed processes left in it."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            with suppress(FileNotFoundError):
                if name.startswith(".") and self._clock.wall_s() - os.lstat(path).st_mtime > _STALE_S:
                    remove_tree(path)

    def _prune(self) -> None:
        names = [name for name in os.listdir(self._folder) if not name.startswith(".")]
        paths = sorted((os.path.join(self._folder, name) for name in names), key=os.path.getmtime, reverse=True)
        for path in paths[_KEPT_HERE:]:
            remove_tree(path)


@contextmanager
def _refuse_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the kit can't be made here: {error.filename or 'its folder'}: {error.strerror or error}"
        hint = "check disk space and permissions of that folder, and try again"
        raise KitRefused(message, hint=hint, reason="not_made") from None


def requirements_here() -> tuple[list[str], list[str]]:
    """Return what a worker requires, and the versions installed here of all that belongs to it."""
    from stoker.jobs.pack.wheels import installed_requirements  # noqa: PLC0415 - of an extra

    try:
        return installed_requirements("stoker", _EXTRA)
    except metadata.PackageNotFoundError:
        raise KitRefused(
            "this Stoker is not installed", hint=pip_install("stoker[fleet]"), reason="no_stoker"
        ) from None


def uv_platform(platform: Platform) -> str:
    """Return a platform as uv names it. Raises `KitRefused` if there are no wheels for it."""
    family, _, version = platform.libc.partition(" ")
    if platform.system != "linux" or platform.machine not in _MACHINES:
        hint = f"set python to one there that has Stoker {__version__}"
        raise KitRefused(f"no kit for {platform.name}", hint=hint, reason="no_libraries")
    if family == "musl":
        return f"{platform.machine}-unknown-linux-musl"
    major, _, minor = version.partition(".")
    newest = int(minor) if major == "2" and minor.isdecimal() else _GLIBC_MINORS[0]
    chosen = max((one for one in _GLIBC_MINORS if one <= newest), default=_GLIBC_MINORS[0])
    return f"{platform.machine}-manylinux_2_{chosen}"


def _kit(libraries: str, package: str, executable: str, minor: str) -> Kit:
    """Return the kit of unpacked libraries and a Stoker."""
    site = f"lib/python{minor}/site-packages"
    entries: dict[str, TreeEntry] = {}
    sources: dict[Digest, str | bytes] = {}

    def add(path: str, source: str | bytes, entry: TreeEntry) -> None:
        entries[path] = changed(entry, path=path)
        sources[entry.sha256] = source

    def add_text(path: str, text: str) -> None:
        data = text.encode()
        add(path, data, TreeEntry(path, len(data), digest_bytes(data)))

    for walked in walk_tree(libraries):
        path = walked.entry.path
        if not _LEFT_OUT.fullmatch(path) and not _COMPILED.fullmatch(path):
            add(path if path == "bin/uv" else f"{site}/{path}", walked.path, walked.entry)
    for walked in walk_tree(package):
        if not _COMPILED.fullmatch(walked.entry.path):
            add(f"{site}/stoker/{walked.entry.path}", walked.path, walked.entry)
    own = metadata.distribution("stoker")
    for name in ("METADATA", "entry_points.txt"):
        add_text(f"{site}/stoker-{own.version}.dist-info/{name}", own.read_text(name) or "")
    home = os.path.dirname(executable)
    add_text(
        "pyvenv.cfg",
        f"home = {home}\ninclude-system-site-packages = false\nversion = {minor}\nexecutable = {executable}\n",
    )
    tree = Tree(tuple(entries[path] for path in sorted(entries)))
    return Kit(tree=tree, digest=tree.digest(), sources=sources, executable=executable)


def _read(source: str | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    with open(source, "rb") as file:
        return file.read()


class Kits:
    """Brings Stoker to the machines of pools. Thread-safe."""

    def __init__(
        self, commands: HostCommands, builder: KitBuilder, *, folder: str, clock: Clock, python: str = sys.executable
    ) -> None:
        """`folder` is for kits of this machine; `python` the interpreter that runs this Stoker."""
        self._commands = commands
        self._builder = builder
        self._folder = folder
        self._clock = clock
        self._python = python
        self._ready: dict[tuple[object, ...], tuple[float, Pool]] = {}

    def prepare(self, pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        """Return the pool with the Python of its workers; install a kit if they need one. Blocks.

        With `is_dry` nothing is sent, and the path is the one that the kit would have.
        Raises `KitRefused`, or `NoBackend` if the host is not reached or the transfer broke.
        """
        require_valid(pool)
        if not pool.python and not pool.via:
            return pool
        # With the time limit: the kit must stay for as long.
        key = (pool.backend, pool.via, pool.folder, pool.python, pool.setup, pool.wall_s)
        made_s, made = self._ready.get(key, (-_RECENT_S, pool))
        if self._clock.monotonic_s() - made_s < _RECENT_S:
            return changed(pool, python=made.python)
        if pool.python not in ("", KIT):
            if not is_dry:
                self._require_version(pool)
            ready = pool
        elif (far := self._probe(pool)).is_same:
            ready = changed(pool, python=self._python)
        else:
            kit = self._builder.build(far)
            if not is_dry:
                self._bring(pool, far, kit, log)
            ready = changed(pool, python=f"{far.base}/{kit.digest}/{kit_receiver.PYTHON}")
        if not is_dry:
            self._ready[key] = (self._clock.monotonic_s(), ready)
        return ready

    def check(self, pool: Pool, url: str) -> tuple[Check, ...]:
        """Check what `prepare` would do for a pool that names no Python, and the way back to the coordinator."""
        try:
            far = self._probe(pool)
            way_back = check_way_back(self._commands, pool, self._python if far.is_same else far.python, url)
        except StokerError as error:
            return (Check("python", CheckStatus.BAD, error.message, error.hint),)
        return (*self._check_kit(pool, far), *way_back)

    def _check_kit(self, pool: Pool, far: FarSide) -> tuple[Check, ...]:
        if far.is_same:
            return (Check("python", CheckStatus.OK, f"{self._python}: the launcher's own, same files"),)
        found = f"{far.python}: Python {far.platform.pythons[0]}, {far.platform.name}, {far.platform.libc or 'libc?'}"
        python = Check("python", CheckStatus.OK, found)
        try:
            kit = self._builder.build(far)
            answer = self._ask(pool, far, kit, "look", (), until_s=0.0)
        except StokerError as error:
            return (python, Check("kit", CheckStatus.BAD, error.message, error.hint))
        whole = format_size(kit.tree.size_bytes)
        if answer["state"] == "ready":
            return (python, Check("kit", CheckStatus.OK, f"{kit.digest[:12]} is installed, {whole}"))
        sizes = f"{format_size(answer['bytes'])} of {whole} to install (sent compressed)"
        text = f"{kit.digest[:12]}: {sizes}, {format_size(answer['free'])} free"
        return (python, Check("kit", CheckStatus.OK, text))

    def _require_version(self, pool: Pool) -> None:
        """Raise `KitRefused` if the pool's Python has another Stoker, or none.

        A login node need not have the Python of its compute nodes.
        """
        reply = read_versions(self._commands, pool, pool.python)
        found = check_python(reply, pool, pool.python)
        is_certain = pool.backend is not PoolBackend.SLURM or len(reply.out.split()) == 2
        if found.verdict is CheckStatus.BAD and is_certain:
            raise KitRefused(f"{_host(pool)}: {found.message}", hint=found.hint, reason="version", host=pool.via)

    def _probe(self, pool: Pool) -> FarSide:
        """Ask a machine for its platform, its Pythons and its home, after the pool's setup commands."""
        files = (self._python, stoker.__file__)
        same = "\n".join(f"{one.st_ino} {one.st_size} {int(one.st_mtime)}" for one in map(os.stat, files))
        # The launcher's version first: its libraries are known to exist.
        minors = (sys.version_info.minor, *range(_NEWEST_MINOR, _OLDEST_MINOR - 1, -1))
        first, *others = (f"python3.{minor}" for minor in minors)
        names = shlex.join([first, "python3", *others, "python"])
        quoted = [shlex.quote(one) for one in files]
        body = f"""\
echo "system $(uname -s)"
echo "machine $(uname -m)"
echo "libc $(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | sed -n 's/^musl libc.*/musl/p')"
echo "home $HOME"
[ -x {quoted[0]} ] && [ -r {quoted[1]} ] &&
  [ "$(stat -L -c '%i %s %Y' {" ".join(quoted)} 2>/dev/null)" = {shlex.quote(same)} ] && echo "same yes"
for name in {names}; do
  found=$(command -v "$name") || continue
  answer=$("$found" -I -c {shlex.quote(_QUESTION)} 2>/dev/null < /dev/null)
  is_usable=$?
  echo "python $answer"
  [ "$is_usable" = 0 ] && break
done"""
        return read_probe(_after_setup(self._commands, pool, body), pool, folder=self._folder)

    def _bring(self, pool: Pool, far: FarSide, kit: Kit, log: Log) -> None:
        until_s = self._clock.wall_s() + pool.wall_s + _SLACK_S.get(pool.backend, _LEAST_SLACK_S)
        answer = self._ask(pool, far, kit, "look", (), until_s)
        begun_s = self._clock.monotonic_s()
        for _ in range(_MOST_TURNS):
            if answer["state"] == "ready":
                return
            size = format_size(answer["bytes"])
            fields = {"pool": pool.name, "host": _host(pool), "kit": kit.digest, "bytes": answer["bytes"]}
            log("kit_sent", {**fields, "why": f"{size} to {_host(pool)}"})
            answer = self._ask(pool, far, kit, "install", answer["missing"], until_s)
            if answer["state"] == "ready":
                seconds = self._clock.monotonic_s() - begun_s
                log("kit_installed", {**fields, "seconds": round(seconds, 1), "why": f"{far.base}, {seconds:.1f} s"})
        if answer["state"] != "ready":
            raise NoBackend(f"kit for {_host(pool)} incomplete: files there change", hint="try again", host=pool.via)

    def _ask(
        self, pool: Pool, far: FarSide, kit: Kit, verb: str, digests: Iterable[str], until_s: float
    ) -> dict[str, Any]:
        """Run the receiver; return its answer. Raises `KitRefused`, or `NoBackend` if none came."""
        path = self._builder.payload(kit, digests)
        argv = (far.python, "-I", "-c", _receiver(), verb, far.base, kit.digest, f"{until_s:.0f}")
        limit_s = _LOOK_LIMIT_S if verb == "look" else _SEND_LIMIT_S
        try:
            reply = self._commands.run(pool.via, argv, stdin_path=path, limit_s=limit_s)
        finally:
            os.unlink(path)
        again = "try again: what arrived there is not sent a second time"
        if isinstance(reply, ProbeFailure):
            raise NoBackend(f"transfer of the kit to {_host(pool)} broke: {reply.why}", hint=again, host=pool.via)
        try:
            answer = _checked_answer(loads(reply.out.strip().splitlines()[-1]), kit)
        except (IndexError, ValueError):
            text = one_line((reply.err.strip().splitlines() or [f"exit {reply.exit_code}"])[-1], 300)
            raise NoBackend(f"kit on {_host(pool)}: {text}", hint=again, host=pool.via) from None
        if answer["state"] != "refused":
            return answer
        message, reason = f"{_host(pool)}: {one_line(answer['text'], 400)}", answer["reason"]
        if reason == "broken":
            raise NoBackend(message, hint=again, host=pool.via)
        if "needed" in answer:
            sizes = f"{format_size(answer['needed'])} needed, {format_size(answer['free'])} free"
            message = f"{_host(pool)}: no disk space for Stoker in {far.base}: {sizes}"
        raise KitRefused(message, hint=_HINTS.get(reason, ""), reason=reason, host=pool.via)


def _checked_answer(answer: Any, kit: Kit) -> dict[str, Any]:
    """Return what the receiver answered. Raises `ValueError` if it is not an answer about this kit."""
    if not isinstance(answer, dict) or answer.get("state") not in ("ready", "missing", "refused"):
        raise ValueError
    is_missing, is_refused = answer["state"] == "missing", answer["state"] == "refused"
    texts = ("reason", "text") if is_refused else ()
    numbers = ("bytes", "free") if is_missing else ("needed", "free") if "needed" in answer else ()
    missing = answer.get("missing") if is_missing else []
    is_whole = (
        all(isinstance(answer.get(name), str) for name in texts)
        and all(type(answer.get(name)) is int for name in numbers)
        and isinstance(missing, list)
        and all(isinstance(one, str) and one in kit.sources for one in missing)
    )
    if not is_whole:
        raise ValueError
    return answer


def read_probe(reply: ProbeOutput, pool: Pool, *, folder: str) -> FarSide:
    """Read what the probe printed, and choose a Python. `folder` is for kits of this machine. Raises `KitRefused`."""
    lines = [line.partition(" ")[::2] for line in reply.out.splitlines()]
    facts = dict(lines)
    if "machine" not in facts:
        message = f"{_host(pool)}: {_setup_failure(reply)}"
        raise KitRefused(message, hint=_SETUP_HINT, reason="setup", host=pool.via)
    pythons = [words for key, rest in lines if key == "python" and len(words := rest.split(" ", 3)) == 4]
    required = metadata.metadata("stoker")["Requires-Python"] or ""
    able = [words for words in pythons if words[1:3] == ["cpython", "-"] and fits(words[0], required)]
    platform = platform_of(system=facts.get("system", ""), machine=facts["machine"], libc=facts.get("libc", ""))
    is_same = facts.get("same") == "yes" and pool.python != KIT
    if not able and not is_same:
        found = ", ".join(dict.fromkeys(f"{words[3]} is {words[0]}" for words in pythons))
        what = f"no Python that fits {required} ({found})" if found else f"no Python; Stoker needs {required}"
        reason = "old_python" if found else "no_python"
        hint = _PYTHON_HINT.format(__version__)
        raise KitRefused(f"{_host(pool)}: {what}", hint=hint, reason=reason, host=pool.via)
    version, _, _, python = (able or [["", "", "", ""]])[0]
    base = f"{pool.folder}/kits" if pool.folder else f"{facts.get('home', '')}/{_FAR_BASE}" if pool.via else folder
    if not _PLAIN_PATH.fullmatch(base):
        hint = "set folder to an absolute path of plain characters"
        raise KitRefused(f"{_host(pool)}: {base!r} can't hold Stoker", hint=hint, reason="path", host=pool.via)
    return FarSide(platform=changed(platform, pythons=(version,)), python=python, base=base, is_same=is_same)


def _after_setup(commands: HostCommands, pool: Pool, body: str) -> ProbeOutput:
    """Run the pool's setup commands, then others, as its workers do. Raises `NoBackend`."""
    setup = "\n".join(pool.setup) or ":"
    # As the script of the pool's workers: Slurm's is one of bash, which may have `module` as a function.
    shell = ("bash" if pool.backend is PoolBackend.SLURM else "sh", "-s")
    script = "main() {{\n{{\n{}\n}} > /dev/null {} < /dev/null\n{}\n}}\nmain\n"
    reply = commands.read(pool.via, shell, stdin=script.format(setup, "2>&1", body))
    if reply.out.strip() or not pool.setup:
        return reply
    # Again, for the error: a daemon that setup starts would hold the error output open, and the command would not end.
    return commands.read(pool.via, shell, stdin=script.format(setup, "", body))


def _receiver() -> str:
    """Return the receiver's program in one line: login shells such as csh accept no word of several."""
    with open(kit_receiver.__file__, "rb") as file:
        packed = base64.b64encode(zlib.compress(file.read(), 9)).decode()
    return f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'


def _host(pool: Pool) -> str:
    return pool.via or "this machine"
