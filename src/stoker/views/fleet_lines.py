"""Jobs and machines of a fleet as text: a row for each in a table, a line for each event."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stoker.core.events import FleetKinds
from stoker.core.frozen import frozen
from stoker.core.job import EnvironmentChoice, JobSpec, JobState
from stoker.core.leases import Role
from stoker.core.text import counted, format_duration, format_size, one_line, outside
from stoker.protocol.discovery import DEFAULT_PORT
from stoker.views.stage_lines import metrics_text, number
from stoker.views.telemetry_lines import short_text
from stoker.views.text_tables import Signs, ago, span, table, value_text

if TYPE_CHECKING:
    from stoker.protocol.enrolment_messages import InviteResponse, TokenView
    from stoker.protocol.operator_messages import HistoryCheck, WebhookView
    from stoker.protocol.view_messages import (
        AttemptView,
        FleetStatus,
        JobDetails,
        JobView,
        Leaderboard,
        LeaderRow,
        MachineView,
        SymptomView,
    )


# Invitations, tokens and memberships of a fleet, as lines of text.

_USUAL_PORT = f":{DEFAULT_PORT}"
TOKEN_HEADER = ("id", "name", "role", "created", "last used", "expires", "by")


def invited_lines(invited: InviteResponse, *, now_s: float) -> list[str]:
    """Return the purpose of an invitation and the commands that accept it, one per host name."""
    is_machine = invited.role is Role.WORKER
    who = "a machine" if is_machine else f"a user with role {invited.role}"
    named = f" called {invited.name}" if invited.name else ""
    lines = [
        f"{invited.code} invites {who}{named}, once, within {span(invited.expires_s - now_s)}; run there:",
        *(f"  {line}" for line in join_lines(invited)),
    ]
    if len(lines) > 2:
        lines.append("(use the host name that is reachable there)")
    return lines


def join_lines(invited: InviteResponse) -> list[str]:
    """Return the commands that accept an invitation, the best one first."""
    names = (name.removesuffix(_USUAL_PORT) for name in invited.names or (invited.url.partition("://")[2],))
    how = "" if invited.role is Role.WORKER else " --operator"
    return [f"stoker join{how} {invited.code}@{name}" for name in names]


def token_row(token: TokenView, now_s: float) -> list[str]:
    """Return a token as a row of a table."""
    return [
        token.id,
        token.name,
        str(token.role),
        ago(token.issued_s, now_s),
        "never" if token.last_used_s is None else ago(token.last_used_s, now_s),
        _end(token, now_s),
        token.by,
    ]


def day(at_s: float | None) -> str:
    """Return a time as a date, or `no end`."""
    return "no end" if at_s is None else f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M}"


def _end(token: TokenView, now_s: float) -> str:
    if token.revoked_s is not None:
        return f"revoked {ago(token.revoked_s, now_s)}"
    if token.expires_s is None:
        return "never"
    if token.expires_s <= now_s:
        return f"expired {ago(token.expires_s, now_s)}"
    return f"in {span(token.expires_s - now_s)}"


# The health of machines: symptoms with hints, and the reports of their workers.

HOOK_HEADER = ("id", "url", "as", "events", "jobs", "created", "state", "by")
_CLOCK_OFF_S = 2.0
"""Smaller differences may come from the network."""
_SHOWN = 10


def symptom_lines(symptoms: Sequence[SymptomView], now_s: float) -> Iterator[str]:
    """Yield the first symptoms, each with its hint."""
    for one in symptoms[:_SHOWN]:
        where = f"{one.machine} {one.device}" if one.device else one.machine
        yield one_line(f"! {where} {one.symptom} (since {ago(one.since_s, now_s)}): {one.message}")
        if one.hint:
            yield f"    {one_line(one.hint)}"
    if len(symptoms) > _SHOWN:
        yield f"and {len(symptoms) - _SHOWN} more symptoms: stoker machines show NAME"


def health_rows(machine: MachineView, now_s: float) -> Iterator[list[str]]:
    """Yield rows for a machine's version, clock, certificate, environments and symptoms."""
    report = machine.report
    skew = "; not the coordinator's version" if machine.is_skewed else ""
    protocol = f", protocol {report['protocol']}" if report.get("protocol") else ""
    yield ["Stoker", f"{machine.version or 'unknown version'}{protocol}{skew}"]
    if isinstance(offset_s := report.get("offset_s"), int | float):
        yield ["clock", _offset(float(offset_s))]
    if machine.certificate_until_s is not None:
        yield ["certificate", f"until {day(machine.certificate_until_s)}"]
    ready = machine.environments.get("environments") or ()
    impossible = machine.environments.get("impossible") or {}
    if ready or impossible:
        cannot = f"; {len(impossible)} can't be built there" if impossible else ""
        yield ["environments", f"{len(ready)} ready{cannot}"]
    if machine.trees:
        yield ["trees", str(machine.trees)]
    for one in machine.symptoms:
        where = f"{one.device}: " if one.device else ""
        yield ["symptom", f"{one.symptom} since {ago(one.since_s, now_s)}: {where}{one.message}; {one.hint}"]
    findings = [line for line in report.get("findings", ()) if isinstance(line, dict)]
    described = [line for line in findings if line.get("verdict") != "ok"]
    if findings:
        at = f" ({ago(float(report.get('at_s', now_s)), now_s)})"
        yield ["doctor", f"{len(findings)} checks, {len(described)} of them not ok{at}"]
    for line in described:
        hint = f"; {line['hint']}" if line.get("hint") else ""
        yield [f"{line.get('name', '')} (doctor)", f"{line.get('verdict', '')}: {line.get('message', '')}{hint}"]


