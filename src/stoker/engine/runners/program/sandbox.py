"""Where a program of another user works: folders of its own, in a place where it reaches nothing else of ours.

    scratch/.quarters/PID-MARK/     ours, passed through by this user alone, and not listed
        out/  said/  tmp/  home/    the user's own, for no other user to read
        library/                    stoker_trainer, which need not lie where the user may read

What is said of the program (its own metrics) is at the same time a file of the run's folder, where `logs -f` and the
like read it. When nothing of the user runs any more, its result is taken back and put where results are taken from.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from stoker.core.device import VENDORS
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps
from stoker.engine.runners.stage_runner import Work
from stoker.host.durable import remove_tree, translated
from stoker.host.folders import PASSED_THROUGH
from stoker.host.identity import mine, read_row
from stoker.host.users import OtherUser, acting_as, give_to, take_back, take_file

_ROOT = ".quarters"
_BY_ITS_USER = 0o710
_READ_BY_ALL = 0o755
_THEIRS = ("out", "said", "tmp", "home")
# Of the worker's own variables a job of another user gets those that say how this machine is used, and no others.
_PASSED = ("PATH", "LANG", "TZ", "TERM", "SSL_CERT_FILE", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_OF_DEVICES = tuple(prefix for vendor in VENDORS.values() for prefix in vendor.variable_prefixes)
_PASSED_FAMILIES = ("LC_", *_OF_DEVICES, "OMP_", "MKL_", "NCCL_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


class RunAsFolders:
    """The folders of one attempt."""

    def __init__(self, user: OtherUser, work: Work, mark: str) -> None:
        self.user = user
        self._work = work
        self._root = os.path.join(work.folders.scratch, _ROOT)
        self._path = os.path.join(self._root, f"{os.getpid()}-{mine().start_ticks}-{mark}")
        self.library = os.path.join(self._path, "library")

    @property
    def work(self) -> Work:
        """The attempt, as far as the program sees it."""
        said = changed(self._work.folders, metrics=self._at("said"))
        return changed(self._work, out=self._at("out"), folders=said)

    def open(self, trainer_folder: str) -> None:
        """Make them; what attempts that were killed have left goes."""
        with translated(self._path):
            os.makedirs(self._root, exist_ok=True)
            self._sweep()
            os.makedirs(self.library)
            # Passed through, and not listed: without a name in them nothing is found. The folder itself only
            # by their user, who may open what is its own as wide as it likes.
            for folder in (self._work.folders.scratch, self._root):
                os.chmod(folder, PASSED_THROUGH)
            os.chmod(self.library, _READ_BY_ALL)
            os.chown(self._path, os.geteuid(), self.user.gid)
            os.chmod(self._path, _BY_ITS_USER)
            from shutil import copyfile  # noqa: PLC0415 - milliseconds at every start

            for name in os.listdir(trainer_folder):
                if name.endswith(".py"):
                    copied = copyfile(os.path.join(trainer_folder, name), os.path.join(self.library, name))
                    os.chmod(copied, 0o644)
            for name in _THEIRS:
                os.mkdir(self._at(name), 0o700)
                give_to(self.user, self._at(name))
            self._share_metrics()

    def environment(self, worker: Mapping[str, str], granted: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for a program of this user: some of the worker's, what its job was granted, its own."""
        user = self.user
        home = user.home or self._at("home")
        passed = {name: value for name, value in worker.items() if _is_passed(name, value)}
        return {
            **passed,
            **granted,
            "PATH": reachable_path(user, worker.get("PATH", os.defpath)),
            "HOME": home,
            "USER": user.name,
            "LOGNAME": user.name,
            "SHELL": "/bin/sh",
            "TMPDIR": self._at("tmp"),
            "XDG_CACHE_HOME": os.path.join(home, ".cache"),
            "XDG_CONFIG_HOME": os.path.join(home, ".config"),
            "XDG_DATA_HOME": os.path.join(home, ".local", "share"),
            "XDG_STATE_HOME": os.path.join(home, ".local", "state"),
            "XDG_RUNTIME_DIR": self._at("tmp"),
        }

    def take_result(self) -> tuple[str, ...]:
        """Put the result where it is kept from. Nothing of the user runs any more. Gives what is no part of it."""
        removed = take_back(self.user, self._at("out"))
        with translated(self._work.out):
            try:
                os.rename(self._at("out"), self._work.out)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                from shutil import copytree  # noqa: PLC0415

                copytree(self._at("out"), self._work.out, symlinks=True, dirs_exist_ok=True)
        return removed

    def close(self) -> None:
        """Leave nothing behind."""
        metrics = self._work.folders.metrics_of(self._work.node)
        if os.path.lexists(metrics):
            take_file(self.user, metrics)
            if not os.path.getsize(metrics):
                os.unlink(metrics)
        remove_tree(self._path)

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _share_metrics(self) -> None:
        """Link one file under two names: the program's, and one in the run's folder, which its user can't reach."""
        ours, theirs = self._work.folders.metrics_of(self._work.node), self.work.folders.metrics_of(self._work.node)
        descriptor = os.open(ours, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            os.fchown(descriptor, self.user.uid, self.user.gid)
        finally:
            os.close(descriptor)
        os.link(ours, theirs)

    def _sweep(self) -> None:
        for name in os.listdir(self._root):
            pid, _, rest = name.partition("-")
            row = read_row(int(pid)) if pid.isdigit() else None
            if row is None or str(row.start_ticks) != rest.partition("-")[0]:
                remove_tree(os.path.join(self._root, name))


def reachable_path(user: OtherUser, path: str) -> str:
    """Return the places of a PATH that a user gets to: what lies in others it could not execute."""
    with acting_as(user.uid, user.gid):
        kept = [place for place in path.split(os.pathsep) if os.path.isabs(place) and _is_open(place)]
    return os.pathsep.join(kept) or os.defpath


def _is_open(place: str) -> bool:
    try:
        os.stat(os.path.join(place, "."))
    except OSError:
        return False
    return True


def _is_passed(name: str, value: str) -> bool:
    # A proxy's address may have a password in it, which is the worker's.
    is_proxy = name.lower() in _PROXIES and "@" not in value
    return name in _PASSED or name.startswith(_PASSED_FAMILIES) or is_proxy


MASK = b"***"
_SHORTEST = 4
_LINE_LEAST = 12
"""A line of a secret of several lines is one of its own if it is as long as this."""


class SecretRedactor:
    """Replaces secrets, and their common encodings, by `***` in one stream of bytes. Without any it changes nothing.

    Bytes are taken as they come. What may be the beginning of a secret is held back until it is known to be none, so
    that no border between two pieces lets one through.
    """

    def __init__(self, values: Iterable[str]) -> None:
        patterns = sorted({one for value in values for one in _looks_of(value)}, key=len, reverse=True)
        self._patterns = tuple(patterns)
        self._longest = len(patterns[0]) if patterns else 0
        self._any = re.compile(b"|".join(map(re.escape, patterns))) if patterns else None
        starts = b"".join(re.escape(bytes((first,))) for first in sorted({one[0] for one in patterns}))
        self._start = re.compile(b"[" + starts + b"]") if patterns else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; give what may be shown."""
        if self._any is None:
            return data
        whole = self._held + data
        keep_from = self._doubtful_from(whole)
        shown: list[bytes] = []
        at = 0
        # Looking for each is many times faster than looking for any, and most output has none.
        has_some = any(one in whole for one in self._patterns)
        for found in self._any.finditer(whole) if has_some else ():
            if found.start() >= keep_from:
                break
            shown += [whole[at : found.start()], MASK]
            at = found.end()
        keep_from = max(keep_from, at)
        self._held = whole[keep_from:]
        return b"".join([*shown, whole[at:keep_from]])

    def finish(self) -> bytes:
        """Return what was held back: nothing more comes."""
        held, self._held = self._held, b""
        return held if self._any is None else self._any.sub(MASK, held)

    def hide(self, text: str) -> str:
        """Hide values in a whole text."""
        if self._any is None:
            return text
        return self._any.sub(MASK, text.encode(errors="surrogatepass")).decode(errors="replace")

    def _doubtful_from(self, whole: bytes) -> int:
        """Return where the first thing begins that more bytes may make a secret, or a longer one."""
        if self._start is None:
            return len(whole)
        for found in self._start.finditer(whole, max(0, len(whole) - self._longest + 1)):
            tail = whole[found.start() :]
            if any(len(one) > len(tail) and one.startswith(tail) for one in self._patterns):
                return found.start()
        return len(whole)


def _looks_of(value: str) -> Iterator[bytes]:
    from urllib.parse import quote, quote_plus  # noqa: PLC0415 - only a job with secrets should cost it

    for one in (value, *_long_lines(value)):
        data = one.encode(errors="surrogateescape")
        if len(data) < _SHORTEST:
            continue
        yield data
        yield quote(data, safe="").encode()
        yield quote(data).encode()
        yield quote_plus(data).encode()
        yield dumps(one)[1:-1].encode()
        yield repr(one)[1:-1].encode(errors="backslashreplace")
        yield data.hex().encode()
        yield from _in_base64(data)


def _long_lines(value: str) -> list[str]:
    lines = value.splitlines()
    return [line for line in lines if len(line) >= _LINE_LEAST] if len(lines) > 1 else []


def _in_base64(data: bytes) -> Iterator[bytes]:
    """Return what of a text's base64 does not depend on what stands around it, for each of its three alignments."""
    import base64  # noqa: PLC0415 - only a job with secrets should cost it

    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + data)
        first = -(-shift * 8 // 6) if shift else 0
        last = (shift + len(data)) * 8 // 6
        core = encoded[first:last]
        if len(core) >= 2 * _SHORTEST:
            yield core
            yield core.translate(bytes.maketrans(b"+/", b"-_"))
