"""The far side of a kit: checks and installs one, where no Stoker is yet.

The program is run there by `python -I -c`, so it imports only the standard library of Python 3.11. It gets
`look` or `install`, the folder of all kits, the kit's digest, and the time until which it is needed. Its standard input
is compressed: one line of JSON with the listing of the kit's files, then the files to be installed that the far side
does not have, each after a line with its digest and size. The kit's digest is that of the listing. It prints one line
of JSON.

A kit is complete under its name, `FOLDER/DIGEST`, or not there: it is made under another name and renamed. Files that
arrived before a transfer broke stay in `FOLDER/.parts`, each under its digest, and are not sent again. A folder that
belongs to another user, in which others may write, or which they may replace, is refused. Every file is compared with
its digest before a kit is used, also in one that was there before.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import gzip
import hashlib
import json
import os
import pathlib
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

KEPT = 2
"""Kits that stay although no worker needs them: the newest."""
LISTING, NEEDED_UNTIL = "kit.json", "needed-until"
PYTHON = "bin/python"
_PARTS, _LOCK, _NEW = ".parts", ".lock", ".new-"
_SPARE_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20
_STALE_S = 3600.0
_TRIAL_S = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class KitFault(Exception):
    """Why no kit can be used here: a reason for programs, and a text."""

    def __init__(self, reason: str, text: str, **data: object) -> None:
        super().__init__(text)
        self.answer = {"state": "refused", "reason": reason, "text": text, **data}


def main(verb: str, base: str, digest: str, until_s: float, stream: IO[bytes]) -> dict[str, Any]:
    """Look for a kit, or install it; return the answer."""
    try:
        with gzip.open(stream) as source:
            header = json.loads(source.readline())
            entries = _read_listing(header["entries"], digest)
            if verb == "look":
                return _look(base, digest, until_s, entries, header["executable"])
            return _install(base, digest, until_s, entries, header, source)
    except KitFault as fault:
        return fault.answer
    except (EOFError, zlib.error, ValueError) as error:
        return KitFault("broken", f"the transfer broke: {error}").answer
    except OSError as error:
        if error.errno in _FULL:
            # What was received so far would keep the disk full.
            shutil.rmtree(os.path.join(base, _PARTS), ignore_errors=True)
            return KitFault("no_space", f"{base}: {error.strerror}", free=_free_bytes(base)).answer
        reason = "not_writable" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else "failed"
        return KitFault(reason, f"{error.filename or base}: {error.strerror or error}").answer


def _read_listing(rows: list[list[Any]], digest: str) -> list[tuple[Any, ...]]:
    """Return the entries of a listing. Raises `KitFault` if it is not that of the kit, or if a path leads out of it."""
    # The digest of a tree, as `core.digests` computes it.
    hashing = hashlib.sha256(b"stoker/tree\0l%d:" % len(rows))
    for path, size, sha256, is_program, _ in rows:
        if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise KitFault("broken", f"the listing of {digest[:12]} has a path out of the kit: {path[:200]!r}")
        name, number, mark = path.encode(), b"%d" % size, b"T" if is_program else b"F"
        hashing.update(b"l5:s%d:%b%bNi%d:%bs%d:" % (len(name), name, mark, len(number), number, len(sha256)))
        hashing.update(sha256.encode())
    if hashing.hexdigest() != digest:
        raise KitFault("broken", f"the listing is not that of {digest[:12]}")
    return [tuple(row) for row in rows]


def _look(base: str, digest: str, until_s: float, entries: list[tuple[Any, ...]], executable: str) -> dict[str, Any]:
    existing = base
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if existing == base:
        check_own(base)
    else:
        _check_above(existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise KitFault("not_writable", f"{existing}: no permission to write")
    if not why_unusable(os.path.join(base, digest), entries, executable):
        _write_until(os.path.join(base, digest), until_s)
        return {"state": "ready"}
    missing = {sha256: size for _, size, sha256, _, _ in entries if not _places(base, sha256, size)}
    needed, free = sum(missing.values()) + _SPARE_BYTES, _free_bytes(existing)
    if needed > free:
        raise KitFault("no_space", f"{existing}: {needed} bytes needed, {free} free", needed=needed, free=free)
    return {"state": "missing", "missing": list(missing), "bytes": sum(missing.values()), "free": free}


def check_own(folder: str) -> None:
    """Raise `KitFault` unless this is a folder of this user in which no other may write, nor replace it."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise KitFault("not_own", f"{folder} is not a folder")
    if found.st_uid != os.geteuid():
        raise KitFault("not_own", f"{folder} belongs to another user ({found.st_uid})")
    if found.st_mode & 0o022:
        raise KitFault("not_own", f"others may write in {folder} (mode {found.st_mode & 0o777:o})")
    _check_above(os.path.dirname(folder))