def hook_row(hook: WebhookView, now_s: float) -> list[str]:
    """Return a webhook as a row of a table."""
    if hook.closed_s is not None:
        state = f"closed {ago(hook.closed_s, now_s)}: {hook.last_error}"
    elif hook.failures:
        times = "once" if hook.failures == 1 else f"{hook.failures} times"
        state = f"failed {times}: {hook.last_error}"
    else:
        state = "open"
    described = ", ".join(hook.on) or "default"
    return [
        str(hook.id),
        hook.url,
        hook.format,
        described,
        str(hook.jobs or "all"),
        ago(hook.made_s, now_s),
        one_line(state),
        hook.by,
    ]


def _offset(offset_s: float) -> str:
    if abs(offset_s) < _CLOCK_OFF_S:
        return "same as the coordinator's"
    return f"{format_duration(abs(offset_s))} {'ahead of' if offset_s > 0 else 'behind'} the coordinator's"


JOB_HEADER = ("job", "state", "where", "when", "took", "id", "")
_SHORT_ID = 12
_LONGEST_WHY = 200


def job_row(view: JobView, now_s: float) -> list[str]:
    """Return a fleet job as a row."""
    return [
        view.name,
        state_text(view),
        view.machine,
        ago(view.started_s or view.submitted_s, now_s),
        span(took_s(view, now_s)),
        view.id[:_SHORT_ID],
        "  ".join(filter(None, (view.recipe, view.label, progress_text(view), one_line(view.why, _LONGEST_WHY)))),
    ]


LOCAL_JOB_HEADER = ("job", "state", "started", "took", "cached+ran", "id", "recipe")


def local_job_row(job: Mapping[str, Any], now_s: float) -> list[str]:
    """Return a local job as a row of a list without fleet jobs."""
    return [
        job["name"],
        job["state"],
        ago(job["started_s"], now_s) if job["started_s"] else "",
        span(job["elapsed_s"]),
        "" if job["hits"] is None else f"{job['hits']}+{job['ran']}",
        job["attempt"],
        job["recipe"] + (f"  {one_line(job['why'], _LONGEST_WHY)}" if job["why"] else ""),
    ]


def local_row(job: Mapping[str, Any], now_s: float) -> list[str]:
    """Return a local job as a row of a list with fleet jobs."""
    when = ago(job["started_s"], now_s) if job["started_s"] else ""
    what = "  ".join(filter(None, (str(job["recipe"]), one_line(str(job["why"] or ""), _LONGEST_WHY))))
    return [job["name"], job["state"], "here", when, span(job["elapsed_s"]), job["attempt"], what]


def state_text(view: JobView) -> str:
    """Return a job's state; `cancelling` once that was requested."""
    return "cancelling" if view.is_cancelling else view.state


def took_s(view: JobView, now_s: float) -> float | None:
    """Return the duration of a job, so far or in total."""
    if view.started_s is None or view.state == "pending":
        return None
    # A job that was queued again still has the end of its last attempt.
    is_over = view.ended_s is not None and view.state not in ("claimed", "running")
    return max(0.0, (view.ended_s if is_over and view.ended_s is not None else now_s) - view.started_s)


