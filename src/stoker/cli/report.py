"""`stoker report`: write what is known of a job or a sweep as one self-contained file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.api.local_job import LocalJob
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional
from stoker.cli.screens import busy, show_progress
from stoker.core.errors import MissingExtra, NotFound, Usage
from stoker.core.text import counted, format_size
from stoker.engine.metrics.metric_names import Direction
from stoker.host.durable import translated, write_file
from stoker.host.install import pip_install
from stoker.jobs.job_diff import side_of
from stoker.jobs.repeat_command import repeat_here, repeat_on_fleet
from stoker.jobs.trial_settings import read_config
from stoker.jobs.trials import trial_numbered
from stoker.views.report import ReportFacts, RunReport, report_of
from stoker.views.text_tables import near_path

if TYPE_CHECKING:
    from stoker.api.job import Job
    from stoker.jobs.comparison import JobFacts, TrialFacts

_FORMATS = (".html", ".md", ".pdf")
_MOST_DIGESTS = 500

GRAMMAR = Grammar(
    "report",
    about=(
        "Write one self-contained file about a job or a sweep: what was asked, the configuration with the origin of "
        "each value, curves, the table of trials, environment, digests, and the commands that repeat it. The end of "
        "the file's name decides the format. The same job makes the same bytes."
    ),
    positionals=(
        Positional(
            "NAME", help="a job (a name, `last`, an id), a sweep, or one of its trials (`last/3`)", completes="job"
        ),
    ),
    options=(
        Option(
            "-o",
            "--out",
            value="FILE",
            help="the file: .html, .md or .pdf (default: stoker-out/NAME/report.html); PDF needs stoker[report]",
        ),
        Option("--by", value="METRIC", help="metric to rank by (default: guessed from the names of the metrics)"),
        Option("--min", help="smaller is better (default: by the metric's name)"),
        Option("--max", help="larger is better"),
        AT,
    ),
    examples=(
        "stoker report last",
        "stoker report resnet -o resnet.html",
        "stoker report last/3 -o trial.md --by val_loss",
        "stoker report resnet -o resnet.pdf --json",
    ),
    errors=(NotFound, MissingExtra),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Write the report."""
    if given["min"] and given["max"]:
        raise Usage("--min and --max exclude each other", hint="stoker help report")
    name = given["name"] or "last"
    path = given["out"] or ""
    ending = os.path.splitext(path)[1].lower() if path else _FORMATS[0]
    if ending not in _FORMATS:
        raise Usage(
            f"{path!r} does not end with .html, .md or .pdf", hint=f"stoker report {name} -o {path or 'report'}.html"
        )
    if ending == ".pdf":
        _require_pdf()
    direction = Direction.SMALLER if given["min"] else Direction.LARGER if given["max"] else None
    job = call.lookup.job(name, given["at"])
    with show_progress(call, "reading trials", None) as progress:
        facts, trials = job.gather(progress.reach)
    with busy(call, "drawing curves and writing"):
        report = _report(job, facts, trials, by=given["by"] or "", direction=direction)
        data = _written(report, ending)
    target = call.path(path or os.path.join(call.parts.settings.out, job.result_folder, "report.html"))
    with translated(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
    write_file(target, data)
    shown = near_path(target, call.parts.settings.folder)
    call.out.object(
        {
            "job": name,
            "title": report.title,
            "file": target,
            "format": ending.removeprefix("."),
            "size_bytes": len(data),
            "sections": [section.title for section in report.sections],
        }
    )
    charts = counted(len(report.charts), "chart")
    call.out.line(f"report: {shown}  ({format_size(len(data))}, {charts})")
    return 0


def _report(
    job: Job, facts: JobFacts, trials: Sequence[TrialFacts], *, by: str, direction: Direction | None
) -> RunReport:
    chosen = None
    if isinstance(job, LocalJob) and job.stage:
        chosen = trial_numbered(facts.wanted(), job.stage, facts.spec.name)
    side = side_of(facts, chosen, label=job.ref, by=by, direction=direction, trials=trials)
    return report_of(side, _facts_of(job, facts))


def _facts_of(job: Job, facts: JobFacts) -> ReportFacts:
    if isinstance(job, LocalJob):
        ref = "/".join(filter(None, (facts.attempt.id, job.stage)))
        config = read_config(facts.folder)
        ended = facts.folder.ended()
        keys = dict(list(ended.keys.items())[:_MOST_DIGESTS]) if ended is not None else {}
        return ReportFacts(
            ref=ref,
            job_id=facts.spec.id,
            is_fleet=False,
            mode=facts.spec.mode,
            digests={"job": facts.spec.id, **{f"result of {node}": str(key) for node, key in keys.items()}},
            repeat=repeat_here(facts.spec, config, facts.attempt.options),
            warnings=tuple(facts.story.warnings) + ((facts.story.edits,) if facts.story.edits else ()),
        )
    points = job.points()
    digests = {f"result of {getattr(one, 'name', '')}": str(getattr(one, "result", "")) for one in points}
    view = job.view
    return ReportFacts(
        ref=job.ref,
        job_id=job.spec.id,
        is_fleet=True,
        mode=job.spec.mode,
        submitter=str(getattr(view, "submitter", "")),
        machine="" if len(points) > 1 else str(getattr(view, "machine", "")),
        digests={
            **({"job": job.spec.id} if len(points) == 1 else {}),
            **({"code tree": job.spec.code_tree} if job.spec.code_tree else {}),
            **{name: digest for name, digest in list(digests.items())[:_MOST_DIGESTS] if digest},
        },
        repeat=repeat_on_fleet(job.spec, job.ref),
        warnings=tuple(facts.story.warnings),
    )


def _require_pdf() -> None:
    from importlib.util import find_spec

    if find_spec("fpdf") is None:
        hint = f"{pip_install('stoker[report]')}; or write .html or .md"
        raise MissingExtra("a PDF needs fpdf2, which is not installed", hint=hint, extra="report")


def _written(report: RunReport, ending: str) -> bytes:
    if ending == ".pdf":
        # Importing it is slow.
        from stoker.views.report_pdf import report_pdf

        return report_pdf(report)
    from stoker.views.report_formats import report_markdown, report_page

    text = report_page(report) if ending == ".html" else report_markdown(report)
    return text.encode(errors="replace")
