"""A job's folder: one attempt in plain files.

    runs/20261115-031502-7f3a/
        owner.json      which process runs it                                           written once, first
        config.json     the configuration, and where each of its values came from       written once
        code.json       of a program: the texts of its code, as far as they are small   written once
        trials.jsonl    the points of its sweep, one if nothing varies                  written once
        stages.json     the stages of its plan, and what each needs                     written once
        job.json        the job: its whole spec                                         written once, last of these
        out.json        its plain folder, and whether for trials of a sweep             changes with the folder
        status.jsonl    the journal
        logs/NODE.log   each stage's output
        metrics/        each stage's metrics by step
        cancel/3        request to cancel trial 3 of the sweep; the others continue
        receipts.jsonl  of a sweep, the receipt of each trial                           grows
        receipt.json    the receipt of the job: `job_receipt`                           written once, before the end
        end.json        its end                                                         written once, last
        said.log        of a fleet's attempt: output of its own process, if any         moved there at its end

Deleting a folder loses history, never results. A folder without `end.json` whose process is gone is a failed job.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from stoker.core.errors import Ambiguous, NotFound, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JobSpec, JobState
from stoker.core.jsontext import dumps, loads
from stoker.core.text import did_you_mean
from stoker.host.durable import read_regular, translate, translated, write_file
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, surroundings

_CANCEL = "cancel"
_SECOND = len("20261115-031502")
# A sweep of a million trials has some 200 MiB of them.
_LARGEST_BYTES = 1 << 30
_OF_THE_SPEC = {"job_id": "id", "name": "name", "recipe": "recipe", "args": "args", "folder": "folder"}
"""Keys of `job.json` that hold a field of the job each; the others are in `spec`."""


@frozen
class Attempt:
    """One try at a job on this machine: `job.json`."""

    id: str
    spec: JobSpec
    """Paths in its arguments are absolute; its folder is where the command was given."""
    started_s: float
    stoker: str
    """The version that ran it."""
    options: dict[str, Any] = fresh(factory=dict)
    """How it ran: `jobs`, `timeout_s` and others; `fleet` if it was an attempt for a coordinator."""

    def to_json(self) -> dict[str, Any]:
        return {
            "v": 1,
            "attempt": self.id,
            **{key: getattr(self.spec, name) for key, name in _OF_THE_SPEC.items()},
            "spec": {name: value for name, value in self.spec.to_json().items() if name not in _OF_THE_SPEC.values()},
            "started_s": self.started_s,
            "stoker": self.stoker,
            "options": self.options,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Attempt:
        """Read what `to_json` gave. Raises `KeyError`, `TypeError` or `ValueError` on anything else."""
        # Earlier versions wrote no other fields of the job.
        spec = {**raw.get("spec", {}), **{name: raw[key] for key, name in _OF_THE_SPEC.items()}}
        return cls(
            id=str(raw["attempt"]),
            spec=JobSpec.from_json(spec),
            started_s=float(raw["started_s"]),
            stoker=str(raw["stoker"]),
            options=dict(raw["options"]),
        )


@frozen
class JobEnd:
    """The end of an attempt: `end.json`."""

    state: JobState
    ended_s: float
    hits: int
    ran: int
    failed: int
    elapsed_s: float
    exit_code: int
    error: dict[str, Any] | None
    keys: dict[str, str]
    """Key of each node that has a result."""
    out: str | None
    """The folder of the results as plain files."""
    parts: tuple[str, ...] = ()
    """The node whose result is the job's, then those that the plan keeps."""

    @classmethod
    def given_up(cls, error: StokerError, *, started_s: float, ended_s: float) -> JobEnd:
        """Return the end of a job that was stopped before it could write one."""
        return cls(
            state=JobState.CANCELLED,
            ended_s=ended_s,
            hits=0,
            ran=0,
            failed=0,
            elapsed_s=round(max(0.0, ended_s - started_s), 6),
            exit_code=error.exit_code,
            error=error.to_dict(),
            keys={},
            out=None,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "v": 1,
            "state": str(self.state),
            "ended_s": self.ended_s,
            "hits": self.hits,
            "ran": self.ran,
            "failed": self.failed,
            "elapsed_s": self.elapsed_s,
            "exit_code": self.exit_code,
            "error": self.error,
            "keys": self.keys,
            "out": self.out,
            "parts": list(self.parts),
        }


