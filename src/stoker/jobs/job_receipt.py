"""The receipt of a job: what was made, from which code, data and configuration, where, and what was measured.

    receipt.json       one statement, written at the job's end: after its results, before `end.json`
    receipts.jsonl     of a sweep, a statement per line for each trial, before the trial's event

Every job that wrote its own end has one, also one that failed or was cancelled: it states that, and has no results. A
killed process leaves none. Values of a program's variables are left out (`masked_args`).

It is an in-toto statement with the predicate of SLSA provenance; what that has no field for is in fields that begin
with `stoker_`. What a result was made from is read from its record, so a result that was known has the facts of the run
that made it. Digests of our own are never called `sha256` (`named_digest`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import NotFound, NotVerified, StokerError
from stoker.core.events import Event, Kinds
from stoker.core.frozen import frozen
from stoker.core.job import JobSpec, contents_of
from stoker.core.jsontext import dumps
from stoker.host.durable import read_regular, sync_descriptor, translated, write_all, write_file
from stoker.host.identity import surroundings
from stoker.host.resources import memory_total_bytes
from stoker.jobs.job_folder import Attempt, JobEnd, JobFolder, read_python
from stoker.jobs.result_origins import ResultOrigins, made_from_records
from stoker.jobs.trial_settings import CONFIG, masked, masked_args
from stoker.jobs.trials import TrialEnd
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from stoker.store.statements import LARGEST_BYTES, PROVENANCE, Statement, Subject, moment, parse_statement

RECEIPT = "receipt.json"
TRIALS = "receipts.jsonl"
BUILD_TYPE = "urn:stoker:job:v1"
MOST_FILES = 2_000
"""Files that a receipt lists one by one; the digest of their tree covers all of them."""
MOST_DEPENDENCIES = 2_000
MOST_NODES = 1_000
MOST_METRICS = 2_000
MOST_TRIALS = 100_000
"""A larger sweep has no receipts of its trials."""
_LARGEST_ARGS = 256 * 1024
_MOST_KNOWN = 64
_ENDS = {
    Kinds.STAGE_END: "ran",
    Kinds.STAGE_SKIPPED: "hit",
    Kinds.STAGE_FAILED: "failed",
    Kinds.STAGE_CANCELLED: "cancelled",
    Kinds.STAGE_PRUNED: "pruned",
}
_OF_A_NODE = ("key", "digest", "seconds", "peak_rss_bytes", "peak_gpu_bytes", "devices", "cause", "message", "metrics")


@frozen
class ReceiptScope:
    """Which part of a job a receipt is about: the job itself, or one of its trials."""

    spec: JobSpec
    nodes: Sequence[str]
    """Of the plan; instances of a fan-out belong to their node."""
    results: Sequence[str]
    """The node whose result is the job's, then those that the plan keeps."""
    state: str
    error: Mapping[str, Any] | None
    metrics: Mapping[str, Any]
    out: str
    """The folder of its results as plain files; empty if there is none."""
    code: Mapping[str, str]
    """Digest of each file of its program."""
    ended_s: float
    seconds: float | None


