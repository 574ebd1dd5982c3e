"""Environments against machines: who can't have one is not given the job, and says why."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, text

from stoker.coordinator.queue.commands import InspectMachines, MachineInspection
from stoker.coordinator.queue.writer import no_fault
from stoker.core.digests import digest_value
from stoker.core.errors import DatabaseTrouble, InvalidInput
from stoker.core.frozen import changed, fields_of
from stoker.core.job import EnvironmentChoice, JobSpec
from stoker.core.jsontext import dumps, loads
from stoker.protocol.environment_messages import environment_digest, outlook, own_digest
from stoker.protocol.lease_messages import Hello, MachineInventory, Renewal, RenewalResponse
from tests.contract.queue_driving import GIB, Driven, order

DIGEST = "d" * 64
NO_WHEEL = "no wheel of torch for aarch64 cp310"


def with_env(name: str = "resnet", **more: Any) -> JobSpec:
    choice = EnvironmentChoice(kind="uv.lock", path="uv.lock", digest=DIGEST, **more)
    return order(name, environment=[fields_of(choice)])


def join(fleet: Driven, machine: str, **held: Any) -> None:
    said = {"platform": "linux-x86_64", "libc": "glibc 2.36", "pythons": ("3.12.3",)} | held
    fleet.ask(
        Hello(
            worker=machine,
            incarnation=f"incarnation-{machine}",
            capability={
                "hostname": machine,
                "os": "linux",
                "arch": "x86_64",
                "cpu_cores": 16,
                "ram_total_bytes": 64 * GIB,
                "ram_available_bytes": 64 * GIB,
            },
            capability_digest=machine,
            slots=4,
            holdings=MachineInventory(**said) if held or machine != "old" else None,
        )
    )


def tell(fleet: Driven, machine: str, **held: Any) -> None:
    said = {"platform": "linux-x86_64", "libc": "glibc 2.36", "pythons": ("3.12.3",)} | held
    fleet.ask(Renewal(worker=machine, incarnation=f"incarnation-{machine}", holdings=MachineInventory(**said)))


def reasons(fleet: Driven) -> dict[str, str]:
    looked = fleet.ask(InspectMachines())
    assert isinstance(looked, MachineInspection)
    return {offer.node: "; ".join(why for _, why in offer.denied_for) for offer in looked.offers}


def test_a_machine_that_can_not_have_the_environment_is_not_given_the_job(fleet: Driven) -> None:
    join(fleet, "jetson", impossible={DIGEST: NO_WHEEL})
    join(fleet, "desk")
    fleet.submit(with_env(), order("plain"))
    assert [grant.spec.name for grant in fleet.claim("jetson", most=4)] == ["plain"]
    assert reasons(fleet) == {"jetson": NO_WHEEL, "desk": ""}
    (grant,) = fleet.claim("desk", most=4)
    assert grant.spec.name == "resnet"
    assert [one.digest for one in grant.spec.environment] == [DIGEST]


def test_what_a_machine_learns_later_counts_and_what_it_forgets_does_not(fleet: Driven) -> None:
    join(fleet, "jetson")
    fleet.submit(with_env())
    tell(fleet, "jetson", impossible={DIGEST: NO_WHEEL})
    assert fleet.claim("jetson") == ()
    tell(fleet, "jetson")
    assert len(fleet.claim("jetson")) == 1


def test_what_the_submitter_read_from_the_lock_counts_before_anybody_tries(fleet: Driven) -> None:
    join(fleet, "desk")
    fleet.submit(with_env(refused={"linux-x86_64-cp312": NO_WHEEL}))
    assert fleet.claim("desk") == ()
    assert reasons(fleet) == {"desk": NO_WHEEL}
    tell(fleet, "desk", pythons=("3.11.9",))
    assert len(fleet.claim("desk")) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_one_submitter_says_can_not_be_keeps_no_machine_from_another_s_job(
    fleet: Driven, is_restarted: bool
) -> None:
    join(fleet, "desk")
    fleet.submit(with_env("hostile", refused={"linux-x86_64": "not for you"}))
    if is_restarted:
        fleet.close()
        fleet.open()
        tell(fleet, "desk")
    fleet.submit(with_env("honest"))
    assert [grant.spec.name for grant in fleet.claim("desk", most=4)] == ["honest"]


def test_a_class_of_an_older_coordinator_keeps_what_it_refuses_to_itself(fleet: Driven) -> None:
    join(fleet, "desk")
    fleet.submit(with_env("hostile", refused={"linux-x86_64": "not for you"}))
    fleet.close()
    engine = create_engine(fleet.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        body = loads(connection.execute(text("SELECT wanted FROM classes")).scalar_one())
        # Its digest said nothing of what was refused.
        body["environment"] = environment_digest(with_env().environment)
        row = {"wanted": dumps(body), "key": digest_value("requirement class", body)}
        connection.execute(text("UPDATE classes SET wanted = :wanted, key = :key"), row)
    engine.dispose()
    fleet.open()
    tell(fleet, "desk")
    fleet.submit(with_env("honest"))
    assert [grant.spec.name for grant in fleet.claim("desk", most=4)] == ["honest"]


def test_jobs_of_two_classes_that_have_become_alike_all_run_after_a_restart(fleet: Driven) -> None:
    join(fleet, "desk")
    fleet.submit(with_env("newer", refused={"linux-aarch64": "no"}))
    fleet.submit(with_env("older", refused={"linux-s390x": "no"}))
    fleet.close()
    engine = create_engine(fleet.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        newer, older = connection.execute(text("SELECT id, wanted FROM classes ORDER BY id")).all()
        # As a coordinator wrote it whose digest did not cover what is refused.
        body = {**loads(newer.wanted), "environment": environment_digest(with_env().environment)}
        row = {"wanted": dumps(body), "key": digest_value("requirement class", body), "id": older.id}
        connection.execute(text("UPDATE classes SET wanted = :wanted, key = :key WHERE id = :id"), row)
    engine.dispose()
    fleet.open()
    tell(fleet, "desk")
    fleet.submit(with_env("newest", refused={"linux-aarch64": "no"}))
    looked = fleet.ask(InspectMachines())
    assert isinstance(looked, MachineInspection)
    assert len(looked.wanted) == 2, "the new job joins a class that is there"
    assert sorted(grant.spec.name for grant in fleet.claim("desk", most=4)) == ["newer", "newest", "older"]


def test_two_environments_of_one_submission_are_told_apart_by_more_than_a_digest(fleet: Driven) -> None:
    join(fleet, "desk")
    wishes = [fields_of(EnvironmentChoice(kind="python", python=version)) for version in ("3.14", "3.12")]
    fleet.submit(order("never", environment=wishes[:1]), order("now", environment=wishes[1:]))
    assert [grant.spec.name for grant in fleet.claim("desk", most=4)] == ["now"]


@pytest.mark.parametrize("digest", [DIGEST, own_digest("/usr/bin/python3", "")])
def test_an_interpreter_of_the_machine_can_not_go_by_the_digest_of_another_environment(
    fleet: Driven, digest: str
) -> None:
    forged = EnvironmentChoice(kind="python", path="/nonexistent/python", digest=digest)
    with pytest.raises(InvalidInput) as caught:
        fleet.submit(order("forged", environment=[fields_of(forged)]))
    (fault,) = caught.value.faults
    assert "'/nonexistent/python' has a wrong digest" in fault.message
    for honest in ("", own_digest("/nonexistent/python", "")):
        choice = changed(forged, digest=honest)
        fleet.submit(order(f"honest{len(honest)}", environment=[fields_of(choice)]))


@pytest.mark.parametrize("sent", ["", own_digest("/nonexistent/python", "")])
def test_a_machine_without_the_interpreter_of_a_job_is_not_given_it_again(fleet: Driven, sent: str) -> None:
    why = "there is no Python at /nonexistent/python"
    choice = EnvironmentChoice(kind="python", path="/nonexistent/python", digest=sent)
    impossible = {own_digest("/nonexistent/python", ""): why}
    join(fleet, "desk", impossible=impossible)
    fleet.submit(order("resnet", environment=[fields_of(choice)]))
    assert fleet.claim("desk") == ()
    assert reasons(fleet) == {"desk": why}
    told = MachineInventory(platform="linux-x86_64", libc="glibc 2.36", pythons=("3.12.3",), impossible=impossible)
    assert outlook([choice], "desk", told).text == f"desk: {why}"


def test_a_worker_that_knows_nothing_of_environments_gets_no_such_job(fleet: Driven) -> None:
    join(fleet, "old")
    fleet.submit(with_env(), order("plain"))
    assert [grant.spec.name for grant in fleet.claim("old", most=4)] == ["plain"]
    assert reasons(fleet)["old"].startswith("the worker reported no environments")


def test_jobs_of_one_environment_are_one_class_and_survive_a_restart(fleet: Driven) -> None:
    join(fleet, "jetson", impossible={DIGEST: NO_WHEEL})
    fleet.submit(with_env("a"), with_env("b"), order("c"))
    looked = fleet.ask(InspectMachines())
    assert isinstance(looked, MachineInspection)
    digest = environment_digest(with_env().environment)
    assert sorted(one.environment for one in looked.wanted.values()) == ["", digest]
    fleet.close()
    fleet.open()
    again = fleet.ask(InspectMachines())
    assert isinstance(again, MachineInspection)
    assert again.wanted == looked.wanted
    tell(fleet, "jetson", impossible={DIGEST: NO_WHEEL})
    assert [grant.spec.name for grant in fleet.claim("jetson", most=4)] == ["c"]


def test_a_coordinator_that_was_started_anew_asks_what_machines_have_until_it_is_told(fleet: Driven) -> None:
    join(fleet, "desk")
    beat = Renewal(worker="desk", incarnation="incarnation-desk")
    assert isinstance(known := fleet.ask(beat), RenewalResponse)
    assert not known.wants_holdings
    fleet.close()
    fleet.open()
    assert isinstance(anew := fleet.ask(beat), RenewalResponse)
    assert anew.wants_holdings
    tell(fleet, "desk")
    assert isinstance(told := fleet.ask(beat), RenewalResponse)
    assert not told.wants_holdings


def test_a_machine_without_the_python_that_is_asked_for_is_not_given_the_job(fleet: Driven) -> None:
    join(fleet, "lab1")
    join(fleet, "desk", pythons=("3.12.3", "3.14.0"))
    choice = EnvironmentChoice(kind="python", path="", digest=own_digest("", "3.14"), python="3.14")
    fleet.submit(order("resnet", environment=[fields_of(choice)]))
    assert fleet.claim("lab1") == ()
    assert reasons(fleet) == {"lab1": "no Python that is 3.14: it has 3.12.3", "desk": ""}
    assert [grant.spec.name for grant in fleet.claim("desk")] == ["resnet"]


def test_what_machines_have_is_not_forgotten_when_the_rows_are_read_again(fleet: Driven) -> None:
    join(fleet, "jetson", impossible={DIGEST: NO_WHEEL})

    def cut(point: str) -> None:
        if point == "after_commit":
            fleet.faults = no_fault
            raise DatabaseTrouble("cut off")

    fleet.faults = cut
    with pytest.raises(DatabaseTrouble):
        fleet.submit(with_env())
    assert fleet.claim("jetson") == ()
    assert isinstance(beat := fleet.ask(Renewal(worker="jetson", incarnation="incarnation-jetson")), RenewalResponse)
    assert not beat.wants_holdings