def progress_text(view: JobView) -> str:
    """Return the progress or the metrics of a job."""
    step = ""
    if view.step is not None and view.state == "running":
        step = f"{100 * view.step // view.of} %" if view.of else f"step {view.step:,}"
    says = view.says if view.state in ("claimed", "running") and not view.metrics else ""
    return "  ".join(
        filter(None, (step, metrics_text(view.metrics, is_over=view.state != "running"), one_line(says, _LONGEST_WHY)))
    )


def attempt_row(attempt: AttemptView, now_s: float) -> list[str]:
    """Return an attempt as a row."""
    began_s = attempt.started_s or attempt.granted_s
    ended_s = attempt.ended_s if attempt.ended_s is not None else now_s
    # A failure of the program needs no cause.
    cause = f" ({attempt.cause})" if attempt.cause not in ("", "user", attempt.ending) else ""
    state = "running" if attempt.started_s is not None else "preparing"
    return [
        str(attempt.number),
        attempt.machine,
        f"{attempt.ending or state}{cause}",
        ago(began_s, now_s),
        span(max(0.0, ended_s - began_s)),
        one_line(attempt.message, _LONGEST_WHY),
    ]


def machine_row(machine: MachineView, now_s: float) -> list[str]:
    """Return a machine as a row."""
    capability = machine.capability
    state = machine.state
    if machine.until_s is not None and machine.until_s > now_s:
        state += f" for {format_duration(machine.until_s - now_s)}"
    ram = machine.ram_bytes or capability.get("ram_total_bytes")
    leaves = _leaves(machine, now_s)
    described = [
        devices_text(machine.devices),
        short_text(machine.devices),
        machine.why,
        leaves,
        ", ".join(machine.jobs),
        *machine.drift,
    ]
    return [
        machine.name,
        state,
        f"{machine.held} of {machine.slots}",
        str(machine.cores or capability.get("cpu_cores", "")),
        format_size(ram) if isinstance(ram, int) else "",
        ago(machine.last_seen_s, now_s),
        one_line("; ".join(filter(None, described))),
    ]


MACHINE_HEADER = ("machine", "state", "jobs", "cores", "RAM", "last seen", "")


def machine_lines(machine: MachineView, now_s: float) -> list[str]:
    """Return the details of a machine as lines."""
    capability = machine.capability
    until = machine.until_s
    span_text = f" for {format_duration(until - now_s)}" if until is not None and until > now_s else ""
    system = " ".join(str(capability[name]) for name in ("os", "arch") if capability.get(name))
    ram = capability.get("ram_total_bytes")
    cores = capability.get("cpu_cores")
    rows = [
        ["state", f"{machine.state}{span_text}{f': {machine.why}' if machine.why else ''}"],
        ["jobs", ": ".join(filter(None, (f"{machine.held} of {machine.slots}", ", ".join(machine.jobs))))],
        ["last seen", ago(machine.last_seen_s, now_s)],
        *([["end", leaves]] if (leaves := _leaves(machine, now_s)) else []),
        ["system", system],
        ["cpu", str(capability.get("cpu_name") or "unknown")],
        ["cores", _counts(machine.cores, cores, str)],
        ["RAM", _counts(machine.ram_bytes, ram, format_size)],
        *(["device", _device_text(device)] for device in machine.devices),
        *health_rows(machine, now_s),
        *(["drift", one] for one in machine.drift),
    ]
    return [machine.name, *table([[name, one_line(text)] for name, text in rows], indent="  ")]


def _leaves(machine: MachineView, now_s: float) -> str:
    """Return when a machine leaves; "" if unknown."""
    return "" if machine.ends_s is None else f"leaves in {format_duration(max(0.0, machine.ends_s - now_s))}"


def _counts(offered: int | None, found: object, text: Callable[[int], str]) -> str:
    """Return the offered amount, and the detected one if it differs."""
    there = text(found) if isinstance(found, int) and found else "unknown"
    if not offered or text(offered) == there:
        return there
    return f"{text(offered)} for jobs (detected {there})"


def _device_text(device: Mapping[str, Any]) -> str:
    holds = ", ".join(map(str, device.get("jobs") or ()))
    uuid = str(device.get("uuid", ""))
    return "; ".join(filter(None, (devices_text([device]), uuid, f"used by {holds}" if holds else "")))