class JobReceipts:
    """Makes the receipts of one run. `hear` listens to its journal; trials come from the thread that ends them."""

    def __init__(
        self,
        folder: JobFolder,
        attempt: Attempt,
        store: LocalStore | None,
        *,
        papers: Mapping[str, bytes],
        code: Mapping[str, str] | None = None,
    ) -> None:
        """`papers` are the files that record the request (`JobFolder.begin`), `code` the digests of a program's files.

        Without a store nothing has a result.
        """
        self.folder = folder
        self._code = code or {}
        self._attempt = attempt
        self._store = store
        self._config = digest_bytes(papers[CONFIG]) if CONFIG in papers else ""
        # By node of the plan, then by name: instances of a fan-out have names of their own.
        self._ended: dict[str, dict[str, dict[str, Any]]] = {}
        self._known: dict[str, Record] = {}
        self._lines: int | None = None
        self._trials = 0
        self._machine: dict[str, Any] = {}

    def hear(self, event: Event, _at_s: float, _seq: int) -> None:
        """Note how a node ended."""
        ending = _ENDS.get(event.kind)
        if ending is None:
            return
        fields, name = event.fields, str(event.fields["node"])
        facts = {known: fields[known] for known in _OF_A_NODE if fields.get(known)}
        if ending == "failed" and fields.get("cause") == "diverged":
            ending = "diverged"
        self._ended.setdefault(name.partition("[")[0], {})[name] = {"ending": ending, **facts}

    def add_trial(
        self, end: TrialEnd, *, out: str | None, ended_s: float, code: Mapping[str, str] | None = None
    ) -> None:
        """Append the receipt of a trial; `code` are its program's files as it ran them, if not those of the job."""
        self._trials += 1
        if self._trials > MOST_TRIALS:
            return
        is_bad = end.state in ("failed", "cancelled")
        scope = ReceiptScope(
            spec=end.trial.spec,
            nodes=end.trial.nodes.nodes,
            results=(end.trial.nodes.final, *end.trial.nodes.keep),
            state=end.state,
            error={"cause": end.cause, "message": end.message} if is_bad else None,
            metrics=end.metrics,
            out=out or "",
            code=self._code if code is None else code,
            ended_s=ended_s,
            seconds=end.seconds,
        )
        path = os.path.join(self.folder.path, TRIALS)
        with translated(path):
            if self._lines is None:
                self._lines = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            line = self._statement(scope).to_bytes(indent=None)
            write_all(self._lines, line, os.fstat(self._lines).st_size)

    def write(self, end: JobEnd, *, trials: Sequence[TrialEnd] = ()) -> None:
        """Write the job's receipt, durably with the end that the caller writes next, after those of its trials."""
        listed: list[dict[str, Any]] = []
        if self._lines is not None:
            path = os.path.join(self.folder.path, TRIALS)
            with translated(path):
                sync_descriptor(self._lines)
                os.close(self._lines)
                self._lines = None
                listed.append({"name": TRIALS, "digest": {"sha256": _sha256(path)}})
        scope = ReceiptScope(
            spec=self._attempt.spec,
            nodes=() if trials else tuple(self._ended),
            results=() if trials else end.parts,
            state=str(end.state),
            error=end.error,
            metrics={} if trials else self._metrics(),
            out=end.out or "",
            code=self._code,
            ended_s=end.ended_s,
            seconds=end.elapsed_s,
        )
        statement = self._statement(scope, trials=trials, byproducts=listed)
        write_file(os.path.join(self.folder.path, RECEIPT), statement.to_bytes(), is_followed=True)

    def _metrics(self) -> dict[str, Any]:
        """Return the last value of each metric, those of known results from their records."""
        found: dict[str, Any] = {}
        for facts in [facts for named in self._ended.values() for facts in named.values()]:
            record = self._record(facts) if facts["ending"] == "hit" else None
            found |= facts.get("metrics") or (record.body.get("metrics") if record is not None else None) or {}
        return found

    def _statement(
        self, scope: ReceiptScope, *, trials: Sequence[TrialEnd] = (), byproducts: Sequence[Mapping[str, Any]] = ()
    ) -> Statement:
        # Copied: other nodes may end meanwhile.
        ended = {name: facts for node in scope.nodes for name, facts in list(self._ended.get(node, {}).items())}
        records = {name: record for name, facts in ended.items() if (record := self._record(facts)) is not None}
        origins = made_from_records(records.values())
        subjects, files = self._subjects(scope, ended, records, trials)
        dependencies = list(dependencies_of(scope.spec, scope.code, origins))
        fleet = self._attempt.options.get("fleet")
        omitted = {
            "subject": max(0, files - MOST_FILES),
            "resolvedDependencies": max(0, len(dependencies) - MOST_DEPENDENCIES),
            "stoker_nodes": max(0, len(ended) - MOST_NODES),
            "trials": max(0, self._trials - MOST_TRIALS),
        }
        predicate: dict[str, Any] = {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _parameters(scope.spec),
                "internalParameters": _present({"job": scope.spec.id, "config": self._config}),
                "resolvedDependencies": dependencies[:MOST_DEPENDENCIES],
            },
            "runDetails": {
                "builder": {
                    "id": str(fleet.get("worker", "")) if isinstance(fleet, dict) else self._hardware()["host"],
                    "version": self._versions(origins, records.values()),
                },
                "metadata": {
                    "invocationId": self._invocation(scope.spec),
                    "startedOn": moment(self._started_s(scope)),
                    "finishedOn": moment(scope.ended_s),
                },
                "byproducts": list(byproducts),
            },
            "stoker_state": scope.state,
            "stoker_error": None if scope.error is None else dict(scope.error),
            "stoker_metrics": dict(list(scope.metrics.items())[:MOST_METRICS]),
            "stoker_hardware": self._hardware(),
            "stoker_nodes": [_node(name, facts) for name, facts in list(ended.items())[:MOST_NODES]],
            "stoker_out": scope.out,
            "stoker_omitted": {name: count for name, count in omitted.items() if count},
        }
        return Statement(subject=subjects, predicate_type=PROVENANCE, predicate=_present(predicate))

    def _subjects(
        self,
        scope: ReceiptScope,
        ended: Mapping[str, Mapping[str, Any]],
        records: Mapping[str, Record],
        trials: Sequence[TrialEnd],
    ) -> tuple[tuple[Subject, ...], int]:
        """Return what was made, and how many files there are; of a job without a result the job itself."""
        job = Subject(name=scope.spec.shown, digest={"stokerJob": scope.spec.id})
        if trials:
            made = [
                Subject(name=one.trial.spec.label, digest={"stokerTree": one.digest}) for one in trials if one.digest
            ]
            return (tuple(made[:MOST_FILES]) or (job,)), len(made)
        if scope.state != "completed":
            return (job,), 0
        trees: list[Subject] = []
        files: list[Subject] = []
        for name, facts in ended.items():
            node = name.partition("[")[0]
            if node not in scope.results or not facts.get("digest"):
                continue
            below = "" if name == scope.results[0] else name
            trees.append(Subject(name=below or ".", digest={"stokerTree": str(facts["digest"])}))
            if name in records:
                entries = [entry for entry in records[name].tree.entries if entry.link_to is None]
                files += [
                    Subject(name="/".join(filter(None, (below, entry.path))), digest={"sha256": entry.sha256})
                    for entry in entries
                ]
        return (*trees, *files[:MOST_FILES]) or (job,), len(files)

    def _record(self, facts: Mapping[str, Any]) -> Record | None:
        """Return the record of a node's result; None if there is none, or a later run replaced it."""
        key = facts.get("key")
        if not key or self._store is None or facts["ending"] not in ("ran", "hit"):
            return None
        known = self._known.get(key)
        if known is None:
            found = self._store.peek(Digest(key))
            if not isinstance(found, Record) or found.digest != facts.get("digest", found.digest):
                return None
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = found
        return known

    def _hardware(self) -> dict[str, Any]:
        if not self._machine:
            self._machine = _present({**surroundings(), "memory_bytes": memory_total_bytes()})
        return self._machine

    def _versions(self, origins: ResultOrigins, records: Iterable[Record]) -> dict[str, Any]:
        """Return the versions of what a result was made with, and the digest of all packages of its environment."""
        found = {name: set(values) for name, values in origins.environment.items()}
        for record in records:
            manifest = _mapping(record.body.get("manifest"))
            argv = manifest.get("argv")
            facts = {**_mapping(manifest.get("frameworks")), "driver": manifest.get("driver")}
            facts |= {
                "packages": manifest.get("packages"),
                "program": argv[0] if isinstance(argv, list) and argv else "",
            }
            for name, value in facts.items():
                if value:
                    found.setdefault(str(name), set()).add(str(value))
        python = read_python(self.folder)
        versions = {name: ", ".join(sorted(values)) for name, values in found.items()}
        return {"stoker": self._attempt.stoker, **versions, **({"interpreter": python} if python else {})}

    def _invocation(self, spec: JobSpec) -> str:
        fleet = self._attempt.options.get("fleet")
        if isinstance(fleet, dict):
            return f"{fleet.get('job')}/{fleet.get('attempt')}/{fleet.get('epoch')}"
        return f"{self._attempt.id}/{spec.number}" if spec.number and spec.label else self._attempt.id

    def _started_s(self, scope: ReceiptScope) -> float:
        if scope.spec is self._attempt.spec or scope.seconds is None:
            return self._attempt.started_s
        return max(self._attempt.started_s, scope.ended_s - scope.seconds)