class JobFolder:
    """One job's folder, for its writer and for readers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.status_path = os.path.join(path, "status.jsonl")
        self.log_folder = os.path.join(path, "logs")
        self.metrics_folder = os.path.join(path, "metrics")

    @property
    def attempt(self) -> str:
        return os.path.basename(self.path)

    @classmethod
    def begin(
        cls, runs: str, attempt: Attempt, owner: ProcessIdentity, papers: Mapping[str, bytes] | None = None
    ) -> JobFolder:
        """Make the folder of a new attempt; `papers` are more files that record the request."""
        folder = cls(os.path.join(runs, attempt.id))
        with translated(folder.path):
            # A job's arguments may be private.
            os.makedirs(runs, mode=0o700, exist_ok=True)
            os.makedirs(folder.log_folder)
            os.mkdir(folder.metrics_folder)
        write_file(os.path.join(folder.path, "owner.json"), dumps(owner.to_dict()).encode())
        for name, text in (papers or {}).items():
            write_file(os.path.join(folder.path, name), text)
        body = {**attempt.to_json(), "environment": surroundings()}
        write_file(os.path.join(folder.path, "job.json"), dumps(body, indent=1).encode())
        return folder

    def paper(self, name: str) -> bytes:
        """Read one of the files that record the request; empty if there is none."""
        try:
            return read_regular(os.path.join(self.path, name), _LARGEST_BYTES)
        except OSError:
            return b""

    def end(self, end: JobEnd) -> None:
        """Write `end.json`."""
        write_file(os.path.join(self.path, "end.json"), dumps(end.to_json(), indent=1).encode())

    def claim_out(self, out: str, *, for_trials: bool) -> None:
        """Record the plain folder of its results, and whether they are the trials of a sweep."""
        body = {"v": 1, "folder": os.path.realpath(out), "for_trials": for_trials}
        write_file(os.path.join(self.path, "out.json"), dumps(body).encode())

    def claims_out(self, out: str, *, for_trials: bool) -> bool:
        """Return True if this is the plain folder of its results, in this shape."""
        try:
            body = self._read("out.json")
        except NotFound:
            return False
        return body.get("folder") == os.path.realpath(out) and body.get("for_trials") is for_trials

    def cancel_trial(self, number: int) -> None:
        """Request to cancel a trial; the process that runs the job polls for it."""
        path = os.path.join(self.path, _CANCEL, str(number))
        with translated(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_file(path, b"")

    def trials_to_cancel(self) -> frozenset[int]:
        """Return the numbers of the trials with a cancel request."""
        try:
            names = os.listdir(os.path.join(self.path, _CANCEL))
        except OSError:
            return frozenset()
        return frozenset(int(name) for name in names if name.isascii() and name.isdigit())

    def begun(self) -> Attempt:
        """Read `job.json`. Raises `NotFound` if the folder is not a job's."""
        raw = self._read("job.json")
        try:
            return Attempt.from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise NotFound(f"{self.path} holds no readable job", hint=f"job.json: {error}") from None

    def spec(self) -> JobSpec:
        """Read the job from `job.json`. Raises `NotFound` if the folder is not a job's."""
        return self.begun().spec

    def environment(self) -> dict[str, str]:
        """Return host, system and interpreter of the run; empty if not recorded."""
        try:
            raw = self._read("job.json").get("environment")
        except NotFound:
            return {}
        return {str(name): str(value) for name, value in raw.items()} if isinstance(raw, dict) else {}

    def ended(self) -> JobEnd | None:
        """Read `end.json`; None if it has not ended."""
        try:
            raw = self._read("end.json")
            return JobEnd(
                state=JobState(raw["state"]),
                ended_s=float(raw["ended_s"]),
                hits=int(raw["hits"]),
                ran=int(raw["ran"]),
                failed=int(raw["failed"]),
                elapsed_s=float(raw["elapsed_s"]),
                exit_code=int(raw["exit_code"]),
                error=raw["error"],
                keys=dict(raw["keys"]),
                out=raw["out"],
                parts=tuple(raw.get("parts", ())),
            )
        except (NotFound, KeyError, TypeError, ValueError):
            return None

    def owner(self) -> ProcessIdentity | None:
        """Return the process that runs or ran it."""
        try:
            return ProcessIdentity.from_dict(self._read("owner.json"))
        except (NotFound, KeyError, TypeError, ValueError):
            return None

    def may_be_running(self) -> bool:
        """Return True if it has not ended. Costs one stat for nearly all that have."""
        if os.path.exists(os.path.join(self.path, "end.json")):
            return False
        return self.state()[0] is JobState.RUNNING

    def state(self) -> tuple[JobState, str]:
        """Return the state, and the reason if the folder itself does not record it."""
        end = self.ended()
        if end is not None:
            return end.state, ""
        owner = self.owner()
        if owner is None or is_alive(owner) is Liveness.GONE:
            return JobState.FAILED, "its process is gone"
        return JobState.RUNNING, ""

    def _read(self, name: str) -> dict[str, Any]:
        try:
            raw = loads(read_regular(os.path.join(self.path, name), _LARGEST_BYTES))
        except (OSError, ValueError) as error:
            raise NotFound(f"{self.path}: no readable {name}", hint=str(error)) from None
        if not isinstance(raw, dict):
            raise NotFound(f"{self.path}: {name} is not an object")
        return raw


