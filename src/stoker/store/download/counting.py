"""How many bytes come, from what downloads say of their files: each told once, of as many files as come at a time."""

from __future__ import annotations

from collections.abc import Callable

from stoker.model.events import Event, Kinds

_HOW_FAR = {Kinds.DOWNLOAD_START: "start", Kinds.DOWNLOAD_PROGRESS: "downloaded", Kinds.DOWNLOAD_DONE: "bytes"}


def counting(heed: Callable[[int], None]) -> Callable[[Event], None]:
    """Give what hears downloads, and tells `heed` of every byte that comes.

    What was here of a file when it was gone on with does not count; a file that was found whole does, all of it.
    """
    at: dict[object, int] = {}

    def hear(event: Event) -> None:
        file, far = event.fields.get("file"), event.fields.get(_HOW_FAR.get(event.kind, ""))
        if not isinstance(far, int):
            return
        before = at.get(file, 0)
        at[file] = far if event.kind == Kinds.DOWNLOAD_START else max(before, far)
        if event.kind != Kinds.DOWNLOAD_START and far > before:
            heed(far - before)

    return hear
