"""What is said of an attempt that completed: its bundle, what it measured, its code, and where it ran."""

from __future__ import annotations

from typing import Any

from stoker.plan.status import read_status
from stoker.store.local import LocalStore
from stoker.wire.leasing import Finish, Grant
from stoker.worker.config_paper import read_config
from stoker.worker.job_folder import JobFolder
from stoker.worker.keeper.ending import AttemptEnd
from stoker.worker.preparing.here import data_facts
from stoker.worker.python_paper import read_python
from stoker.worker.reordering import trials_of_job
from stoker.worker.shipping.sending import Archive
from stoker.worker.story import tell
from stoker.worker.trials import KnownMetrics, TrialEnd, end_of


def finish_of(
    grant: Grant, folder: JobFolder, end: AttemptEnd, archive: Archive, *, store: LocalStore, worker: str
) -> Finish:
    """Give the word that points the job at its bundle, which lies with the coordinator already."""
    trial = trials_of_job(folder)[0]
    told = KnownMetrics(store).added_to(end_of(trial, tell(read_status(folder.status_path)), frozenset()))
    code = read_config(folder).get("code")
    return Finish(
        attempt=grant.attempt,
        epoch=grant.epoch,
        generation=grant.generation,
        tree=archive.tree,
        archive_sha256=archive.sha256,
        size_bytes=archive.size_bytes,
        metrics={name: float(value) for name, value in told.metrics.items()},
        seconds=max(0.0, end.seconds),
        code={str(name): str(digest) for name, digest in code.items()} if isinstance(code, dict) else grant.code,
        facts=_facts(grant, folder, told, worker),
    )


def _facts(grant: Grant, folder: JobFolder, told: TrialEnd, worker: str) -> dict[str, Any]:
    facts = {
        "worker": worker,
        "run": folder.attempt,
        "devices": list(grant.devices),
        "environment": folder.environment(),
        "python": read_python(folder),
        "code_tree": grant.code_tree,
        "commit": grant.commit,
        "data": data_facts(grant),
        "was_known": told.is_kept,
        "peak_bytes": told.peak_bytes,
        "peak_gpu_bytes": told.peak_gpu_bytes,
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [], {}, False)}