def devices_text(devices: Sequence[Mapping[str, Any]]) -> str:
    """Return the devices of a machine and which are closed; equal ones together."""
    described = Counter(map(_one_device_text, devices))
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in described.items())


def _one_device_text(device: Mapping[str, Any]) -> str:
    name = str(device.get("name") or device.get("type") or device.get("uuid", ""))
    total = device.get("total_bytes")
    closed = device.get("closed")
    size = f" {format_size(total)}" if isinstance(total, int) else ""
    return f"{name}{size}{f' ({closed})' if closed else ''}"


def leader_table(rows: Sequence[LeaderRow], metric: str, *, columns: int) -> list[str]:
    """Return a leaderboard as lines."""
    shown = [
        [str(row.place), row.name, row.label, number(row.value), span(row.seconds), row.machine, row.recipe]
        for row in rows
    ]
    return table(shown, header=("", "job", "point", metric, "took", "machine", "recipe"), columns=columns)


def event_text(event: Mapping[str, Any]) -> str:
    """Return one event as a line, without its time."""
    kind = str(event.get("kind", ""))
    name = str(event.get("name") or event.get("machine") or "")
    on = f" on {event['machine']}" if event.get("machine") and event.get("name") else ""
    text = _EVENT_TEXTS.get(kind, kind.replace("_", " "))
    if kind == FleetKinds.JOB_CHECKPOINT and event.get("step") is not None:
        text += f" of step {event['step']}"
    by = f" by {one_line(str(event['by']), _LONGEST_WHY)}" if event.get("by") else ""
    why = one_line(str(event.get("why") or event.get("message") or event.get("cause") or ""), _LONGEST_WHY)
    back = ", back in the queue" if kind == FleetKinds.JOB_EXPIRED and event.get("to") == "pending" else ""
    return outside(
        f"{name} {text}{by}{on}{back}{f': {why}' if why else ''}{'; not a failed attempt' if back else ''}".strip()
    )