def dependencies_of(spec: JobSpec, files: Mapping[str, str], origins: ResultOrigins) -> Iterator[dict[str, Any]]:
    """Return what a job was made from: code, files and folders that it read, inputs that came with it.

    `files` are those of its program, with their digests.
    """
    if spec.commit:
        yield {"name": "commit", "uri": f"git:{spec.commit}"}
    if spec.code_tree:
        yield {"name": "code tree", "digest": {"stokerTree": spec.code_tree}}
    code = {**{name: {digest} for name, digest in {**spec.code, **files}.items()}, **origins.code}
    for name, digest in [(name, digest) for name, digests in sorted(code.items()) for digest in sorted(digests)]:
        if not name.endswith(" (version)"):
            yield {"name": f"code: {name}", "digest": named_digest(digest, other="stokerCode")}
        elif digest:
            yield {"name": f"code: {name}", "annotations": {"version": digest}}
    yield from _data_of(spec, origins)
    for one in spec.inputs:
        if one.tree:
            yield {"name": f"input: {one.where}", "digest": {"stokerTree": one.tree}}
        elif one.repo:
            yield {"name": f"input: {one.where}", "uri": f"hub:{one.repo}"}


def _data_of(spec: JobSpec, origins: ResultOrigins) -> Iterator[dict[str, Any]]:
    """Return the files and folders among a job's arguments, then what else its stages read."""
    seen = set()
    for name, declared in sorted(spec.identity.items()):
        for path, digest in contents_of(declared, spec.args.get(name)):
            seen.add(digest)
            yield {"name": f"data: {name}", "uri": f"file:{path}", "digest": named_digest(digest)}
    for name, digests in sorted(origins.data.items()):
        for digest in sorted(digests - seen):
            yield {"name": f"data: {name}", "digest": named_digest(digest)}


