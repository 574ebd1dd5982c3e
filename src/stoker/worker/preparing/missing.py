"""What a job needs and this machine does not have yet. Pure: who looks is elsewhere, and so is who brings it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from stoker.model.frozen import fresh, frozen
from stoker.model.units import format_size
from stoker.wire.leasing import Grant
from stoker.wire.orders import InputBody, InputKind
from stoker.worker.environments.answers import Impossible, Ready

CODE = "code"


class Standing(StrEnum):
    """How something that a job reads stands on this machine."""

    IN_PLACE = "in_place"
    """It lies where whoever submitted it has it, and is still that."""
    UNSURE = "unsure"
    """Something lies there; whether it is still that is not known without reading it."""
    HELD = "held"
    """It is in this machine's store, or its cache."""
    ABSENT = "absent"


@frozen
class Held:
    """What a quick look found."""

    code: bool = False
    """The code's tree is in the store; of a job without one it does not matter."""
    inputs: Mapping[str, Standing] = fresh(factory=dict)
    """By `InputBody.where`."""
    environment: Ready | Impossible | None = None
    """Nothing: it has to be made, or the job has none."""


@frozen
class Missing:
    """What has to be brought before a job can start."""

    code: bool = False
    inputs: tuple[InputBody, ...] = ()
    environment: bool = False
    impossible: str = ""
    """Why no bringing will do: this machine can't have its environment."""

    @property
    def is_nothing(self) -> bool:
        return not (self.code or self.inputs or self.environment or self.impossible)

    @property
    def is_code_alone(self) -> bool:
        return self.code and not (self.inputs or self.environment or self.impossible)

    def words(self) -> str:
        """Say it in a line: `code, DATA (12.1 GiB), environment`."""
        named = [CODE] if self.code else []
        named += [f"{name_of(one)} ({format_size(one.size_bytes)})" for one in self.inputs]
        return ", ".join([*named, *(["environment"] if self.environment else [])])


def what_is_missing(grant: Grant, held: Held) -> Missing:
    """Compare what a job needs with what was found."""
    if isinstance(held.environment, Impossible):
        return Missing(impossible=held.environment.why)
    here = (Standing.IN_PLACE, Standing.HELD)
    return Missing(
        code=bool(grant.code_tree) and not held.code,
        inputs=tuple(one for one in grant.inputs if held.inputs.get(one.where, Standing.ABSENT) not in here),
        environment=bool(grant.environment) and held.environment is None,
    )


def name_of(needed: InputBody) -> str:
    """Give what people call an input: its variable or argument."""
    return needed.where.partition(":")[2]


def is_repository(needed: InputBody) -> bool:
    """Say whether each machine fetches it from the hub itself."""
    return needed.kind is InputKind.REPO
