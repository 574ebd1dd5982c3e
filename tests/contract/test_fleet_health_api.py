"""Health and hooks over real TLS: reports of machines in their own name, hooks by role, the checker's verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.coordinator.queue.commands import NoteSymptoms
from stoker.core.errors import BadInput, Forbidden, NotFound
from stoker.core.leases import Role, Symptom, SymptomKind
from stoker.protocol.client import FleetClient
from stoker.protocol.codec import VERSION, VERSION_HEADER
from stoker.protocol.enrolment_messages import TokenRequest
from stoker.protocol.job_messages import Submission
from stoker.protocol.operator_messages import DoctorFinding, MachineReport, WebhookRequest
from tests.contract.queue_driving import order
from tests.contract.test_fleet_contents_secure import CLOCK, Machine
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.tls_line import Lines

FINDING = DoctorFinding(name="disk", verdict="warn", message="3 GiB of 20 GiB free", hint="prune")


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("health")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder, is_secure=True) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def machine(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with closing(Lines(fleet, folder)) as lines:
        found = Machine(fleet, lines, "desk", folder)
    with closing(found):
        found.hello()
        yield found


def person(fleet: Fleet, role: Role) -> FleetClient:
    made = fleet.client().make_token(TokenRequest(name=f"{role.value}-{CLOCK.monotonic_s():.0f}", role=role))
    return fleet.client(token=made.token)


def report(worker: str = "desk", **more: object) -> MachineReport:
    fields = {"worker": worker, "version": "0", "protocol": 7, "wall_s": CLOCK.wall_s() + 90.0, "findings": (FINDING,)}
    return MachineReport.model_validate(fields | more)


def test_a_machine_reports_for_itself_and_everybody_sees_it(fleet: Fleet, machine: Machine) -> None:
    machine.client.report(report())
    view = fleet.client().machine("desk")
    assert view.report["offset_s"] == pytest.approx(90.0, abs=30.0)
    assert view.report["protocol"] == 7
    assert view.report["findings"][0]["message"] == FINDING.message
    assert view.is_skewed
    assert view.certificate_until_s is not None
    assert view.certificate_until_s > CLOCK.wall_s()
    with pytest.raises(Forbidden):
        machine.client.report(report("other"))
    with pytest.raises(Forbidden):
        fleet.client().report(report())


def test_a_report_is_taken_from_another_protocol_and_nothing_else_is(fleet: Fleet, tmp_path: Path) -> None:
    with closing(Lines(fleet, tmp_path)) as lines:
        one = Machine(fleet, lines, "stale", tmp_path)
        with closing(one):
            one.hello()
            # As a newer or older program would say it.
            one.client.transport._headers[VERSION_HEADER] = str(VERSION + 5)
            one.client.report(report("stale"))
            with pytest.raises(Exception, match="protocol"):
                one.hello()
    assert fleet.client().machine("stale").report["version"] == "0"


def test_symptoms_stand_in_status_and_with_their_machine(fleet: Fleet, machine: Machine) -> None:
    symptom = Symptom(machine="desk", ailment=SymptomKind.DISK, message="1 GiB free", hint="prune there")
    fleet.queue.ask(NoteSymptoms(symptoms=(symptom,)))
    client = fleet.client()
    assert [one.symptom for one in client.status().symptoms] == ["disk"]
    assert [one.hint for one in client.machine("desk").symptoms] == ["prune there"]
    fleet.queue.ask(NoteSymptoms(symptoms=()))
    assert client.status().symptoms == ()


def test_a_submitter_makes_hooks_for_jobs_alone_and_never_to_inner_addresses(fleet: Fleet) -> None:
    (job,) = fleet.client().submit(Submission(jobs=(order("hooked"),))).jobs
    submitter = person(fleet, Role.SUBMIT)
    made = submitter.make_hook(WebhookRequest(url="https://example.org/x", jobs=(job.id,)))
    assert (made.hook.jobs, len(made.secret) >= 32) == (1, True)
    with pytest.raises(Forbidden, match="admin"):
        submitter.make_hook(WebhookRequest(url="https://example.org/x"))
    for inner in ("http://127.0.0.1:1/", "http://localhost/", "http://10.0.0.1/", "http://[::1]/", "http://0x7f.1/"):
        with pytest.raises(Forbidden):
            submitter.make_hook(WebhookRequest(url=inner, jobs=(job.id,)))
    for ask in (submitter.hooks, lambda: submitter.close_hook(made.hook.id), submitter.verdict):
        with pytest.raises(Forbidden):
            ask()
    with pytest.raises(Forbidden):
        person(fleet, Role.READ).make_hook(WebhookRequest(url="https://example.org/x", jobs=(job.id,)))
    with pytest.raises(NotFound):
        submitter.make_hook(WebhookRequest(url="https://example.org/x", jobs=("0" * 64,)))


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://169.254.169.254/latest/meta-data", Forbidden),
        ("http://[fe80::1]/", Forbidden),
        ("ftp://example.org/", BadInput),
        ("https://me:secret@example.org/", BadInput),
    ],
    ids=["metadata", "link_local", "no_web_address", "with_a_password"],
)
def test_not_even_an_admin_makes_a_hook_that_must_not_be(fleet: Fleet, url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        fleet.client().make_hook(WebhookRequest(url=url))


def test_a_mail_command_of_someone_with_a_token_is_refused_even_of_an_admin(fleet: Fleet) -> None:
    with pytest.raises(Forbidden, match="only on the coordinator's machine"):
        person(fleet, Role.ADMIN).make_hook(WebhookRequest(mail=("sendmail", "me@example.org")))


def test_the_path_of_a_chat_services_url_is_shown_to_no_one(fleet: Fleet) -> None:
    admin = fleet.client()
    made = admin.make_hook(WebhookRequest(url="https://hooks.slack.com/services/T0/B0/hidden"))
    assert (made.hook.format, made.hook.url) == ("slack", "https://hooks.slack.com/…")
    assert made.hook.on == ("completed", "failed", "cancelled", "symptom", "lost")
    assert "hidden" not in str(admin.hooks()) + str(admin.status())
    admin.close_hook(made.hook.id)


def test_hooks_are_listed_without_their_secret_and_closed(fleet: Fleet) -> None:
    admin = fleet.client()
    made = admin.make_hook(WebhookRequest(url="https://example.org/hook?key=1", on=("failed",), by="me@desk"))
    reader = fleet.queue.reader
    for told in (admin.hooks(), admin.status(), reader.events(), reader.hooks()):
        assert made.secret not in repr(told)
    shown = next(hook for hook in admin.hooks() if hook.id == made.hook.id)
    assert (shown.url, shown.on, shown.by) == ("https://example.org/hook", ("failed",), "operator (me@desk)")
    assert admin.close_hook(made.hook.id).changed
    assert not admin.close_hook(made.hook.id).changed
    with pytest.raises(BadInput, match="unknown event"):
        admin.make_hook(WebhookRequest(url="https://example.org/", on=("everything",)))


def test_the_verdict_names_every_promise_and_how_many_jobs_it_saw(fleet: Fleet) -> None:
    fleet.client().submit(Submission(jobs=tuple(order("judged", number) for number in range(1, 5))))
    whole = fleet.client().verdict()
    assert whole.is_clean
    assert whole.is_whole
    assert set(whole.rules) >= {"one_lease", "no_stale_write", "events_replay", "counters"}
    part = fleet.client().verdict(jobs=2)
    assert (part.jobs, part.is_whole, part.is_clean) == (2, False, True)


def test_the_verdict_tells_what_is_broken(fleet: Fleet) -> None:
    (job,) = fleet.client().submit(Submission(jobs=(order("broken"),))).jobs
    with fleet.queue.reader.database.readers.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = OFF")
        connection.exec_driver_sql(f"UPDATE jobs SET epoch = 7 WHERE id = '{job.id}'")
        connection.commit()
        found = fleet.client().verdict()
        connection.exec_driver_sql(f"UPDATE jobs SET epoch = 0 WHERE id = '{job.id}'")
        connection.commit()
    assert not found.is_clean
    assert job.id in {one["job"] for one in found.violations}
