"""Routes about manifests that are sent as text, and about jobs that are submitted again with other values.

Both are checked in a child process (`request_checks`), one at a time; what they make is submitted as all others are.
"""

from __future__ import annotations

import shlex

from fastapi import Request, Response

from stoker.coordinator.http.access import Who, changes_only, owner_of, recorded
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import Ref, RouteTable, answer, body_of, headers_of, read_body, read_message
from stoker.coordinator.http.job_routes import JobRoutes
from stoker.coordinator.http.request_checks import RequestChecks, SentManifest
from stoker.coordinator.queue.commands import RequeueJobs
from stoker.coordinator.storage.tree_storage import CoordinatorTrees
from stoker.core.errors import Diagnostic, InvalidInput, InvalidManifest, NotFound
from stoker.core.job import JobSpec, JobState
from stoker.core.leases import Principal
from stoker.jobs.repeated_job import (
    RepeatRequest,
    command_line,
    differences,
    name_again,
    program_words,
    repeat_line,
    settings_to_change,
    words_of_line,
)
from stoker.jobs.sent_manifest import SentDiagnostic
from stoker.protocol.job_messages import JOB_BODY, MOST_SOURCE, Submission
from stoker.protocol.sent_messages import (
    MOST_MANIFEST_BYTES,
    FaultView,
    ManifestEntry,
    ManifestRequest,
    ManifestView,
    RepeatForm,
    RepeatJobRequest,
    RepeatSetting,
    RepeatView,
)

_SHOWN = 12


class SentRoutes:
    """Routes about manifests and repeated jobs."""

    def __init__(
        self, context: ServiceContext, contents: CoordinatorTrees, jobs: JobRoutes, checks: RequestChecks | None = None
    ) -> None:
        self._context = context
        self._contents = contents
        self._jobs = jobs
        self._checks = checks or RequestChecks()
        self.router = RouteTable("jobs")
        add = self.router.add
        add(
            "/v1/manifests",
            self.manifest,
            methods=["POST"],
            response_model=ManifestView,
            openapi_extra=body_of(ManifestRequest),
        )
        add("/v1/jobs/{ref}/again", self.form, response_model=RepeatForm)
        add("/v1/jobs/{ref}/again", self.repeat, methods=["POST"], response_model=RepeatView)

    async def manifest(self, request: Request, who: Who) -> Response:
        """Check a manifest and submit its jobs, all or none; with `dry_run`, say what would be submitted.

        No file is read: jobs that need code, data or an environment of the manifest's folder are named with the reason,
        and nothing is submitted. A dry run returns all errors with their lines; else they are an error response.
        """
        body = await read_body(request.receive, headers_of(request.scope), MOST_MANIFEST_BYTES)
        # To its end: its jobs are in memory until then.
        async with self._context.checks.of(owner_of(who)):
            return await self._manifest(body, who)

    async def _manifest(self, body: bytes, who: Principal) -> Response:
        asked = await self._context.compute(read_message, ManifestRequest, body)
        known_of = self._context.reader.known
        found = await self._context.compute(self._checks.manifest, asked.name, asked.text, known_of)
        command = f"stoker submit {shlex.quote(asked.name)}"
        view = _manifest_view(asked.name, command, found)
        if found.submission is None:
            if not asked.dry_run:
                raise _refused(view, command)
            return answer(view)
        submission = found.submission.model_copy(
            update={
                "source": f"web:{who.name}/{asked.name}"[:MOST_SOURCE],
                "submitter": asked.submitter,
                "on_changed_code": asked.on_changed_code,
                "dry_run": asked.dry_run,
            }
        )
        submitted = await self._jobs.submit_checked(submission, who)
        return answer(view.model_copy(update={"answer": submitted}))

    async def form(self, ref: Ref) -> Response:
        """Return which values of a job can be different if it is submitted again."""
        _, spec = await self._spec(ref)
        settings = tuple(RepeatSetting(path=path, text=text) for path, text in settings_to_change(spec).items())
        form = RepeatForm(
            job=spec.shown,
            name=name_again(spec),
            settings=settings,
            program=command_line(program_words(spec)),
            command=repeat_line(spec.shown, RepeatRequest()),
        )
        return answer(form)

    async def repeat(self, ref: Ref, who: Who, asked: RepeatJobRequest) -> Response:
        """Submit a job again with other values: the same code, data and environment, which are stored here.

        With `dry_run`, say what would be submitted: all errors are in the response then.
        """
        job, spec = await self._spec(ref)
        command = ""
        try:
            words = None if asked.program is None else words_of_line(asked.program)
            request = RepeatRequest(changes=asked.changes, words=words, name=asked.name)
            command = repeat_line(spec.shown, request)
            async with self._context.checks.of(owner_of(who)):
                made = await self._context.compute(self._checks.repeat, spec, request)
        except InvalidInput as error:
            if not asked.dry_run:
                raise
            return answer(RepeatView(job=asked.name or name_again(spec), command=command, faults=_faults(error.faults)))
        if spec.code_tree and not await self._context.keep(self._contents.has, spec.code_tree):
            hint = "`stoker submit` in its folder sends it again"
            raise NotFound(f"the code of {job} is not stored any more: tree {spec.code_tree[:_SHOWN]}", hint=hint)
        submission = Submission(
            jobs=(made.spec,), submitter=asked.submitter, source=command[:MOST_SOURCE], dry_run=asked.dry_run
        )
        submitted = await self._jobs.submit_checked(submission, who)
        notes = made.notes
        if made.spec.id == spec.id and JobState(submitted.jobs[0].state).is_terminal:
            # The same job with other requirements, which has ended.
            notes = (*notes, f"it is the same job, which is {submitted.jobs[0].state}: it is started again")
            if not asked.dry_run:
                by = recorded(who, asked.submitter)
                await self._context.ask(RequeueJobs(jobs=(spec.id,), by=by, only_of=changes_only(who)))
        return answer(
            RepeatView(
                job=made.spec.shown,
                differs=differences(spec, made.spec),
                notes=notes,
                command=command,
                answer=submitted,
            )
        )

    async def _spec(self, ref: str) -> tuple[str, JobSpec]:
        """Return a job's name and its spec as it is stored."""
        read, reader = self._context.read, self._context.reader
        job = await read(reader.find, ref)
        raw = (await read(reader.specs, [job.seq])).get(job.seq)
        if raw is None:
            raise NotFound(f"there is no job {ref!r} any more")
        return job.name, JOB_BODY.validate_python({**raw, "id": job.id})


