"""Machines: closed and opened, silent and forgotten, and what is declared about them."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.queue.commands import (
    CloseMachine,
    Declare,
    ForgetMachine,
    InspectMachines,
    MachineCloseMode,
    MachineInspection,
    OpenMachine,
    QueueCommandResult,
)
from stoker.core.capability import Capability
from stoker.core.device import Backend, Device
from stoker.core.device import TriState as DeviceVerdict
from stoker.core.device import TriStateAnswer as DeviceAnswer
from stoker.core.errors import BadInput, NotFound, Refused, StaleLease
from stoker.core.leases import AttemptToken
from stoker.core.machine import Cluster, Node
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Fail,
    Hello,
    LeaseInstructionKind,
    Renewal,
    Welcome,
    WorkerMeasurements,
)
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import finish, hello_anew, renewed, say, started, state, sweep, token

MIB = 1 << 20


def asked(fleet: Driven, machine: str = "m1") -> ClaimResponse:
    answer = fleet.ask(
        Claim(request_id=f"asked-{fleet.clock.wall_s()}", worker=machine, incarnation=f"incarnation-{machine}")
    )
    assert isinstance(answer, ClaimResponse)
    return answer


@pytest.mark.parametrize("how", list(MachineCloseMode), ids=lambda how: how.value)
def test_a_closed_machine_gets_nothing_until_it_is_opened(fleet: Driven, how: MachineCloseMode) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    fleet.ask(CloseMachine(machine="m1", how=how, why="noisy"))
    answer = asked(fleet)
    assert answer.grants == ()
    assert answer.closed == f"{how.value}: noisy"
    fleet.ask(OpenMachine(machine="m1"))
    assert len(asked(fleet).grants) == 1


def test_a_paused_machine_is_told_to_give_its_jobs_back_and_a_drained_one_is_not(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.DRAIN))
    assert renewed(fleet, grant).orders == ()
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.PAUSE, why="a game"))
    answer = renewed(fleet, grant)
    assert [(one.do, one.why) for one in answer.orders] == [(LeaseInstructionKind.RELEASE, "paused: a game")]
    assert answer.closed == "paused: a game"
    fleet.ask(finish(grant))


def test_a_machine_that_was_closed_for_a_while_opens_by_itself(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.PAUSE, for_s=7200.0))
    fleet.clock.advance(7100.0)
    assert sweep(fleet).opened == ()
    fleet.clock.advance(100.0)
    assert sweep(fleet).opened == ("m1",)
    assert len(asked(fleet).grants) == 1


def test_closing_survives_a_restart_of_both_sides(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.CORDON, why="broken fan"))
    fleet.close()
    fleet.open()
    fleet.join("m1")
    assert asked(fleet).closed == "cordoned: broken fan"


def test_a_machine_that_holds_a_lease_is_not_forgotten(fleet: Driven) -> None:
    grant = started(fleet)
    with pytest.raises(Refused, match="1 lease"):
        fleet.ask(ForgetMachine(machine="m1"))
    fleet.ask(finish(grant))
    fleet.ask(ForgetMachine(machine="m1", is_forced=True))
    assert fleet.reader.machines() == ()
    with pytest.raises(NotFound):
        fleet.ask(OpenMachine(machine="m1"))


def test_a_drained_machine_whose_worker_lives_is_not_forgotten(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.DRAIN))
    with pytest.raises(Refused, match="still runs") as refused:
        fleet.ask(ForgetMachine(machine="m1"))
    assert "--force" in refused.value.hint
    assert asked(fleet).closed
    fleet.clock.advance(1000.0)
    sweep(fleet)
    fleet.ask(ForgetMachine(machine="m1"))
    assert fleet.reader.machines() == ()


def test_a_machine_that_fell_silent_gets_work_again_when_it_speaks(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.clock.advance(1000.0)
    sweep(fleet)
    assert fleet.reader.events()[-1]["kind"] == "machine_lost"
    fleet.submit(order("one"))
    assert len(asked(fleet).grants) == 1


def test_a_hello_that_makes_no_sense_changes_nothing(fleet: Driven) -> None:
    grant = started(fleet)
    bad = Hello(worker="m1", incarnation="incarnation-bad", capability={"devices": 7}, capability_digest="x")
    with pytest.raises(BadInput):
        fleet.ask(bad)
    assert renewed(fleet, grant).orders == ()
    fleet.ask(finish(grant))


def test_the_coordinators_file_says_what_a_machine_may_run(fleet: Driven) -> None:
    fleet.submit(order("secret"), order("open"))
    fleet.join("m1", "m2")
    fleet.ask(Declare(cluster=Cluster(nodes=(Node(name="m1", host="m1", deny_jobs=("secret",)),))))
    assert [grant.spec.name for grant in fleet.claim("m1", most=4)] == ["open"]
    assert asked(fleet).waiting == {"denied": 1}
    fleet.ask(Declare(cluster=None))
    assert [grant.spec.name for grant in fleet.claim("m1", most=4)] == ["secret"]


def test_a_manifests_policy_lies_over_the_file_and_survives_a_restart(fleet: Driven) -> None:
    hosts: Any = [{"name": "m1", "allow_jobs": ["tabular/knn"]}]
    fleet.submit(order("gbt"), order("knn", recipe="tabular/knn"), hosts=hosts)
    fleet.join("m1")
    assert [grant.spec.name for grant in fleet.claim("m1", most=4)] == ["knn"]
    fleet.close()
    fleet.open()
    fleet.join("m1", "m2")
    assert fleet.claim("m1") == ()
    assert [grant.spec.name for grant in fleet.claim("m2")] == ["gbt"]


def test_requeued_jobs_go_by_the_lists_that_hold_now(fleet: Driven) -> None:
    grant = started(fleet)
    say(fleet, grant, Fail, cause="user")
    fleet.ask(Declare(cluster=Cluster(nodes=(Node(name="m1", host="m1", deny_jobs=("one",)),))))
    fleet.requeue(grant.job)
    assert fleet.claim("m1") == ()
    assert state(fleet) == "pending"


def test_slots_bound_what_a_machine_holds(fleet: Driven) -> None:
    fleet.submit(*(order("sweep", number) for number in range(1, 6)))
    fleet.join("m1", slots=3)
    assert len(fleet.claim(most=10)) == 3
    assert asked(fleet).waiting == {"slots": 2}


def test_the_adapters_that_a_file_allows_are_the_slots_that_a_worker_is_told(fleet: Driven) -> None:
    from tests.contract.queue_words import hello_anew

    fleet.ask(Declare(cluster=Cluster(nodes=(Node(name="m1", host="m1", max_adapters=8),))))
    answer = fleet.ask(hello_anew().model_copy(update={"slots": None}))
    assert isinstance(answer, Welcome)
    assert answer.slots == 8


def test_memory_that_a_job_needs_keeps_it_from_small_machines(fleet: Driven) -> None:
    fleet.submit(order("huge", requirements={"ram_bytes": 1 << 50}))
    fleet.join("m1")
    assert asked(fleet).waiting == {"ram": 1}


def test_a_welcome_says_how_long_leases_last(fleet: Driven) -> None:
    from tests.contract.queue_words import hello_anew

    answer = fleet.ask(hello_anew())
    assert isinstance(answer, Welcome)
    assert (answer.heartbeat_s, answer.lease_s, answer.start_s, answer.generation) == (30.0, 90.0, 90.0, 1)


def with_gpus(machine: str, *uuids: str) -> Hello:
    yes = DeviceAnswer(verdict=DeviceVerdict.YES)
    devices = tuple(
        Device(
            uuid=uuid,
            backend=Backend.CUDA,
            name="card",
            total_bytes=24 << 30,
            free_bytes=24 << 30,
            installed=yes,
            visible=yes,
            usable=yes,
        )
        for uuid in uuids
    )
    found = Capability(
        hostname=machine, os="linux", arch="x86_64", cpu_cores=16, ram_total_bytes=64 << 30, devices=devices
    )
    return Hello(
        worker=machine, incarnation=f"incarnation-{machine}", capability=found.to_dict(), capability_digest=machine
    )


def test_a_device_that_vanishes_gets_no_job_until_it_is_back(fleet: Driven) -> None:
    fleet.submit(*(order("gpu", number, requirements={"wish": "require", "ram_bytes": 0}) for number in range(1, 4)))
    both, without = (
        with_gpus("m1", *cards).model_copy(update={"slots": 4}) for cards in (("GPU-a", "GPU-b"), ("GPU-b",))
    )
    fleet.ask(both)
    (first,) = fleet.claim()
    assert first.devices == ("GPU-a",)
    fleet.start(first)
    # The job on the device that is gone keeps its lease: it fails by itself, or its worker says what became of it.
    fleet.ask(without)
    (second,) = fleet.claim(most=3)
    assert second.devices == ("GPU-b",)
    assert renewed(fleet, first).orders == ()
    say(fleet, first, Fail, cause="user", message="CUDA error: device lost")
    assert fleet.claim(most=3) == ()
    fleet.ask(without)
    fleet.ask(both)
    (third,) = fleet.claim(most=3)
    assert third.devices == ("GPU-a",)
    changes = [event for event in fleet.reader.events() if event["kind"] == "machine_changed"]
    assert [(event.get("gone"), event.get("back")) for event in changes] == [(["GPU-a"], None), (None, ["GPU-a"])]


def test_jobs_are_put_on_devices_and_a_cordoned_one_gets_none(fleet: Driven) -> None:
    fleet.submit(*(order("gpu", number, requirements={"wish": "require", "ram_bytes": 0}) for number in range(1, 4)))
    fleet.ask(with_gpus("m1", "GPU-a", "GPU-b"))
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.CORDON, devices=("GPU-a",), why="ECC errors"))
    (grant,) = fleet.claim(most=3)
    assert grant.devices == ("GPU-b",)
    fleet.close()
    fleet.open()
    fleet.ask(with_gpus("m1", "GPU-a", "GPU-b"))
    assert fleet.claim(most=3) == ()
    fleet.ask(OpenMachine(machine="m1", devices=("GPU-a",)))
    (other,) = fleet.claim(most=3)
    assert other.devices == ("GPU-a",)


def test_an_old_start_of_a_worker_never_takes_over_a_new_one_also_after_a_restart(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.ask(hello_anew())
    fleet.submit(order("one"))
    answer = fleet.ask(Claim(request_id="request-new", worker="m1", incarnation="incarnation-new"))
    assert isinstance(answer, ClaimResponse)
    (grant,) = answer.grants
    fleet.close()
    fleet.open()
    with pytest.raises(StaleLease, match="newer worker"):
        fleet.join("m1")
    assert fleet.queue.is_current(AttemptToken(job=grant.job, **token(grant)))


def heard(fleet: Driven, **said: Any) -> None:
    fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", **said))


def test_a_worker_that_says_goodbye_is_not_counted_on_until_it_says_hello(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.submit(order("one"))
    for _ in range(2):
        heard(fleet, is_leaving=True)
    told = [event["kind"] for event in fleet.reader.events() if event["kind"].startswith("machine")]
    assert told == ["machine_joined", "machine_left"]
    assert fleet.reader.machines("m1")[0].left_s is not None
    looked = fleet.ask(InspectMachines())
    assert isinstance(looked, MachineInspection)
    assert (looked.offers, [offer.node for offer in looked.away]) == ((), ["m1"])
    heard(fleet)
    assert asked(fleet).grants == (), "a question from before that comes late"
    fleet.close()
    fleet.open()
    assert asked(fleet).grants == (), "it is written down"
    fleet.join("m1")
    assert fleet.reader.machines("m1")[0].left_s is None
    assert len(asked(fleet).grants) == 1


def test_a_machine_that_its_owner_paused_says_so_to_who_opens_it(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.PAUSE))
    heard(fleet, measured=WorkerMeasurements(closed={"": "paused by ann"}))
    done = fleet.ask(OpenMachine(machine="m1"))
    assert isinstance(done, QueueCommandResult)
    (note,) = done.notes
    assert "m1 is closed by its own worker: paused by ann; end a pause there: `stoker pause --off`" in note
    looked = fleet.ask(InspectMachines())
    assert isinstance(looked, MachineInspection)
    assert looked.offers[0].closed == "paused by ann"
    heard(fleet)
    assert fleet.ask(OpenMachine(machine="m1")) == QueueCommandResult(notes=("m1 is open already",))


def test_opening_a_machine_names_devices_that_stay_closed(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.CORDON, devices=("GPU-1",)))
    done = fleet.ask(OpenMachine(machine="m1"))
    assert isinstance(done, QueueCommandResult)
    assert (done.changed, done.notes[0]) == ((), "m1 is open already")
    assert "still closed: GPU-1" in done.notes[1]
