"""The front door of a waiter: `python -m stoker.app.notify_main`, which `stoker submit --notify CMD` leaves.

Its standard input says in one line which jobs and which command. It waits until all of them have ended, however long
the coordinator is away meanwhile, runs the command once, and ends. It outlives the terminal that it came from; what it
does stands in its standard output, which is a log.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

from stoker.api.fleet_job import wait_for
from stoker.api.job_lookup import open_client
from stoker.app.app import App
from stoker.cli.submission import notice_variables
from stoker.core.errors import BadAnswer, NoCoordinator, StokerError, Unavailable
from stoker.core.jsontext import loads
from stoker.host.processes import start
from stoker.protocol.discovery import find_coordinator
from stoker.protocol.view_messages import JobView

_AGAIN_S = 30.0
GIVE_UP_S = 14 * 24 * 3600.0
"""Without a word of the coordinator."""


def main() -> int:
    """Wait, then run the command; give its exit code."""
    assembly = App.here()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        return SubmissionWaiter(assembly, loads(line)).run()
    finally:
        assembly.close()


class SubmissionWaiter:
    """Waits for one submission."""

    def __init__(self, assembly: App, ticket: dict[str, Any]) -> None:
        self._assembly = assembly
        self._clock = assembly.clock
        self._at = str(ticket["at"])
        self._jobs: list[str] = list(ticket["jobs"])
        self._command = str(ticket["command"])
        self._has_heard = False

    def run(self) -> int:
        """Wait to the end."""
        self._say(f"waits for {len(self._jobs)} jobs; will run: {self._command}")
        heard_s = self._clock.monotonic_s()
        while True:
            try:
                url, found = self._wait()
            except (NoCoordinator, BadAnswer, Unavailable) as error:
                if self._has_heard:
                    self._has_heard, heard_s = False, self._clock.monotonic_s()
                if self._clock.monotonic_s() - heard_s > GIVE_UP_S:
                    self._say(f"gave up: {error}")
                    return 1
                self._say(f"waits on: {error.message}")
                self._clock.sleep(_AGAIN_S)
            except StokerError as error:
                self._say(f"can't wait any longer: {error}")
                return 1
            else:
                return self._perform(notice_variables(found, url=url))

    def _wait(self) -> tuple[str, list[JobView]]:
        assembly = self._assembly
        settings = assembly.settings
        found = find_coordinator(self._at, environment=settings.environment, state=settings.state)
        if found is None:
            raise NoCoordinator("no coordinator known", hint="`stoker serve` starts it again")
        client, transport = open_client(assembly, found)
        try:
            views = [client.job(job).job for job in self._jobs]
            self._has_heard = True
            ended = wait_for(client, views, clock=self._clock)
            return found.url, [ended[job] for job in self._jobs]
        finally:
            transport.close()

    def _perform(self, variables: dict[str, str]) -> int:
        settings = self._assembly.settings
        self._say("all have ended; running the command")
        child = start(
            ["/bin/sh", "-c", self._command],
            cwd=settings.folder,
            env={**settings.environment, **variables},
            stdout=sys.stdout.fileno(),
            stderr=sys.stdout.fileno(),
        )
        ended = child.wait(clock=self._clock)
        self._say(f"command ended: {ended}")
        return 0 if ended.is_success else 1

    def _say(self, text: str) -> None:
        at = f"{datetime.fromtimestamp(self._clock.wall_s()).astimezone():%Y-%m-%d %H:%M:%S}"
        # A full disk does not prevent the notification.
        with suppress(OSError):
            sys.stdout.write(f"{at} {text}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
