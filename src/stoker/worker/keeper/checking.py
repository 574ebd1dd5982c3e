"""The second look before a start: what was granted from an older picture of this machine may not fit it now. Pure."""

from __future__ import annotations

from stoker.hardware.admission import Admitted, Memory, admit
from stoker.model.frozen import frozen
from stoker.model.units import format_size
from stoker.wire.identity import identity_fault
from stoker.wire.leasing import Grant
from stoker.worker.program_order import RECIPE

LEAST_FREE_BYTES = 256 * 1024 * 1024
"""Of disk: with less, a worker takes no work, and starts none."""


@frozen
class Look:
    """What was seen just now of what a job needs."""

    memory: Memory
    disk_free_bytes: int | None
    recipe_version: int | None
    """None: this machine has no recipe of that name."""
    recipe_trouble: str = ""
    missing_folder: str = ""
    missing_program: str = ""
    """Why what it is to run with can't be found."""
    unaccepted_code: str = ""
    """Why its code is not run here."""
    secret_trouble: str = ""
    """Why not all of its secrets are known here."""
    device_trouble: str = ""


@frozen
class Refusal:
    """Why it is not started here: a word for machines, a line for people."""

    reason: str
    message: str
    lasts: bool = False
    """It stays so until something is done on this machine."""


def why_not(grant: Grant, look: Look) -> Refusal | None:
    """Say why a job does not start here and now; nothing if it does."""
    checks = (_identity, _recipe, _surroundings, _room)
    return next((found for found in (check(grant, look) for check in checks) if found is not None), None)


def _identity(grant: Grant, _look: Look) -> Refusal | None:
    """Refuse a job that is not the one its id names: the coordinator, or its database, was tampered with."""
    fault = identity_fault(grant.job, grant)
    return Refusal(reason="identity", message=f"not the job that its id names: {fault}", lasts=True) if fault else None


def _recipe(grant: Grant, look: Look) -> Refusal | None:
    if look.recipe_version is None:
        return Refusal(reason="recipe", message=look.recipe_trouble or f"there is no recipe {grant.recipe} here")
    if grant.recipe != RECIPE and (grant.code_tree or grant.environment):
        # It would be imported by a process that runs as the worker.
        message = f"{grant.recipe} runs the code of this machine, and the job brings its own"
        return Refusal(reason="recipe", message=message)
    if look.recipe_version != grant.schema_version:
        versions = f"version {look.recipe_version} here, made for {grant.schema_version}"
        return Refusal(reason="recipe_version", message=f"{grant.recipe} is of {versions}")
    return None


def _surroundings(_grant: Grant, look: Look) -> Refusal | None:
    if look.unaccepted_code:
        return Refusal(reason="code", message=look.unaccepted_code, lasts=True)
    if look.missing_folder:
        return Refusal(reason="folder", message=f"there is no folder {look.missing_folder} here")
    if look.missing_program:
        return Refusal(reason="program", message=look.missing_program)
    if look.secret_trouble:
        return Refusal(reason="secrets", message=look.secret_trouble)
    return None


def _room(grant: Grant, look: Look) -> Refusal | None:
    if full := why_closed(look.disk_free_bytes):
        return Refusal(reason="disk", message=full)
    answer = admit(grant.ram_bytes, look.memory)
    if not isinstance(answer, Admitted):
        return Refusal(reason="memory", message=answer.why)
    return Refusal(reason="device", message=look.device_trouble) if look.device_trouble else None


def why_closed(disk_free_bytes: int | None) -> str:
    """Say why a machine takes no work at all; nothing if it does."""
    if disk_free_bytes is None or disk_free_bytes >= LEAST_FREE_BYTES:
        return ""
    return f"its disk is full: {format_size(disk_free_bytes)} are free, {format_size(LEAST_FREE_BYTES)} are the least"