def story_texts(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a job's events as lines, oldest first; a start after a checkpoint names its step."""
    texts, step = [], None
    for event in events:
        kind, text = event.get("kind"), event_text(event)
        if kind == FleetKinds.JOB_CHECKPOINT:
            step = event.get("step")
        elif kind == FleetKinds.JOB_REQUEUED:
            step = None
        elif kind == FleetKinds.JOB_STARTED and step is not None:
            text += outside(f", with the checkpoint of step {step}")
        texts.append(text)
    return texts


_EVENT_TEXTS = {
    FleetKinds.JOB_SUBMITTED: "submitted",
    FleetKinds.JOB_GRANTED: "granted",
    FleetKinds.JOB_STARTED: "started",
    FleetKinds.JOB_CHECKPOINT: "saved a checkpoint",
    FleetKinds.JOB_FINISHED: "completed",
    FleetKinds.JOB_FAILED: "failed",
    FleetKinds.JOB_RETRYING: "failed; retrying",
    FleetKinds.JOB_RELEASED: "released",
    FleetKinds.JOB_DECLINED: "declined",
    FleetKinds.JOB_EXPIRED: "interrupted",
    FleetKinds.JOB_CANCELLING: "cancel requested",
    FleetKinds.JOB_CANCELLED: "cancelled",
    FleetKinds.JOB_REQUEUED: "requeued",
    FleetKinds.JOB_CHANGED: "changed",
    FleetKinds.JOB_READY: "may start: its dependencies have completed",
    FleetKinds.EXEC_BEGUN: "exec session started",
    FleetKinds.EXEC_ENDED: "exec session ended",
    FleetKinds.MACHINE_JOINED: "joined",
    FleetKinds.MACHINE_CHANGED: "changed",
    FleetKinds.MACHINE_LEFT: "left: its worker stopped",
    FleetKinds.MACHINE_LOST: "lost",
    FleetKinds.MACHINE_FORGOTTEN: "removed",
    FleetKinds.SYMPTOM: "has a symptom",
    FleetKinds.SYMPTOM_OVER: "has recovered",
}


# The details of a fleet job.

ATTEMPT_HEADER = ("attempt", "machine", "", "started", "took", "")
_MOST_PACKAGES = 8


def job_lines(
    story: JobDetails, args: Mapping[str, Any], now_s: float, *, paint: Callable[[str, str], str]
) -> list[str]:
    """Return the details of a job as lines; `args` are the arguments to show, by path."""
    view = story.job
    where = f" on {view.machine}" if view.machine and view.state in ("claimed", "running") else ""
    why = f" ({_inside(view.why)})" if view.why else ""
    took = took_s(view, now_s)
    by = f" by {view.submitter}" if view.submitter else ""
    verb = "took" if JobState(view.state).is_terminal else "running for"
    when = f"submitted {ago(view.submitted_s, now_s)}{by}{f', {verb} {span(took)}' if took is not None else ''}"
    lines = [
        f"{paint(view.name, 'bold')}: {state_text(view)}{where}{why}",
        f"{when} · id {view.id[:_SHORT_ID]} · priority {view.priority}",
        *spec_lines(story.spec, args),
    ]
    if story.after:
        lines.append(f"after   {', '.join(story.after)}")
    if view.metrics:
        lines.append(f"metrics {metrics_text(view.metrics, is_over=view.state != 'running')}")
    lines += [*origin_lines(story), *python_lines(story)]
    if view.result:
        lines.append(f"result  stoker get {view.name}")
    hint = _inside(str(story.error.get("hint") or "")) if view.state == "failed" else ""
    return [*lines, *([f"hint: {hint}"] if hint else [])]


def spec_lines(spec: JobSpec, args: Mapping[str, Any]) -> list[str]:
    """Return a job as it was requested, here or on the fleet; `args` are the arguments to show, by path."""
    # Empty values are defaults.
    given = {name: value for name, value in args.items() if value not in ("", None, [], {})}
    return [
        f"recipe  {_inside(spec.recipe)}",
        *(f"  {_inside(name)}={_inside(value_text(value))}" for name, value in given.items()),
        *([f"words   {_inside(shlex.join(spec.words))}"] if spec.words else []),
    ]


def origin_lines(story: JobDetails) -> list[str]:
    """Return code, data and environment of a job by digest: of the last attempt if it has ended, else as submitted.

    An unfinished job may have been submitted again since its last attempt.
    """
    facts = story.attempts[-1].facts if story.attempts and JobState(story.job.state).is_terminal else {}
    tree, commit, data = facts.get("code_tree"), facts.get("commit"), facts.get("data")
    if not isinstance(tree, str) or not tree:
        tree, commit = story.spec.code_tree, story.spec.commit
    lines = []
    if tree:
        at = f"  {_inside(commit_text(commit))}" if isinstance(commit, str) and commit else ""
        lines.append(f"code    tree {_inside(tree[:_SHORT_ID])}{at}")
    if not isinstance(data, dict) or not data:
        data = _ordered_data(story)
    lines += [f"data    {_inside(str(name))} {_inside(_short(str(held)))}" for name, held in data.items()]
    return [*lines, *(f"env     {_inside(_choice_text(one))}" for one in story.spec.environment)]


def _ordered_data(story: JobDetails) -> dict[str, str]:
    """Return the inputs: variable or argument → digest, or repository at its commit."""
    return {one.where.partition(":")[2]: one.repo or f"tree:{one.tree}" for one in story.spec.inputs}


def _choice_text(choice: EnvironmentChoice) -> str:
    """Return an environment choice as text: `linux-aarch64: uv.lock 0123456789ab, Python >=3.10`."""
    way = choice.path or "the machine's own Python"
    if choice.kind != "python" and choice.digest:
        way += f" {choice.digest[:_SHORT_ID]}"
    platform = f"{choice.platform}: " if choice.platform else ""
    return platform + way + (f", Python {choice.python}" if choice.python else "")


def commit_text(commit: str) -> str:
    """Return the commit of `COMMIT+2`, and the number of changed files."""
    whole, _, uncommitted = commit.partition("+")
    changed = f", {counted(int(uncommitted), 'file')} changed since" if uncommitted else ""
    return f"commit {whole[:_SHORT_ID]}{changed}"


def _short(held: str) -> str:
    kind, _, digest = held.partition(":")
    return f"{kind} {digest[:_SHORT_ID]}" if kind == "tree" else held


def python_lines(story: JobDetails) -> list[str]:
    """Return the interpreter and packages of the last attempt, if it had its own environment."""
    described = story.attempts[-1].facts.get("python") if story.attempts else None
    if not isinstance(described, dict):
        return []
    packages = described.get("packages")
    names = [f"{name} {version}" for name, version in packages.items()] if isinstance(packages, dict) else []
    shown = ", ".join(names[:_MOST_PACKAGES]) + (
        f" and {len(names) - _MOST_PACKAGES} more" if names[_MOST_PACKAGES:] else ""
    )
    lines = [f"python  {_inside(str(described.get('python', '')))}  {_inside(str(described.get('interpreter', '')))}"]
    return [*lines, f"        {_inside(shown)}"] if names else lines


def _inside(text: str) -> str:
    """Return an untrusted text with its lines indented."""
    return "\n      ".join(outside(line) for line in text.split("\n"))


_MACHINES = 10


@frozen
class FleetOverview:
    """The state of a fleet: counters, machines, running jobs, and the best results."""

    url: str
    status: FleetStatus
    machines: tuple[MachineView, ...]
    running: tuple[JobView, ...]
    leaders: Leaderboard

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            **self.status.model_dump(mode="json"),
            "machine_list": [one.model_dump(mode="json", exclude={"capability"}) for one in self.machines],
            "running": [one.model_dump(mode="json") for one in self.running],
            "leaderboard": self.leaders.model_dump(mode="json"),
        }

    def lines(self, now_s: float, *, columns: int) -> Iterator[str]:
        """Yield counters, symptoms, machines, running jobs and the best results."""
        status, machines = self.status, self.machines
        yield f"fleet of {self.url}, {status.database}, up for {span(max(0.0, now_s - status.started_s))}"
        yield f"jobs: {_numbers(status.jobs, [str(state) for state in JobState])}"
        yield f"machines: {_numbers(status.machines, sorted(status.machines))}"
        if status.settling_s > 0 and machines:
            yield f"recovering: no lease expires for {format_duration(status.settling_s)}"
        yield from symptom_lines(status.symptoms, now_s)
        if machines:
            yield ""
            rows = [machine_row(one, now_s) for one in machines[:_MACHINES]]
            yield from table(rows, header=MACHINE_HEADER, columns=columns)
            if len(machines) > _MACHINES:
                yield f"and {len(machines) - _MACHINES} more: stoker machines"
        if self.running:
            yield ""
            yield from table([job_row(one, now_s) for one in self.running], header=JOB_HEADER, columns=columns)
            more = status.jobs.get("running", 0) - len(self.running)
            if more > 0:
                yield f"and {more:,} more running: stoker jobs --status running"
        if self.leaders.rows:
            yield ""
            yield from leader_table(self.leaders.rows, self.leaders.metric, columns=columns)


