"""The last steps: bytes on the disk, then their final name, then the validators beside it.

A crash between any two steps leaves the final name as it was, or a checked file without validators, which only costs a
look at the server. Old validators are gone before the name changes hands: they would speak for a file they never saw.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.host.anchored import AnchoredFolder
from stoker.model.errors import LocalFile, LockHeld
from stoker.model.frozen import frozen
from stoker.store.download.existing import Validators, remove_validators, write_validators
from stoker.store.download.partial import Partial

STEPS = ("sidecar", "write", "sync", "check", "rename", "sync_dir", "validators", "done")
"""Every step that `on_step` is told of, in the order of a download; `write` comes once for each piece."""

OnStep = Callable[[str], None]


@frozen
class OpenLanding:
    """A landing that is open: the folder, the final name in it, those of the partial file and its sidecar."""

    folder: AnchoredFolder
    leaf: str
    names: tuple[str, str]
    keeps_validators: bool

    @property
    def part_path(self) -> str:
        return self.folder.path_of(self.names[0])


def name_partial(landing: OpenLanding, partial: Partial, validators: Validators, on_step: OnStep) -> None:
    """Give a checked partial file its final name. Raises `BytesLost`, `LockHeld`, `LocalFile`: see `Content.name`."""
    on_step("sync")
    partial.sync()
    on_step("check")
    if not partial.is_ours() or partial.size_bytes != partial.end_bytes:
        path = landing.part_path
        if not landing.folder.is_in_place():
            folder = landing.folder.path
            raise LocalFile(f"its folder was removed while it was fetched: {folder}", hint="start again", path=folder)
        raise LockHeld(f"another process took it over: {path}", hint="let that one finish, then look again", path=path)
    _forget_validators(landing)
    on_step("rename")
    partial.name_it(landing.leaf)
    _seal(landing, validators, on_step)


def name_small(landing: OpenLanding, body: bytes, validators: Validators, on_step: OnStep) -> None:
    """Write a checked body straight to its final name; an old partial file goes."""
    _forget_validators(landing)
    landing.folder.write_file(landing.leaf, body, on_step=on_step)
    for name in landing.names:
        landing.folder.remove(name)
    _seal(landing, validators, on_step)


def _forget_validators(landing: OpenLanding) -> None:
    if landing.keeps_validators:
        remove_validators(landing.folder, landing.leaf)


def _seal(landing: OpenLanding, validators: Validators, on_step: OnStep) -> None:
    on_step("sync_dir")
    landing.folder.sync()
    if not landing.folder.is_in_place():
        path = landing.folder.path_of(landing.leaf)
        message = f"its folder was moved or replaced while it was fetched, so it is not at {path}"
        raise LocalFile(message, hint="it is whole, in the folder that was moved away", path=path)
    if landing.keeps_validators and validators:
        on_step("validators")
        write_validators(landing.folder, landing.leaf, validators)
