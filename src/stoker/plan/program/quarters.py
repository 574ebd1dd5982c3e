"""Where a program of another user works: folders of its own, in a place where it reaches nothing else of ours.

    scratch/.quarters/PID-MARK/     ours, passed through by this user alone, and not listed
        out/  said/  tmp/  home/    the user's own, for nobody else to read
        library/                    stoker_trainer, which need not lie where the user may read

What is said of the program (its own metrics) is at the same time a file of the run's folder: whoever follows the run
reads it there. When nothing of the user runs any more, its result is taken back and put where results are taken from.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping

from stoker.host.acting_as import acting_as
from stoker.host.durable import remove_tree, translated
from stoker.host.folders import PASSED_THROUGH
from stoker.host.identity import mine
from stoker.host.other_user import OtherUser
from stoker.host.ownership import give_to, take_back, take_file
from stoker.host.process_table import read_row
from stoker.model.frozen import changed
from stoker.plan.runner import Work

_ROOT = ".quarters"
_BY_ITS_USER = 0o710
_READ_BY_ALL = 0o755
_THEIRS = ("out", "said", "tmp", "home")
# Of the worker's own variables a job of another user gets those that say how this machine is used, and no others.
_PASSED = ("PATH", "LANG", "TZ", "TERM", "SSL_CERT_FILE", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_PASSED_FAMILIES = ("LC_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "GPU_", "OMP_", "MKL_", "NCCL_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


class Quarters:
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
            # Passed through, and not listed: whoever knows no name in them finds nothing. The quarters themselves only
            # by their user, who may open what is its own as wide as it likes.
            for folder in (self._work.folders.scratch, self._root):
                os.chmod(folder, PASSED_THROUGH)
            os.chmod(self.library, _READ_BY_ALL)
            os.chown(self._path, os.geteuid(), self.user.gid)
            os.chmod(self._path, _BY_ITS_USER)
            for name in os.listdir(trainer_folder):
                if name.endswith(".py"):
                    copied = shutil.copyfile(os.path.join(trainer_folder, name), os.path.join(self.library, name))
                    os.chmod(copied, 0o644)
            for name in _THEIRS:
                os.mkdir(self._at(name), 0o700)
                give_to(self.user, self._at(name))
            self._share_metrics()

    def environment(self, worker: Mapping[str, str], granted: Mapping[str, str]) -> dict[str, str]:
        """Give the variables for a program of this user: some of the worker's, what its job was granted, its own."""
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
                shutil.copytree(self._at("out"), self._work.out, symlinks=True, dirs_exist_ok=True)
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
        """Have one file under two names: the program's, and the one in the run's folder, where the user never gets."""
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
