"""A coordinator of this machine, built and run: database, queue, what is kept, and the service before them.

    serving = Serving(settings, options, clock=…, version=…, read_manifest=…)
    code = serving.run(on_ready=…, say=…)

Settings come from options, then from the environment. While it listens, `state/serve.json` says where, so that every
other command of this home finds it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from stoker.assembly.operator_token import long_enough, make_token, read_token
from stoker.assembly.settings import Settings
from stoker.coordinator.service.options import Ready, ServeOptions
from stoker.host.listening import allow_many_files, listen_at, read_listen
from stoker.model.clock import Clock
from stoker.model.errors import BadInput, NotFound
from stoker.model.leases import Budgets, FleetTimes
from stoker.wire.finding import OPERATOR_TOKEN
from stoker.wire.orders import Submission
from stoker.wire.protocol import DEFAULT_PORT

if TYPE_CHECKING:
    from stoker.coordinator.keeping.keeping import LocalKeeping
    from stoker.coordinator.queue.queue import Queue
    from stoker.coordinator.service.service import Parts

HOST = "127.0.0.1"
_HEARTBEATS_PER_LEASE = 3
_HEARTBEATS_AT_LEAST = 2
_LEAST_START_S = 10.0
_LEASES_TO_START = 4


class Serving:
    """One coordinator, from its options to its exit code."""

    def __init__(
        self,
        settings: Settings,
        options: ServeOptions,
        *,
        clock: Clock,
        version: str,
        read_manifest: Callable[[str], Submission],
    ) -> None:
        self._settings = settings
        self._options = options
        self._clock = clock
        self._version = version
        self._read_manifest = read_manifest

    def run(self, *, on_ready: Callable[[Ready], None], say: Callable[[str], None]) -> int:
        """Serve until a signal ends it, and give the exit code. `say` hears what a log should have."""
        from stoker.coordinator.service.access import is_loopback, rules_for

        times = self._times()
        host, port = read_listen(self._options.listen)
        host, port = host or HOST, DEFAULT_PORT if port < 0 else port
        token, token_file = self._token(is_local=is_loopback(host))
        with ExitStack() as held:
            listening = held.enter_context(listen_at(host, port))
            allow_many_files()
            # From here on it takes a while; what can't be is refused before.
            from stoker.coordinator.service.running import Running, Stage
            from stoker.coordinator.service.service import Service

            port = listening.getsockname()[1]
            parts = self._build(held, times)
            files = parts.files.read_again()
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            rules = rules_for(token=token, host=host, port=port)
            ready = Ready(
                url=url,
                database=parts.about.database,
                token_file=token_file,
                is_open=rules.is_open,
                times=times,
                files=files,
            )

            def announce() -> None:
                self._announce(url, token_file)
                held.callback(self._withdraw)
                on_ready(ready)

            _keep_what_is_here()
            stage = Stage(listening=listening, make=lambda: Service(parts, rules, say=say), on_ready=announce, say=say)
            return Running(stage).run()

    def _times(self) -> FleetTimes:
        options, usual = self._options, FleetTimes()
        lease_s = options.lease_s or usual.lease_s
        heartbeat_s = options.heartbeat_s or min(usual.heartbeat_s, lease_s / _HEARTBEATS_PER_LEASE)
        if heartbeat_s * _HEARTBEATS_AT_LEAST > lease_s:
            raise BadInput(
                f"a heartbeat every {heartbeat_s:g} s does not keep a lease of {lease_s:g} s",
                hint=f"--heartbeat {lease_s / _HEARTBEATS_PER_LEASE:g}s, or a longer --lease",
            )
        return FleetTimes(
            heartbeat_s=heartbeat_s,
            lease_s=lease_s,
            grace_s=min(usual.grace_s, lease_s / 3),
            # Whoever wants lost jobs back soon wants those back soon, too, that were granted and never started.
            start_s=min(usual.start_s, max(_LEAST_START_S, lease_s * _LEASES_TO_START)),
        )

    def _token(self, *, is_local: bool) -> tuple[str, str]:
        """Give the operator's token and the file it lies in: one that was named, the environment's, else our own."""
        given = self._settings.environment.get(OPERATOR_TOKEN, "").strip()
        if self._options.token_file:
            return read_token(self._options.token_file), self._options.token_file
        if given:
            return long_enough(given, OPERATOR_TOKEN), ""
        if not is_local:
            raise BadInput(
                "whoever listens to other machines needs a token",
                hint=f"--token-file FILE or {OPERATOR_TOKEN}; without --listen it serves this machine alone",
            )
        from stoker.wire.serve_file import TOKEN_NAME

        path = os.path.join(self._settings.state, TOKEN_NAME)
        return make_token(path), path

    def _build(self, held: ExitStack, times: FleetTimes) -> Parts:
        from stoker.config.cluster_file import read_cluster
        from stoker.coordinator.database.opening import open_database
        from stoker.coordinator.keeping.ingesting import Ingesting
        from stoker.coordinator.keeping.keeping import LocalKeeping
        from stoker.coordinator.matching.matcher import Matcher
        from stoker.coordinator.queue.queue import Queue
        from stoker.coordinator.service.office import About
        from stoker.coordinator.service.rereading import Files
        from stoker.coordinator.service.service import Parts

        options, clock = self._options, self._clock
        folder = self._settings.fleet
        keeping = LocalKeeping(folder, clock)
        held.callback(keeping.close)
        database = open_database(options.db or self._settings.queue, clock=clock)
        held.callback(database.close)
        queue = Queue(
            database,
            clock=clock,
            times=times,
            budgets=Budgets(),
            matcher=Matcher(starved_s=times.starved_s),
            has_object=keeping.has_archive,
            version=self._version,
        )
        held.callback(queue.close)
        _forget_lost_past(keeping, queue)
        ingesting = held.enter_context(Ingesting(keeping.models, database))
        queue.on_change(ingesting.changed)
        cluster, manifest = options.cluster, options.manifest
        files = Files(
            queue,
            cluster=(lambda: read_cluster(cluster, cluster)) if cluster else None,
            manifest=(lambda: self._read_manifest(manifest)) if manifest else None,
            source=cluster,
        )
        about = About(version=self._version, database=database.shown, started_s=clock.wall_s(), times=times)
        return Parts(queue=queue, keeping=keeping, files=files, about=about, clock=clock)

    def _announce(self, url: str, token_file: str) -> None:
        from stoker.host.identity import mine
        from stoker.wire.serve_file import ServeFile

        os.makedirs(self._settings.state, exist_ok=True)
        ServeFile(url=url, owner=mine(), token_file=token_file, version=self._version).write(self._settings.state)

    def _withdraw(self) -> None:
        from stoker.host.identity import mine
        from stoker.wire.serve_file import NAME, read_serve_file

        found = read_serve_file(self._settings.state)
        if found is not None and found.owner == mine():
            with suppress(OSError):
                os.unlink(os.path.join(self._settings.state, NAME))


def _keep_what_is_here() -> None:
    """Look for garbage seldom, and never among what was made until now: requests make next to no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _forget_lost_past(keeping: LocalKeeping, queue: Queue) -> None:
    """After a restore, remove mirrors of attempts that the queue no longer knows: their numbers are given again."""
    from stoker.coordinator.keeping.lost_past import forget_lost_past

    reader = queue.reader

    def known_attempts(job: str) -> int:
        try:
            return len(reader.attempts_of(job))
        except NotFound:
            return 0

    generation = int(reader.meta().get("generation", "1"))
    forget_lost_past(keeping.attempt_files, keeping.folder, generation, known_attempts)
