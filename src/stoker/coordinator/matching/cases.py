"""Nouns of an explanation: the job that is asked about, and the fleet as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.model.frozen import changed, fresh, frozen
from stoker.model.names import point_name
from stoker.model.requirements import WantedJob
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.shares import ShareView
from stoker.scheduler.simulation.forecast import JobForecast
from stoker.wire.environments import environment_digest
from stoker.wire.leasing import Holdings
from stoker.wire.orders import EnvironmentChoice, InputBody, JobOrder
from stoker.wire.views import JobView


@frozen
class Prerequisite:
    """A job that another one comes after."""

    name: str
    state: str
    ends_s: float | None = None
    """When it may end, if it runs and anybody knows."""


@frozen
class Decline:
    """A machine that was given the job, looked again, and would not start it."""

    machine: str
    reason: str
    message: str = ""
    at_s: float | None = None

    def to_dict(self) -> dict[str, object]:
        return {"machine": self.machine, "reason": self.reason, "message": self.message, "at_s": self.at_s}


@frozen
class Case:
    """One job, and what the queue knows of it."""

    job: JobView
    wanted: WantedJob
    after: tuple[Prerequisite, ...] = ()
    """Those it comes after that have not completed."""
    not_before_s: float = 0.0
    """It waits a while after a failure, or after many declines; 0: it does not."""
    message: str = ""
    """What its last attempt ended with, if it waits after one."""
    ahead: int | None = None
    """How many ready jobs go before it; nothing: it is not in the line."""
    declines: tuple[Decline, ...] = ()
    """The newest first."""
    spent: Mapping[str, tuple[int, int]] = fresh(factory=dict)
    """Cause → how many attempts ended for it, and how many may."""
    ends_s: float | None = None
    """Of a job that runs, when it may end."""
    based_on: str = ""
    """What the estimate of its duration is from; empty: there is none."""
    forecast: JobForecast | None = None
    """What is expected of it, if it waits and that is known."""
    names: Mapping[int, str] = fresh(factory=dict)
    """Names of jobs that go first somewhere, by number."""
    share: ShareView | None = None
    """How its submitter stands beside others."""
    chosen: str = ""
    """Why its machine was granted it, if it has one."""
    environment: tuple[EnvironmentChoice, ...] = ()
    """What its interpreter is made from."""
    inputs: tuple[InputBody, ...] = ()
    """What it reads."""


@frozen
class Holder:
    """A live lease on a machine."""

    job: str
    """Its name."""
    wanted: WantedJob
    devices: tuple[str, ...] = ()
    is_shared: bool = False
    ends_s: float | None = None
    """When it may end; nothing: nobody knows."""
    based_on: str = ""

    def to_dict(self) -> dict[str, object]:
        return {
            "job": self.job,
            "devices": list(self.devices),
            "is_shared": self.is_shared,
            "until_s": self.ends_s,
            "based_on": self.based_on,
        }


@frozen
class Fleet:
    """All machines that may be given work, what they hold, and those that nobody hears from."""

    offers: Sequence[NodeOffer] = ()
    holders: Mapping[str, Sequence[Holder]] = fresh(factory=dict)
    """By machine."""
    absent: Mapping[str, str] = fresh(factory=dict)
    """Machine → since when, or why, it does not count: `silent for 12m03s`."""
    away: Sequence[NodeOffer] = ()
    """What those would offer, were they back; of one that is not here, nobody knows."""
    closed_until_s: Mapping[str, float] = fresh(factory=dict)
    """Of machines that are closed for a time."""
    holdings: Mapping[str, Holdings] = fresh(factory=dict)
    """What machines' workers said that they have."""


def case_of_order(order: JobOrder, *, now_s: float, ahead: int | None = None) -> Case:
    """Return a job that is not in the queue yet, as it would stand there if it were handed in now."""
    job = JobView(
        id=order.id,
        name=point_name(order.name, order.number),
        label=order.label,
        recipe=order.recipe,
        mode=order.mode,
        state="pending",
        priority=order.priority,
        epoch=0,
        attempt=0,
        submitted_s=now_s,
        changed_s=now_s,
    )
    wanted = changed(order.wanted(), environment=environment_digest(order.environment))
    return Case(job=job, wanted=wanted, ahead=ahead, environment=order.environment, inputs=order.inputs)