def job_folders(runs: str) -> Iterator[JobFolder]:
    """Return the folders of all jobs, newest first."""
    try:
        names = sorted(os.listdir(runs), reverse=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise translate(error, runs) from error
    for _, same_second in itertools.groupby(names, key=lambda name: name[:_SECOND]):
        # Ids are ordered by second; within one second, the files' times are.
        written = [(_written_ns(os.path.join(runs, name, "job.json")), name) for name in same_second]
        for written_ns, name in sorted(written, reverse=True):
            if written_ns:
                yield JobFolder(os.path.join(runs, name))


def _written_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


_SHORTEST_PREFIX = 4


def find_job(runs: str, name: str, *, started_in: str = "", with_attempts: bool = True) -> JobFolder:
    """Find a job by `last`, by name (the newest of it), or by the beginning of an attempt's or a job's id.

    Without `with_attempts`, attempts for jobs of a fleet are skipped. With `started_in`, only among the jobs that a
    command started in that folder; attempts of a fleet's jobs are none.
    """
    beginnings: dict[str, JobFolder] = {}
    names: dict[str, None] = {}
    for folder in job_folders(runs):
        if name == "last" and with_attempts and not started_in:
            return folder
        try:
            attempt = folder.begun()
        except NotFound:
            continue
        is_skipped = "fleet" in attempt.options and bool(started_in or not with_attempts)
        if is_skipped or (started_in and not _is_same_folder(attempt.spec.folder, started_in)):
            continue
        if name == "last":
            return folder
        names[attempt.spec.name] = None
        if attempt.spec.name == name:
            return folder
        # Of one job the newest attempt is meant, and that comes first.
        beginnings.setdefault(_id_begun_by(name, attempt), folder)
    beginnings.pop("", None)
    if len(beginnings) == 1:
        return next(iter(beginnings.values()))
    if beginnings:
        raise Ambiguous(f"{name!r} begins the ids of {len(beginnings)} jobs", hint="type more of it")
    if not names and name == "last":
        raise NotFound("nothing has run here yet", hint="stoker run RECIPE")
    raise NotFound(f"there is no job {name!r}", hint=did_you_mean(name, names) or "`stoker jobs` lists them")


def _is_same_folder(one: str, other: str) -> bool:
    return one == other or (bool(one) and os.path.realpath(one) == os.path.realpath(other))


def find_running(runs: str, name: str) -> JobFolder | None:
    """Find the newest job of this very name that still runs. Attempts of jobs of the fleet do not count."""
    for folder in job_folders(runs):
        if folder.may_be_running():
            with suppress(NotFound):
                attempt = folder.begun()
                if attempt.spec.name == name and "fleet" not in attempt.options:
                    return folder
    return None


def _id_begun_by(name: str, attempt: Attempt) -> str:
    """Return the id of the attempt or job that a text begins (or, of an attempt, its last part), else nothing."""
    if len(name) < _SHORTEST_PREFIX:
        return ""
    if attempt.id.startswith(name) or attempt.id.rpartition("-")[2].startswith(name):
        return attempt.id
    return attempt.spec.id if attempt.spec.id.startswith(name) else ""


# `python.json` of a job's folder: which interpreter runs a program, and which packages it has.

PYTHON = "python.json"


def python_paper(facts: Mapping[str, Any]) -> bytes:
    """Return the file's bytes."""
    return dumps({"v": 1, **facts}, indent=1).encode()


def read_python(folder: JobFolder) -> dict[str, Any]:
    """Return the facts of a job's interpreter; empty if it had none of its own."""
    try:
        facts = loads(folder.paper(PYTHON))
    except ValueError:
        return {}
    return {name: value for name, value in facts.items() if name != "v"} if isinstance(facts, dict) else {}
