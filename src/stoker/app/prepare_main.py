"""The front door of a preparing child: `python -m stoker.app.prepare_main`.

Its standard input says in one line what a job needs and where the coordinator is, and then stays open: when it ends,
so does this. What it has to say goes to its standard output, line by line (`worker.preparation.prepare_child`).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import IO, TYPE_CHECKING, Any

from stoker.app.app import App
from stoker.app.machine_parts import here_of, open_hub
from stoker.core.errors import Terminated
from stoker.core.jsontext import loads
from stoker.host.http.exchange import FleetIdentity, asked_directly
from stoker.host.users import OtherUser
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import Grant
from stoker.protocol.transport import RequestTimeouts as Waiting
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.trees.tree_sources import UNHEARD_S, FleetTreeSourceFinder, peer_opener
from stoker.worker.preparation.input_fetch import InputFetcher, InputFetcherContext

if TYPE_CHECKING:
    from stoker.transfer.hub.client import Hub
    from stoker.worker.preparation.prepare_child import PrepareLine

_LONGEST_WAIT_S = 30.0
_CONNECT_S = 4.0
"""A system asks for a connection at once, after 1 s, after 3 s, then ever more seldom: to begin again finds a link that
is back within 2 s."""


def main() -> int:
    """Bring what a job needs; give the exit code."""
    assembly = App.here()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0
    stop = DownloadStop()
    signal.signal(signal.SIGTERM, lambda *_: stop.ask(Terminated("stopped by its worker")))
    # Ctrl-C is meant for the worker, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(sys.stdin.buffer, stop), name="stoker-worker-watch", daemon=True).start()
    say = _saying(sys.stdout.buffer)
    try:
        say(_bring(assembly, loads(line), stop, say))
    finally:
        assembly.close()
    return 0


def _bring(
    assembly: App, ticket: dict[str, Any], stop: DownloadStop, say: Callable[[PrepareLine], None]
) -> PrepareLine:
    clock, url = assembly.clock, str(ticket["url"])
    said = ticket["identity"]
    identity = FleetIdentity(**{**said, "sockets": tuple(said["sockets"])}) if said else None
    transport = assembly.open_transport(
        _LONGEST_WAIT_S, direct=asked_directly(url), fleet=identity, connect_s=_CONNECT_S, unheard_s=UNHEARD_S
    )
    try:
        patience = Waiting(answer_s=20.0)
        client = FleetClient(transport, url, clock=clock, patience=patience)
        opener = peer_opener(identity, clock=clock, user_agent=f"stoker/{assembly.version}")
        with ExitStack() as held:
            origins = held.enter_context(FleetTreeSourceFinder(client, worker=str(ticket["worker"]), open_peer=opener))

            def hub(hub_stop: DownloadStop, heed: Callable[[int], None]) -> Hub:
                outside = held.enter_context(closing(assembly.open_transport(_LONGEST_WAIT_S)))
                return open_hub(assembly, outside, hub_stop, heed)

            # Another user's program may not be able to read a file where the submitter has it.
            user = OtherUser.from_dict(ticket["user"]) if ticket["user"] else None
            here, data = here_of(assembly, may_read_in_place=user is None, user=user)
            bench = InputFetcherContext(
                here=here,
                store=assembly.store,
                data=data,
                maker=here.maker,
                origins=origins,
                open_hub=hub,
                stop=stop,
                clock=clock,
                say=say,
            )
            return InputFetcher(bench, Grant.model_validate(ticket["grant"])).run()
    finally:
        transport.close()


def _saying(out: IO[bytes]) -> Callable[[PrepareLine], None]:
    turn = threading.Lock()

    def say(shown: PrepareLine) -> None:
        with turn:
            out.write(shown.to_line())
            out.flush()

    return say


def _end_with(pipe: IO[bytes], stop: DownloadStop) -> None:
    """End when the worker that started us is gone."""
    pipe.read()
    stop.ask(Terminated("its worker is gone"))


if __name__ == "__main__":
    sys.exit(main())
