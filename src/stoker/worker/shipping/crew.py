"""Several pieces of one transfer at the same time: all of them, or the first failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

CREW = 3
"""So many at once."""


def do_all(pieces: Iterable[Callable[[], None]], *, name: str, give_up: Callable[[], None]) -> None:
    """Do all pieces, in threads of that name. Where one fails, `give_up` ends the others, and its error is raised.

    Nothing of it runs any more when this returns or raises.
    """
    crew = ThreadPoolExecutor(CREW, thread_name_prefix=name)
    try:
        done, _ = wait([crew.submit(piece) for piece in pieces], return_when=FIRST_EXCEPTION)
        for one in done:
            one.result()
    except BaseException:
        give_up()
        raise
    finally:
        crew.shutdown(wait=True, cancel_futures=True)
