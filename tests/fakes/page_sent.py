"""Manifests and jobs again, for the fleet in memory: with faults, with jobs that need their folder, and without."""

from __future__ import annotations

from stoker.protocol.job_messages import JobSubmissionResult, SubmissionOutcome, SubmissionResponse
from stoker.protocol.sent_messages import (
    FaultView,
    ManifestEntry,
    ManifestRequest,
    ManifestView,
    RepeatForm,
    RepeatJobRequest,
    RepeatSetting,
    RepeatView,
)
from tests.fakes.monitor import MemoryMonitor
from tests.fakes.page_sweep import MARKUP


def answer(*names: str) -> SubmissionResponse:
    """What submitting new jobs of these names changes."""
    jobs = tuple(
        JobSubmissionResult(
            id=f"{at:064x}",
            name=name,
            number=0,
            outcome=SubmissionOutcome.NEW,
            state="pending",
            forecast="pending, queue position 1: expected on desk in about 10m00s",
        )
        for at, name in enumerate(names, 900)
    )
    return SubmissionResponse(jobs=jobs, counts={"new": len(jobs)}, dry_run=True)


class PageSent(MemoryMonitor):
    """Answers what the pages ask about manifests and jobs again."""

    def submit_manifest(self, request: ManifestRequest) -> ManifestView:
        command = f"stoker submit {request.name}"
        entries = [ManifestEntry(name="trees", line=1, does="tabular/gbt", count=4)]
        view = ManifestView(name=request.name, entries=tuple(entries), command=command)
        if "command" in request.text:
            why = f"its command runs code of the manifest's folder {MARKUP}"
            entries += [ManifestEntry(name=f"net{MARKUP}", line=9, does="python train.py", why_not=why)]
            return view.model_copy(update={"entries": tuple(entries)})
        if "wrong" in request.text:
            faults = (
                FaultView(line=4, column=3, key="jobs[0].hyper.lrr", message=f"no argument {MARKUP}", hint="lr?"),
                FaultView(line=7, column=1, key="jobs[0].gpus", message="is not a whole number", shown="gpus = x\n^"),
            )
            entries[0] = entries[0].model_copy(update={"faults": 2})
            return view.model_copy(update={"entries": tuple(entries), "faults": faults, "fault_count": 2})
        if not request.dry_run:
            self._act(*("manifest", request.name, request.text))
        return view.model_copy(update={"answer": answer("trees")})

    def repeat_form(self, ref: str) -> RepeatForm:
        return RepeatForm(
            job=self._find(ref).name,
            name="resnet-1",
            settings=(
                RepeatSetting(path="lr", text="0.1"),
                RepeatSetting(path="model.depth", text="4"),
                RepeatSetting(path="note", text=MARKUP),
            ),
            program="python train.py --lr {lr}",
            command=f"stoker submit --again {ref}",
        )

    def repeat(self, ref: str, request: RepeatJobRequest) -> RepeatView:
        command = " ".join(("stoker submit --again", ref, *request.changes))
        if "lr=x" in request.changes:
            return RepeatView(job="resnet-1", faults=(FaultView(key="lr", message="x is no number"),), command=command)
        if not request.dry_run:
            self._act(*("again", self._find(ref).name, request.changes, request.program))
        return RepeatView(
            job=request.name or "resnet/2", differs=request.changes, command=command, answer=answer("resnet-1")
        )
