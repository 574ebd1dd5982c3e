"""What an explanation announces is what is then granted: on a fleet that is driven, on a clock that stands still."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.explained_case import Fleet, case_of_order
from stoker.coordinator.explained_verdict import Explainer
from stoker.coordinator.http.forecasts import HypotheticalJobs
from stoker.coordinator.http.overview import Explanations
from stoker.coordinator.queue.commands import InspectMachines, MachineInspection, Submit, Write
from stoker.core.clock import FakeClock
from stoker.core.leases import FleetTimes
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Claim, ClaimResponse, Grant, Hello, Start
from stoker.scheduler.snapshot import snapshot_from_dict
from tests.contract.queue_driving import GIB, Driven, order
from tests.contract.queue_words import finish, token
from tests.unit.coordinator.fleets import box, card

MACHINES = {"fast": ("NVIDIA H100", 2.0), "slow": ("NVIDIA GeForce RTX 3080", 0.45), "cpu": ("", 1.0)}
ON_DEVICE: dict[str, Any] = {"wish": "require", "vram_bytes": 4 * GIB, "ram_bytes": GIB}
ON_CPU: dict[str, Any] = {"ram_bytes": GIB, "cores": 6}
# Of estimates within a tenth one stands for all: these are such, so that jobs end when they are expected to.
DEVICE_S, CPU_S = 1.1**50, 1.1**55


class Workers:
    """Workers that claim when they are called, and when a job of theirs has ended, as real ones do."""

    def __init__(self, driven: Driven) -> None:
        self.queue = driven.queue
        self.clock: FakeClock = driven.clock
        self._called: set[str] = set()
        self._requests = 0
        self._running: list[tuple[float, str, Grant]] = []
        self.granted: dict[str, tuple[str, float]] = {}
        """By the name of a job: its machine, and when."""
        self.queue.on_wish(self._called.update)
        for name, (device, _) in MACHINES.items():
            found = box(name, *([card(f"GPU-{name}", name=device)] if device else []), ram_gib=64)
            said = {"incarnation": f"start-{name}", "capability": found.to_dict(), "capability_digest": name}
            self.queue.ask(Hello.model_validate({"worker": name, "slots": 1, **said}))

    def settle(self) -> None:
        """Let the machines claim that are called."""
        while self._called:
            called = sorted(self._called)
            self._called.clear()
            for name in called:
                self.claim(name)

    def claim(self, name: str) -> None:
        self._requests += 1
        answer = self.queue.ask(Claim(request_id=f"request-{self._requests}", worker=name, incarnation=f"start-{name}"))
        assert isinstance(answer, ClaimResponse)
        for grant in answer.grants:
            takes_s = DEVICE_S / MACHINES[name][1] if grant.devices else CPU_S
            self.queue.ask(Write(job=grant.job, said=Start(**token(grant))))
            self._running.append((self.clock.wall_s() + takes_s, name, grant))
            self.granted[f"{grant.spec.name}/{grant.spec.number}"] = name, self.clock.wall_s()

    def step(self) -> bool:
        """Let the job end that ends next; False if none runs."""
        if not self._running:
            return False
        first = min(self._running, key=lambda one: one[:2])
        self._running.remove(first)
        end_s, name, grant = first
        self.clock.advance(max(0.0, end_s - self.clock.wall_s()))
        self.queue.ask(finish(grant))
        self.claim(name)
        self.settle()
        return True

    def finish_all(self) -> None:
        self.settle()
        while self.step():
            pass


@pytest.fixture
def workers(fleet: Driven) -> Workers:
    """Three machines that have run three jobs of each sort: how long they take is known."""
    made = Workers(fleet)
    fleet.submit(*jobs("early", range(1, 4)))
    made.finish_all()
    assert len(made.granted) == 6
    return made


@pytest.fixture
def explanations(fleet: Driven) -> Explanations:
    return Explanations(fleet.queue, fleet.clock, FleetTimes())


def jobs(name: str, numbers: range, **more: Any) -> list[Any]:
    """Orders of two sorts, in turns."""
    return [
        one
        for number in numbers
        for one in (
            order(f"{name}-gpu", number, requirements=ON_DEVICE, **more),
            order(f"{name}-cpu", number, recipe="tabular/prep", requirements=ON_CPU, **more),
        )
    ]


def test_every_job_is_granted_to_the_machine_and_at_the_time_that_explain_announces(
    fleet: Driven, workers: Workers, explanations: Explanations
) -> None:
    fleet.submit(*jobs("late", range(1, 6)))
    workers.settle()
    waiting = [f"late-{sort}/{number}" for sort in ("gpu", "cpu") for number in range(1, 6)]
    announced = {}
    for name in [name for name in waiting if name not in workers.granted]:
        found = explanations.explain(name)
        assert found.expected is not None
        announced[name] = found.expected.machine, found.expected.starts_s
        assert found.starts_s == found.expected.starts_s
        assert found.based_on == "median of 3 runs"
    assert len(announced) == 7, "three machines run one job each"
    workers.finish_all()
    for name, (machine, starts_s) in announced.items():
        at, at_s = workers.granted[name]
        assert (name, at) == (name, machine)
        assert at_s == pytest.approx(starts_s, abs=0.5)


def test_a_dry_run_says_where_and_when_its_jobs_start_and_when_all_is_done(
    fleet: Driven, workers: Workers, explanations: Explanations
) -> None:
    fleet.submit(*jobs("late", range(1, 3)))
    workers.settle()
    orders = jobs("new", range(1, 4))
    asked = Submission(jobs=tuple(orders), dry_run=True, submitter="me@desk")
    answer = fleet.submit(*orders, dry_run=True)
    told = explanations.forecast(asked, answer)
    # Handed in at the same time: a second later another machine may be the better one.
    fleet.queue.ask(Submit(asked=asked.model_copy(update={"dry_run": False})))
    workers.settle()
    again = {name: explanations.explain(name).expected for name in ("late-gpu/2", "new-cpu/2", "new-gpu/3")}
    workers.finish_all()
    for name, expected in again.items():
        assert expected is not None
        assert workers.granted[name][0] == expected.machine
        assert workers.granted[name][1] == pytest.approx(expected.starts_s, abs=0.5)
    for order_, outcome in zip(orders, told.jobs, strict=True):
        at, at_s = workers.granted[f"{order_.name}/{order_.number}"]
        assert (order_.name, outcome.machine) == (order_.name, at)
        assert outcome.starts_s == pytest.approx(at_s, abs=0.5)
    assert told.done_s is not None
    assert told.done_s == pytest.approx(max(one.ends_s or 0.0 for one in told.jobs))


def test_a_dry_run_on_an_idle_fleet_names_the_machine_that_a_job_prefers(
    fleet: Driven, workers: Workers, explanations: Explanations
) -> None:
    orders = [
        order("liked", 1, requirements=ON_DEVICE, prefer_hosts=("slow",)),
        order("plain", 1, requirements=ON_CPU),
    ]
    asked = Submission(jobs=tuple(orders), dry_run=True, submitter="me@desk")
    told = explanations.forecast(asked, fleet.submit(*orders, dry_run=True))
    assert [one.machine for one in told.jobs] == ["slow", "cpu"]
    fleet.queue.ask(Submit(asked=asked.model_copy(update={"dry_run": False})))
    workers.settle()
    assert (workers.granted["liked/1"][0], workers.granted["plain/1"][0]) == ("slow", "cpu")


def test_a_dry_run_counts_on_the_durations_that_its_jobs_state(
    fleet: Driven, workers: Workers, explanations: Explanations
) -> None:
    stated: dict[str, Any] = {"recipe": "tabular/other", "requirements": ON_DEVICE}
    orders = [order("stated", number, **stated, expected_s=DEVICE_S) for number in range(1, 6)]
    there: dict[str, Any] = {"expected_s": DEVICE_S / MACHINES["slow"][1], "allowed_hosts": ("slow",)}
    orders += [order("there", number, **stated, **there) for number in range(1, 3)]
    asked = Submission(jobs=tuple(orders), dry_run=True, submitter="me@desk")
    told = explanations.forecast(asked, fleet.submit(*orders, dry_run=True))
    fleet.queue.ask(Submit(asked=asked.model_copy(update={"dry_run": False})))
    workers.finish_all()
    granted = [workers.granted[f"{one.name}/{one.number}"] for one in orders]
    assert [one.machine for one in told.jobs] == [machine for machine, _ in granted]
    # One duration stands for all within a tenth, so starts may differ by a little; jobs take a minute and more.
    assert [one.starts_s for one in told.jobs] == pytest.approx([at_s for _, at_s in granted], abs=15)


def test_jobs_of_a_dry_run_are_of_the_user_whose_name_is_verified_on_whichever_computer(
    fleet: Driven, workers: Workers
) -> None:
    fleet.submit(*jobs("early", range(4, 7)), submitter="ann (ann@desk)")
    workers.finish_all()
    looked = fleet.queue.ask(InspectMachines(schedule=True))
    assert isinstance(looked, MachineInspection)
    assert looked.schedule is not None
    explainer = Explainer(Fleet(offers=looked.offers), now_s=fleet.clock.wall_s())
    newcomers = HypotheticalJobs(looked.schedule, explainer, "ann (ann@laptop)")
    again = order("early-gpu", 7, requirements=ON_DEVICE)
    newcomers.add(0, case_of_order(again, now_s=fleet.clock.wall_s()), again)
    new = newcomers.snapshot().classes[-1]
    assert (new.user, new.based_on) == ("ann", "median of 3 runs")


def test_the_schedule_that_a_coordinator_sends_can_be_read_again(
    fleet: Driven, workers: Workers, explanations: Explanations
) -> None:
    fleet.submit(*jobs("late", range(1, 6)), order("blocked", after=("late-gpu/5",)))
    workers.settle()
    view = explanations.schedule()
    snapshot = snapshot_from_dict(view.schedule)
    assert [one.offer.node for one in snapshot.machines] == list(MACHINES)
    assert len(snapshot.leases) == 3
    assert snapshot.ready_count == 7
    assert sorted(view.names.values()) == sorted(
        f"late-{sort}/{number}"
        for sort in ("gpu", "cpu")
        for number in range(1, 6)
        if f"late-{sort}/{number}" not in workers.granted
    )
    assert view.blocked == 1
    assert {one.based_on for one in snapshot.classes} == {"median of 3 runs"}


def test_explain_says_afterwards_why_a_machine_was_granted_a_job(
    fleet: Driven, workers: Workers, explanations: Explanations
) -> None:
    fleet.submit(order("mine", requirements=ON_DEVICE, prefer_hosts=("slow",)))
    workers.settle()
    found = explanations.explain("mine")
    assert found.job.machine == "slow"
    assert "preferred host, " in found.chosen
    assert "score" in found.chosen
    assert found.expected is None
    fleet.submit(order("prep", requirements=ON_CPU))
    workers.settle()
    assert "best of the free machines: a machine without devices, score" in explanations.explain("prep").chosen


def test_a_machine_is_shown_with_what_each_of_its_jobs_reserved(
    fleet: Driven, workers: Workers, explanations: Explanations
) -> None:
    fleet.submit(
        order("whole", requirements={"wish": "require", "ram_bytes": GIB}, allowed_hosts=("fast",)),
        order("part", requirements=ON_DEVICE, allowed_hosts=("slow",)),
        order("cores", requirements=ON_CPU, allowed_hosts=("cpu",)),
    )
    workers.settle()
    found = {one.name: one.holders for one in explanations.machines()}
    shown = {one.name: (len(one.devices), one.memory_bytes, one.ram_bytes) for some in found.values() for one in some}
    assert shown == {"whole": (1, None, GIB), "part": (1, 4 * GIB, GIB), "cores": (0, None, GIB)}
    (part,) = found["slow"]
    assert part.started_s is not None