def _numbers(counts: Mapping[str, int], names: Iterable[str]) -> str:
    return ", ".join(f"{counts[name]:,} {name}" for name in names if counts.get(name)) or "none"


# The verdict of the history checker: each guarantee, kept or broken.

GUARANTEES = {
    "one_lease": "at most one active lease per job at any time",
    "epochs_grow": "epochs strictly increase",
    "no_stale_write": "no write under an old epoch, attempt or generation was accepted",
    "terminal_is_final": "only a requeue leaves a terminal state",
    "waits_with_reason": "every job has ended, or waits with a known reason",
    "within_budgets": "no job was granted after its last attempt",
    "bundle_has_bytes": "every recorded result has its files",
    "events_replay": "replaying the events gives the state of each job",
    "one_event_per_move": "every state change has exactly one event",
    "time_goes_on": "stored times never go back",
    "counters": "the counters match the rows",
}


def verdict_lines(verdict: HistoryCheck, signs: Signs, *, columns: int) -> Iterator[str]:
    """Yield the verdict as lines."""
    rows = [
        [
            signs.failed if broken else signs.ran,
            rule,
            GUARANTEES.get(rule, ""),
            f"broken {broken} times" if broken else "",
        ]
        for rule, broken in verdict.rules.items()
    ]
    yield from table(rows, columns=columns)
    for one in verdict.violations[:_SHOWN]:
        yield one_line(f"  {one.get('rule', '')}: job {str(one.get('job', ''))[:12]}: {one.get('message', '')}")


def counts_lines(tried: Mapping[str, int], refused: Mapping[str, int], *, columns: int) -> list[str]:
    """Return the operations and how many of them were refused."""
    rows = [[what, f"{count:,}", f"{refused.get(what, 0):,} refused"] for what, count in tried.items()]
    return table(rows, columns=columns)