def _manifest_view(name: str, command: str, found: SentManifest) -> ManifestView:
    checked = found.checked
    return ManifestView(
        name=name,
        entries=tuple(
            ManifestEntry(
                name=one.name,
                line=one.line,
                does=one.does,
                count=one.count,
                faults=one.faults,
                why_not=one.why_not,
            )
            for one in checked.entries
        ),
        more=found.more,
        faults=tuple(_fault(one) for one in checked.diagnostics),
        fault_count=checked.count,
        notes=found.notes,
        command=command,
    )


def _fault(one: SentDiagnostic) -> FaultView:
    return FaultView(line=one.line, column=one.column, key=one.key, message=one.message, hint=one.hint, shown=one.shown)


def _faults(found: tuple[Diagnostic, ...]) -> tuple[FaultView, ...]:
    return tuple(FaultView(key=one.where, message=one.message, hint=one.hint, shown=one.shown) for one in found)


def _refused(view: ManifestView, command: str) -> InvalidManifest:
    """Return why a manifest can't be submitted from here."""
    places = (f"{view.name}:{one.line}:{one.column}" if one.line else "" for one in view.faults)
    faults = tuple(
        Diagnostic(": ".join(filter(None, (place, one.key))), one.message, one.hint)
        for place, one in zip(places, view.faults, strict=True)
    )
    if faults:
        message = str(faults[0]) if view.fault_count == 1 else f"{view.name} has {view.fault_count:,} errors"
        return InvalidManifest(message, faults=faults, file=view.name)
    kept = [one for one in view.entries if one.why_not]
    faults = tuple(Diagnostic(f"{view.name}:{one.line}: {one.name}", one.why_not) for one in kept)
    message = f"{len(kept)} of {len(view.entries) + view.more} jobs need the folder of {view.name}"
    return InvalidManifest(message, faults=faults, hint=f"type there: {command}", file=view.name)