def named_digest(text: str, *, other: str = "stokerContent") -> dict[str, str]:
    """Return a digest under the name of what it is of: `sha256:…` of bytes, `tree:…` of a folder; else `other`."""
    kind, found, value = text.partition(":")
    names = {"sha256": "sha256", "tree": "stokerTree", "repo": "stokerRepository"}
    return {names[kind]: value} if found and kind in names else {other: text}


def _parameters(spec: JobSpec) -> dict[str, Any]:
    args: Any = masked_args(spec.recipe, spec.args)
    text = dumps(args).encode()
    if len(text) > _LARGEST_ARGS:
        args = {"sha256": digest_bytes(text), "size_bytes": len(text)}
    point = {name: masked(spec.recipe, name, value) for name, value in spec.point.items()}
    about = {"name": spec.shown, "recipe": spec.recipe, "schema_version": spec.schema_version}
    return {**about, "args": args, **_present({"point": point, "label": spec.label, "seed": spec.seed})}


def _node(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"node": name, **{key: value for key, value in facts.items() if key != "metrics"}}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def _sha256(path: str) -> str:
    from stoker.store.trees import hash_file  # noqa: PLC0415 - for sweeps alone

    return hash_file(path)[0]


def write_end_receipt(folder: JobFolder, attempt: Attempt, end: JobEnd) -> None:
    """Write the receipt of a job without a result, which could not start or was stopped at once. Never raises."""
    with suppress(StokerError, OSError):
        JobReceipts(folder, attempt, None, papers={}).write(end)


# Receipts of a job, read back.


def read_job_receipt(folder: JobFolder, trial: int | None = None) -> bytes:
    """Return the bytes of a job's receipt, or of that of one trial. Raises `NotFound` with the reason."""
    name = folder.spec().name
    if trial is None:
        # Without an end its process was killed between the two: the job counts as failed.
        data = _content(folder, RECEIPT) if folder.ended() is not None else b""
        if not data:
            raise NotFound(f"job {name} has no receipt", hint=_why_none(folder))
        return data
    # A trial's number ends its name; most lines need not be parsed.
    end = f'/{trial}"'.encode()
    for line in _lines(folder):
        if end in line and _number(line) == trial:
            return line + b"\n"
    raise NotFound(
        f"trial {name}/{trial} has no receipt", hint="a trial gets one when it ends; a killed job writes none"
    )


def read_synced_receipt(folder: JobFolder) -> bytes:
    """Return the bytes of a receipt in a copy of an attempt's folder, with or without its end; empty: none."""
    return _content(folder, RECEIPT)


def job_of(statement: Statement) -> str:
    """Return the id of the job that a receipt is about."""
    parameters = _mapping(_mapping(statement.predicate.get("buildDefinition")).get("internalParameters"))
    return str(parameters.get("job", ""))


def _why_none(folder: JobFolder) -> str:
    state, why = folder.state()
    if state == "running":
        return "it is written when the job ends"
    return f"{why}: it could not write one" if why else "jobs of earlier versions have none"


def _lines(folder: JobFolder) -> Iterable[bytes]:
    path = os.path.join(folder.path, TRIALS)
    try:
        with open(path, "rb") as file:
            while line := file.readline(LARGEST_BYTES):
                yield line.rstrip(b"\n")
    except FileNotFoundError:
        return


def _number(line: bytes) -> int | None:
    """Return the number of the trial that a line is about; None if it is no receipt."""
    try:
        statement = parse_statement(line, TRIALS)
    except NotVerified:
        return None
    return trial_of(statement)


def trial_of(statement: Statement) -> int | None:
    """Return the number of the trial that a receipt is about."""
    build = statement.predicate.get("buildDefinition")
    parameters = build.get("externalParameters") if isinstance(build, dict) else None
    name = parameters.get("name") if isinstance(parameters, dict) else None
    number = str(name).rpartition("/")[2]
    return int(number) if number.isascii() and number.isdigit() else None


def _content(folder: JobFolder, name: str) -> bytes:
    try:
        return read_regular(os.path.join(folder.path, name), LARGEST_BYTES)
    except OSError:
        return b""


def receipt_digest(folder: JobFolder) -> str:
    """Return the digest of the bytes of a job's receipt; empty if it has none."""
    data = _content(folder, RECEIPT)
    return digest_bytes(data) if data else ""
