"""A coordinator of this machine, built and run: database, queue, what is kept, and the service before them.

    serving = Serving(settings, options, clock=…, version=…, read_manifest=…)
    code = serving.run(on_ready=…, say=…)

Settings come from options, then from the environment. It also listens at a Unix socket for its own user. While it
listens, `state/serve.json` says where, so that every other command of this home finds it.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stoker.assembly.operator_token import long_enough, make_token, read_token
from stoker.assembly.settings import Settings
from stoker.coordinator.service.options import ReadManifest, Ready, ServeOptions
from stoker.host.listening import allow_many_files, listen_at, read_listen
from stoker.host.notify_socket import NotifySocket
from stoker.model.clock import Clock
from stoker.model.errors import BadInput, NotFound, StokerError, Unavailable
from stoker.model.fleet_errors import AlreadyServing
from stoker.model.frozen import changed
from stoker.model.leases import Budgets, FleetTimes
from stoker.model.units import format_duration
from stoker.wire.finding import DEFAULT_PORT, OPERATOR_TOKEN

if TYPE_CHECKING:
    from stoker.assembly.secure_serving import SecureServing
    from stoker.coordinator.keeping.contents import Contents
    from stoker.coordinator.keeping.keeping import LocalKeeping
    from stoker.coordinator.notifying.notifier import Notifier
    from stoker.coordinator.queue.queue import Queue
    from stoker.coordinator.service.code_gate import CodeGate
    from stoker.coordinator.service.rereading import Files
    from stoker.coordinator.service.service import Parts
    from stoker.host.door import KeptDoor
    from stoker.model.artifacts import OpenEntry, Tree

HOST = "127.0.0.1"
_SOCKETS = "sockets"
"""Below `state`: where the socket is if no folder outside this home can be used."""
_HEARTBEATS_PER_LEASE = 3
_HEARTBEATS_AT_LEAST = 2
_LEAST_START_S = 10.0
_LEAST_EVENTS_KEPT_S = 24 * 3600.0
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
        read_manifest: ReadManifest,
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
        token, token_file = self._token()
        supervisor = NotifySocket(self._settings.environment, self._clock)
        with ExitStack() as held:
            try:
                listening = held.enter_context(listen_at(host, port))
            except Unavailable as error:
                raise self._why_taken(error, port) from None
            allow_many_files()
            # From here on it takes a while; what can't be is refused before.
            from stoker.coordinator.service.running import Local, Pulse, Running, Stage
            from stoker.coordinator.service.service import Service

            port = listening.getsockname()[1]
            # Nothing listens beyond loopback without TLS.
            secure = None if is_loopback(host) else self._secure(host, port)
            local = self._listen_locally(held, host, port, say)
            url = secure.url if secure is not None else f"http://{f'[{host}]' if ':' in host else host}:{port}"
            parts = self._build(held, times, secure, url)
            files = parts.files.read_again()
            ca_file = secure.ca_file if secure is not None else ""
            names = secure.names() if secure is not None else ()
            rules = rules_for(token=token, host=host, port=port, names=names)
            rules = changed(rules, system_a=self._options.system_a)
            ready = Ready(
                url=url,
                database=parts.about.database,
                token_file=token_file,
                socket=local.door.path,
                is_open=rules.is_loopback,
                ca_file=ca_file,
                times=times,
                system_a=rules.system_a,
                files=files,
            )

            def announce() -> None:
                self._announce(secure.local_url if secure is not None else url, ready)
                held.callback(self._withdraw)
                supervisor.ready()
                on_ready(ready)

            _keep_what_is_here()
            stage = Stage(
                listening=listening,
                make=lambda: Service(parts, rules, say=say),
                on_ready=announce,
                say=say,
                tls=secure.tls() if secure is not None else None,
                local=Local(listener=local.listener, renew=local.renew),
                pulse=Pulse(beat=supervisor.alive, every_s=every_s) if (every_s := supervisor.beats_every_s) else None,
            )
            held.callback(supervisor.ending)
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
        events_kept_s = usual.events_kept_s if options.events_kept_s is None else options.events_kept_s
        if events_kept_s < _LEAST_EVENTS_KEPT_S:
            raise BadInput(
                f"events that are kept for {format_duration(events_kept_s)} are gone before anybody has read them",
                hint="--keep-events 1d, or longer",
            )
        return FleetTimes(
            events_kept_s=events_kept_s,
            heartbeat_s=heartbeat_s,
            lease_s=lease_s,
            grace_s=min(usual.grace_s, lease_s / 3),
            # Whoever wants lost jobs back soon wants those back soon, too, that were granted and never started.
            start_s=min(usual.start_s, max(_LEAST_START_S, lease_s * _LEASES_TO_START)),
        )

    def _listen_locally(self, held: ExitStack, host: str, port: int, say: Callable[[str], None]) -> KeptDoor:
        """Return a Unix socket that listens for processes of this user; its name is removed at the end.

        A folder that another user has taken, or a name at which another coordinator listens, is passed over. The last
        place is below this home, where only commands of the same home look.
        """
        from stoker.host.door import Door, KeptDoor
        from stoker.wire.local_socket import socket_folders, socket_name

        why: StokerError | None = None
        for folder in (*socket_folders(self._settings.environment), os.path.join(self._settings.state, _SOCKETS)):
            door = Door(folder, socket_name(host, port))
            try:
                kept = KeptDoor.open(door)
            except StokerError as error:
                why = error
            else:
                if kept is not None:
                    held.callback(kept.close)
                    return kept
                why = Unavailable(f"another coordinator of this user listens at {door.path}", path=door.path)
            say(f"{why.message}; another place is tried for this coordinator's socket")
        raise why or Unavailable("no folder for this coordinator's socket")

    def _secure(self, host: str, port: int) -> SecureServing:
        from stoker.assembly.secure_serving import SecureServing

        return SecureServing(self._settings.state, self._options, host=host, port=port, clock=self._clock)

    def _token(self) -> tuple[str, str]:
        """Give the operator's token and the file it lies in: one that was named, the environment's, else our own."""
        given = self._settings.environment.get(OPERATOR_TOKEN, "").strip()
        if self._options.token_file:
            return read_token(self._options.token_file), self._options.token_file
        if given:
            return long_enough(given, OPERATOR_TOKEN), ""
        from stoker.wire.serve_file import TOKEN_NAME

        path = os.path.join(self._settings.state, TOKEN_NAME)
        return make_token(path), path

    def _build(self, held: ExitStack, times: FleetTimes, secure: SecureServing | None, url: str) -> Parts:
        from stoker.assembly.secure_serving import FOLDER as AUTHORITY
        from stoker.coordinator.authority.revocations import NAME as REVOKED
        from stoker.coordinator.authority.revocations import Revocations
        from stoker.coordinator.database.opening import open_database
        from stoker.coordinator.health.gathering import Gatherer
        from stoker.coordinator.health.watching import HealthWatch
        from stoker.coordinator.keeping.chores import Chores
        from stoker.coordinator.keeping.contents import Contents
        from stoker.coordinator.keeping.ingesting import Ingesting
        from stoker.coordinator.keeping.keeping import LocalKeeping
        from stoker.coordinator.keeping.limits import limits_for
        from stoker.coordinator.keeping.tree_records import QueueTrees
        from stoker.coordinator.queue.queue import Queue
        from stoker.coordinator.service.office import About
        from stoker.coordinator.service.service import Parts
        from stoker.scheduler.scheduler import Scheduler

        options, clock = self._options, self._clock
        folder = self._settings.fleet
        keeping = LocalKeeping(folder, clock, limits=limits_for(options.upload_limit_bytes))
        held.callback(keeping.close)
        database = open_database(options.db or self._settings.queue, clock=clock)
        held.callback(database.close)
        queue = Queue(
            database,
            clock=clock,
            times=times,
            budgets=Budgets(),
            scheduler=Scheduler(),
            has_object=keeping.has_archive,
            version=self._version,
            revocations=Revocations(os.path.join(self._settings.state, AUTHORITY, REVOKED)),
        )
        held.callback(queue.close)
        _forget_lost_past(keeping, queue)
        ingesting = held.enter_context(Ingesting(keeping.models, database))
        queue.on_change(ingesting.changed)
        held.enter_context(Chores(keeping.objects))
        held.enter_context(HealthWatch(queue, Gatherer(queue, clock=clock, version=self._version)))
        notifier = held.enter_context(self._notifier(queue))
        queue.on_change(notifier.changed)
        about = About(version=self._version, database=database.shown, started_s=clock.wall_s(), times=times)
        enrolment = secure.enrolment() if secure is not None else None
        return Parts(
            queue=queue,
            keeping=keeping,
            files=self._files(queue, keeping, Contents(keeping, QueueTrees(queue, database)), url),
            about=about,
            clock=clock,
            enrolment=enrolment,
            code_gate=self._code_gate(),
            notifier=notifier,
        )

    def _files(self, queue: Queue, keeping: LocalKeeping, contents: Contents, url: str) -> Files:
        from stoker.config.cluster_file import read_cluster
        from stoker.coordinator.keeping.own_trees import keep_own_tree
        from stoker.coordinator.service.rereading import Files

        cluster, manifest = self._options.cluster, self._options.manifest

        def keep(tree: Tree, open_file: OpenEntry) -> None:
            keep_own_tree(contents, keeping.objects, tree, open_file, shown=manifest)

        return Files(
            queue,
            cluster=(lambda: read_cluster(cluster, cluster)) if cluster else None,
            manifest=(lambda: self._read_manifest(manifest, keep, url)) if manifest else None,
            source=cluster,
        )

    def _notifier(self, queue: Queue) -> Notifier:
        from stoker.coordinator.notifying.notifier import Notifier
        from stoker.host.http.settings import read_http_settings

        settings = read_http_settings(self._settings.environment, user_agent=f"stoker/{self._version}")
        return Notifier(queue, settings, clock=self._clock, chance=random.Random().random)  # noqa: S311 - spreads retries

    def _code_gate(self) -> CodeGate | None:
        options = self._options
        if not options.code_repository:
            return None
        from stoker.coordinator.service.code_gate import CodeGate

        return CodeGate(
            options.code_repository,
            options.code_branch,
            environment=self._settings.environment,
            clock=self._clock,
        )

    def _announce(self, url: str, ready: Ready) -> None:
        from stoker.host.identity import mine
        from stoker.wire.serve_file import ServeFile

        os.makedirs(self._settings.state, exist_ok=True)
        said = ServeFile(
            url=url,
            owner=mine(),
            token_file=ready.token_file,
            socket=ready.socket,
            version=self._version,
            ca_file=ready.ca_file,
        )
        said.write(self._settings.state)

    def _withdraw(self) -> None:
        from stoker.wire.serve_file import withdraw

        withdraw(self._settings.state)

    def _why_taken(self, error: Unavailable, port: int) -> Exception:
        """Say it if the program that has our address is this home's own coordinator."""
        from stoker.wire.serve_file import living_coordinator

        running = living_coordinator(self._settings.state)
        if running is None or urlsplit(running.url).port != port:
            return error
        return AlreadyServing(
            f"the coordinator of this home runs already: {running.url} (process {running.owner.pid})",
            hint="commands here use it; stop it first, or give another STOKER_HOME and --listen",
            url=running.url,
        )


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
            attempts = reader.attempts_of(job)
        except NotFound:
            return 0
        # Of very many only the newest are told.
        return attempts[-1].number if attempts else 0

    generation = int(reader.meta().get("generation", "1"))
    forget_lost_past(keeping.attempt_files, keeping.folder, generation, known_attempts)