def _check_above(folder: str) -> None:
    """Raise `KitFault` if another user may replace this folder or one above it, as sshd's StrictModes does."""
    # Where a link leads to another folder, both paths count.
    for start in (pathlib.Path(folder), pathlib.Path(os.path.realpath(folder))):
        for path in (start, *start.parents):
            found = path.stat()
            for owner in (found.st_uid, path.lstat().st_uid):
                if owner not in (0, os.geteuid()):
                    raise KitFault("replaceable", f"{path} belongs to another user ({owner})")
            allowed = stat.S_IWGRP if _is_private_group(found.st_gid) else 0
            if found.st_mode & 0o022 & ~allowed and not found.st_mode & stat.S_ISVTX:
                raise KitFault("replaceable", f"others may write in {path} (mode {found.st_mode & 0o777:o})")


def _is_private_group(gid: int) -> bool:
    """Return True for the group of this user's own name, if it has no other members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def why_unusable(kit: str, entries: list[tuple[Any, ...]], executable: str) -> str:
    """Return what is wrong with a kit, by the digests of its files; empty: nothing."""
    try:
        check_own(kit)
        if os.readlink(os.path.join(kit, PYTHON)) != executable or not os.access(executable, os.X_OK):
            return f"{PYTHON} is not {executable}"
        left = {os.path.join(kit, path): (size, sha256, is_program) for path, size, sha256, is_program, _ in entries}
        ours = {os.path.join(kit, name) for name in (PYTHON, LISTING, NEEDED_UNTIL)}
        for folder, folders, names in os.walk(kit):
            # What Python compiled there.
            folders[:] = [name for name in folders if name != "__pycache__"]
            for path in (os.path.join(folder, name) for name in (*names, *folders)):
                if stat.S_ISDIR((found := os.lstat(path)).st_mode) or path in ours:
                    continue
                size, sha256, is_program = left.pop(path, (0, "", False))
                is_file = stat.S_ISREG(found.st_mode) and found.st_size == size and not found.st_mode & 0o022
                if not is_file or bool(found.st_mode & 0o100) != is_program or hash_of(path) != sha256:
                    return f"{path} is not what was sent"
        return f"{next(iter(left))} is missing" if left else ""
    except (OSError, KitFault) as error:
        return str(error)


def hash_of(path: str) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _install(
    base: str,
    digest: str,
    until_s: float,
    entries: list[tuple[Any, ...]],
    header: dict[str, Any],
    source: gzip.GzipFile,
) -> dict[str, Any]:
    kit = os.path.join(base, digest)
    os.makedirs(base, mode=0o700, exist_ok=True)
    check_own(base)
    with _locked(base):
        if why_unusable(kit, entries, header["executable"]):
            os.makedirs(os.path.join(base, _PARTS), mode=0o700, exist_ok=True)
            check_own(os.path.join(base, _PARTS))
            received = _receive(base, source)
            new = tempfile.mkdtemp(prefix=_NEW, dir=base)
            try:
                missing = _assemble(base, new, entries)
                if missing:
                    return {"state": "missing", "missing": missing, "bytes": 0, "free": _free_bytes(base)}
                os.makedirs(os.path.join(new, "bin"), exist_ok=True)
                os.symlink(header["executable"], os.path.join(new, PYTHON))
                with open(os.path.join(new, LISTING), "w", encoding="utf-8") as file:
                    json.dump({"entries": entries}, file)
                _write_until(new, until_s)
                _try_out(new, header["program"])
                _put_in_place(new, kit, entries, header["executable"])
            finally:
                shutil.rmtree(new, ignore_errors=True)
            shutil.rmtree(os.path.join(base, _PARTS), ignore_errors=True)
        else:
            received = 0
            _write_until(kit, until_s)
        _prune(base, keep=digest)
    return {"state": "ready", "received": received}


@contextmanager
def _locked(base: str) -> Iterator[None]:
    """Let one process at a time install here. A file system without locks does without: names are renamed whole."""
    with open(os.path.join(base, _LOCK), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield


def _receive(base: str, source: gzip.GzipFile) -> int:
    """Keep each file under its digest once all of it has arrived; return the number of bytes."""
    received = 0
    while line := source.readline():
        sha256, _, size = line.decode().strip().partition(" ")
        left = int(size)
        descriptor, path = tempfile.mkstemp(dir=os.path.join(base, _PARTS))
        try:
            with open(descriptor, "wb") as file:
                hashing = hashlib.sha256()
                while left:
                    block = source.read(min(left, _BLOCK_BYTES))
                    if not block:
                        raise EOFError(f"{left} bytes of {sha256[:12]} did not arrive")
                    hashing.update(block)
                    file.write(block)
                    left -= len(block)
            if hashing.hexdigest() != sha256:
                raise KitFault("broken", f"{sha256[:12]} arrived with other bytes")
            os.rename(path, os.path.join(base, _PARTS, sha256))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
        received += int(size)
    return received


def _assemble(base: str, new: str, entries: list[tuple[Any, ...]]) -> list[str]:
    """Lay out all files, from what was received and from other kits; return the digests of those that are not here."""
    missing = []
    for path, size, sha256, is_program, _ in entries:
        target = os.path.join(new, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        for place in _places(base, sha256, size):
            if hash_of(place) == sha256:
                _lay(place, target, 0o755 if is_program else 0o644)
                break
        else:
            missing.append(sha256)
    return missing


def _lay(place: str, target: str, mode: int) -> None:
    """Link a file, so that kits share their bytes on the disk; copy it if its mode is another one."""
    found = os.lstat(place)
    is_part = os.path.basename(os.path.dirname(place)) == _PARTS
    if stat.S_IMODE(found.st_mode) == mode or (is_part and found.st_nlink == 1):
        with suppress(OSError):
            os.link(place, target)
            os.chmod(target, mode)
            return
    shutil.copyfile(place, target)
    os.chmod(target, mode)


def _places(base: str, sha256: str, size: int) -> list[str]:
    """Return files here that should have this digest."""
    found = [os.path.join(base, _PARTS, sha256), *_listed(base).get(sha256, ())]
    return [path for path in found if os.path.isfile(path) and os.path.getsize(path) == size]


_LISTED: dict[str, dict[str, list[str]]] = {}


def _listed(base: str) -> dict[str, list[str]]:
    """Return the files of all kits by digest, as their listings say."""
    if base not in _LISTED:
        files = _LISTED[base] = {}
        for kit in _kits(base):
            with suppress(OSError, ValueError, KeyError):
                with open(os.path.join(kit, LISTING), encoding="utf-8") as file:
                    entries = json.load(file)["entries"]
                for path, _, sha256, _, _ in entries:
                    files.setdefault(sha256, []).append(os.path.join(kit, path))
    return _LISTED[base]


def _kits(base: str) -> list[str]:
    """Return the kits of this user."""
    found = []
    with suppress(FileNotFoundError):
        for name in os.listdir(base):
            path = os.path.join(base, name)
            with suppress(OSError, KitFault):
                check_own(path)
                if len(name) == 64:
                    found.append(path)
    return found


def _try_out(new: str, program: str) -> None:
    """Import the kit's libraries once: one that does not fit this system is found now."""
    command = [os.path.join(new, PYTHON), "-I", "-B", "-c", program]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_TRIAL_S
        )
    except subprocess.TimeoutExpired:
        raise KitFault("unusable", f"Stoker does not start there within {_TRIAL_S:g} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        raise KitFault("unusable", f"Stoker does not start there: {lines[-1][:300]}")


def _put_in_place(new: str, kit: str, entries: list[tuple[Any, ...]], executable: str) -> None:
    if os.path.lexists(kit) and why_unusable(kit, entries, executable):
        aside = tempfile.mkdtemp(prefix=_NEW, dir=os.path.dirname(kit))
        os.rename(kit, os.path.join(aside, "damaged"))
        shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(new, kit)
    except OSError as error:
        # Another process was faster, on a file system without locks.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or why_unusable(kit, entries, executable):
            raise


def _prune(base: str, *, keep: str) -> None:
    """Remove kits that no worker needs any more, but the newest, and what broken installations left."""
    now_s = time.time()  # noqa: TID251 - there is no clock of Stoker here
    kits = sorted(_kits(base), key=lambda kit: (os.path.basename(kit) == keep, _until(kit)), reverse=True)
    for kit in kits[KEPT:]:
        if _until(kit) < now_s:
            shutil.rmtree(kit, ignore_errors=True)
    for name in os.listdir(base):
        path = os.path.join(base, name)
        with suppress(OSError):
            if not name.startswith(_NEW) or (found := os.lstat(path)).st_mtime >= now_s - _STALE_S:
                continue
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


def _until(kit: str) -> float:
    try:
        with open(os.path.join(kit, NEEDED_UNTIL), encoding="utf-8") as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0


def _write_until(kit: str, until_s: float) -> None:
    """Note until when workers may use a kit; never an earlier time than noted."""
    if until_s > _until(kit):
        descriptor, path = tempfile.mkstemp(dir=os.path.dirname(kit), prefix=_NEW)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{until_s:.0f}\n")
        os.rename(path, os.path.join(kit, NEEDED_UNTIL))


def _free_bytes(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


if __name__ == "__main__":
    os.umask(0o077)
    _, given_verb, given_base, given_digest, given_until = sys.argv
    given_answer = main(given_verb, given_base, given_digest, float(given_until), sys.stdin.buffer)
    sys.stdout.write(json.dumps(given_answer) + "\n")
