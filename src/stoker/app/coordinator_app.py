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
import secrets
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stoker.api.app_parts import AppSettings
from stoker.coordinator.http.server_options import ListeningCoordinator, ReadManifest, ServeOptions
from stoker.core.clock import Clock
from stoker.core.errors import AlreadyServing, BadInput, LocalFile, NotFound, StokerError, Unavailable
from stoker.core.frozen import changed
from stoker.core.leases import Budgets, FleetTimes
from stoker.core.text import format_duration
from stoker.host.durable import create_file, read_secret
from stoker.host.folders import make_state
from stoker.host.network import allow_many_files, listen_at, own_addresses, own_names, read_listen
from stoker.host.sockets import NotifySocket
from stoker.protocol.discovery import DEFAULT_PORT, OPERATOR_TOKEN

if TYPE_CHECKING:
    from stoker.coordinator.auth import Enrolment
    from stoker.coordinator.http.http_app import CoordinatorParts
    from stoker.coordinator.http.job_routes import CodeGate
    from stoker.coordinator.http.pages import PublicUrl
    from stoker.coordinator.http.reload import CoordinatorFiles
    from stoker.coordinator.http.server import Tls
    from stoker.coordinator.notify import Notifier
    from stoker.coordinator.queue.writer import Queue
    from stoker.coordinator.storage.storage import CoordinatorStorage
    from stoker.coordinator.storage.tree_storage import CoordinatorTrees
    from stoker.core.digests import OpenEntry, Tree
    from stoker.host.sockets import DaemonSocket


HOST = "127.0.0.1"
_SOCKETS = "sockets"
"""Below `state`: where the socket is if no folder outside this home can be used."""
_HEARTBEATS_PER_LEASE = 3
_HEARTBEATS_AT_LEAST = 2
_LEAST_START_S = 10.0
_LEAST_EVENTS_KEPT_S = 24 * 3600.0
_LEASES_TO_START = 4


class CoordinatorProcess:
    """One coordinator, from its options to its exit code."""

    def __init__(
        self,
        settings: AppSettings,
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

    def run(
        self,
        *,
        on_ready: Callable[[ListeningCoordinator], None],
        say: Callable[[str], None],
        before_end: Callable[[], None] = lambda: None,
    ) -> int:
        """Serve until a signal ends it, and return the exit code. `say` gets what a log should have.

        `before_end` is called after the signal, while requests are still answered.
        """
        from stoker.protocol.discovery import announce_start, withdraw_start

        if self._options.cluster:
            from stoker.config.cluster_file import read_cluster

            # A file with faults is refused before a home, a database and certificates are made for it.
            read_cluster(self._options.cluster, self._options.cluster)
        # Importing the server takes seconds on a slow machine, and commands of this home wait meanwhile.
        announce_start(self._settings.state)
        try:
            return self._serve(on_ready=on_ready, say=say, before_end=before_end)
        finally:
            withdraw_start(self._settings.state)

    def _serve(
        self,
        *,
        on_ready: Callable[[ListeningCoordinator], None],
        say: Callable[[str], None],
        before_end: Callable[[], None],
    ) -> int:
        from stoker.coordinator.http.access import is_loopback, rules_for
        from stoker.coordinator.http.pages import read_public_url

        times = self._times()
        host, port = read_listen(self._options.listen)
        host, port = host or HOST, DEFAULT_PORT if port < 0 else port
        public = read_public_url(self._options.public_url) if self._options.public_url else None
        token, token_file = self._token()
        supervisor = NotifySocket(self._settings.environment, self._clock)
        with ExitStack() as held:
            try:
                listening = held.enter_context(listen_at(host, port))
            except Unavailable as error:
                raise self._why_taken(error, port) from None
            allow_many_files()
            # From here on it takes a while; what can't be is refused before.
            from stoker.coordinator.http.http_app import CoordinatorService
            from stoker.coordinator.http.server import (
                CoordinatorServer,
                CoordinatorSocket,
                CoordinatorWatchdog,
                ServerSetup,
            )

            port = listening.getsockname()[1]
            # Nothing listens beyond loopback without TLS.
            secure = None if is_loopback(host) else self._secure(host, port)
            local = self._listen_locally(held, host, port, say)
            url = secure.url if secure is not None else f"http://{f'[{host}]' if ':' in host else host}:{port}"
            parts = self._with_pages(self._build(held, times, secure, url, supervisor), public, secure, port)
            files = parts.files.read_again()
            ca_file = secure.ca_file if secure is not None else ""
            names = secure.names() if secure is not None else ()
            rules = rules_for(token=token, host=host, port=port, names=names, public=public)
            launch_token = self._options.launch_token.encode()
            rules = changed(rules, system_a=self._options.system_a, launch_token=launch_token)
            ready = ListeningCoordinator(
                url=url,
                database=parts.about.database,
                objects=parts.keeping.place.url,
                token_file=token_file,
                socket=local.door.path,
                is_open=rules.is_loopback,
                ca_file=ca_file,
                times=times,
                system_a=rules.system_a,
                files=files,
                pages_url=f"{public.origin}{public.prefix}/" if public is not None else f"{url}/",
            )

            def announce() -> None:
                self._announce(secure.local_url if secure is not None else url, ready)
                held.callback(self._withdraw)
                supervisor.ready()
                on_ready(ready)

            _keep_what_is_here()
            stage = ServerSetup(
                listening=listening,
                make=lambda: CoordinatorService(parts, rules, say=say),
                on_ready=announce,
                say=say,
                tls=secure.tls() if secure is not None else None,
                local=CoordinatorSocket(listener=local.listener, renew=local.renew),
                pulse=CoordinatorWatchdog(beat=supervisor.alive, every_s=every_s)
                if (every_s := supervisor.beats_every_s)
                else None,
                before_end=before_end,
            )
            held.callback(supervisor.ending)
            return CoordinatorServer(stage).run()

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
                f"events that are kept for {format_duration(events_kept_s)} are deleted before they are read",
                hint="--keep-events 1d, or longer",
            )
        return FleetTimes(
            events_kept_s=events_kept_s,
            heartbeat_s=heartbeat_s,
            lease_s=lease_s,
            grace_s=min(usual.grace_s, lease_s / 3),
            # A short lease also shortens the wait for jobs that were granted and never started.
            start_s=min(usual.start_s, max(_LEAST_START_S, lease_s * _LEASES_TO_START)),
        )

    def _listen_locally(self, held: ExitStack, host: str, port: int, say: Callable[[str], None]) -> DaemonSocket:
        """Return a Unix socket that listens for processes of this user; its name is removed at the end.

        A folder that another user has taken, or a name at which another coordinator listens, is passed over. The last
        place is below this home, where only commands of the same home look.
        """
        from stoker.host.sockets import DaemonSocket, NamedSocket
        from stoker.protocol.discovery import socket_folders, socket_name

        why: StokerError | None = None
        for folder in (*socket_folders(self._settings.environment), os.path.join(self._settings.state, _SOCKETS)):
            door = NamedSocket(folder, socket_name(host, port))
            try:
                kept = DaemonSocket.open(door)
            except StokerError as error:
                why = error
            else:
                if kept is not None:
                    held.callback(kept.close)
                    return kept
                why = Unavailable(f"another coordinator of this user listens at {door.path}", path=door.path)
            say(f"{why.message}; trying another folder for this coordinator's socket")
        raise why or Unavailable("no folder for this coordinator's socket")

    def _secure(self, host: str, port: int) -> CoordinatorTls:

        return CoordinatorTls(self._settings.state, self._options, host=host, port=port, clock=self._clock)

    def _token(self) -> tuple[str, str]:
        """Return the operator's token and the file it lies in: one that was named, the environment's, else our own."""
        given = self._settings.environment.get(OPERATOR_TOKEN, "").strip()
        if self._options.token_file:
            return read_token(self._options.token_file), self._options.token_file
        if given:
            return long_enough(given, OPERATOR_TOKEN), ""
        from stoker.protocol.discovery import TOKEN_NAME

        path = os.path.join(self._settings.state, TOKEN_NAME)
        return make_token(path), path

    def _build(
        self, held: ExitStack, times: FleetTimes, secure: CoordinatorTls | None, url: str, supervisor: NotifySocket
    ) -> CoordinatorParts:
        from stoker.coordinator.auth import REVOKED_NAME, Revocations
        from stoker.coordinator.database.database import open_database
        from stoker.coordinator.http.app_state import CoordinatorInfo
        from stoker.coordinator.http.http_app import CoordinatorParts
        from stoker.coordinator.queue.writer import Queue
        from stoker.coordinator.storage.attempt_files import limits_for
        from stoker.coordinator.storage.models import ModelViewUpdater
        from stoker.coordinator.storage.object_place import choose_place
        from stoker.coordinator.storage.retention import Chores
        from stoker.coordinator.storage.storage import CoordinatorStorage
        from stoker.coordinator.storage.tree_storage import CoordinatorTrees, QueueTrees
        from stoker.coordinator.symptoms import Gatherer, HealthWatch
        from stoker.scheduler.scheduler import Scheduler

        options, clock = self._options, self._clock
        folder = self._settings.fleet
        environment = self._settings.environment
        if options.objects:
            choose_place(folder, options.objects, environment, clock=clock)
        limits = limits_for(options.upload_limit_bytes)
        keeping = CoordinatorStorage(
            folder, clock, limits=limits, environment=environment, progress=supervisor.starting
        )
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
            revocations=Revocations(os.path.join(self._settings.state, FOLDER, REVOKED_NAME)),
        )
        held.callback(queue.close)
        _forget_lost_past(keeping, queue)
        ingesting = held.enter_context(ModelViewUpdater(keeping.models, database))
        queue.on_change(ingesting.changed)
        held.enter_context(Chores(keeping.objects))
        keeping.telemetry.sweep(row.name for row in queue.reader.machines())
        gatherer = Gatherer(queue, clock=clock, version=self._version, telemetry=keeping.telemetry)
        held.enter_context(HealthWatch(queue, gatherer))
        notifier = held.enter_context(self._notifier(queue, keeping))
        queue.on_change(notifier.changed)
        about = CoordinatorInfo(
            version=self._version,
            database=database.shown,
            started_s=clock.wall_s(),
            times=times,
            name=socket.gethostname(),
        )
        enrolment = secure.enrolment() if secure is not None else None
        return CoordinatorParts(
            queue=queue,
            keeping=keeping,
            files=self._files(queue, keeping, CoordinatorTrees(keeping, QueueTrees(queue, database)), url),
            about=about,
            clock=clock,
            enrolment=enrolment,
            code_gate=self._code_gate(),
            notifier=notifier,
        )

    def _with_pages(
        self, parts: CoordinatorParts, public: PublicUrl | None, secure: CoordinatorTls | None, port: int
    ) -> CoordinatorParts:
        """Add the web pages and their sessions."""
        from stoker.coordinator.http.sessions import Sessions
        from stoker.web.assets import Pages

        sessions = Sessions(
            self._clock,
            instance=f"{self._settings.home} {port}",
            is_secure=secure is not None or (public is not None and public.is_secure),
            prefix=public.prefix if public is not None else "",
        )
        pages = Pages()
        return changed(parts, about=changed(parts.about, build=pages.build), pages=pages.answer, sessions=sessions)

    def _files(
        self, queue: Queue, keeping: CoordinatorStorage, contents: CoordinatorTrees, url: str
    ) -> CoordinatorFiles:
        from stoker.config.cluster_file import read_cluster
        from stoker.coordinator.http.reload import CoordinatorFiles
        from stoker.coordinator.storage.tree_storage import keep_own_tree

        cluster, manifest = self._options.cluster, self._options.manifest

        def keep(tree: Tree, open_file: OpenEntry) -> None:
            keep_own_tree(contents, keeping.objects, tree, open_file, shown=manifest)

        return CoordinatorFiles(
            queue,
            cluster=(lambda: read_cluster(cluster, cluster)) if cluster else None,
            manifest=(lambda: self._read_manifest(manifest, keep, url)) if manifest else None,
            source=cluster,
        )

    def _notifier(self, queue: Queue, keeping: CoordinatorStorage) -> Notifier:
        from stoker.coordinator.notice_formats import CurvePictures
        from stoker.coordinator.notify import MailCommands, Notifier
        from stoker.host.command_runner import SubprocessRunner
        from stoker.host.http.exchange import read_http_settings

        environment = self._settings.environment
        settings = read_http_settings(environment, user_agent=f"stoker/{self._version}")
        path = os.path.join(self._settings.state, "mail-commands.json")
        return Notifier(
            queue,
            settings,
            clock=self._clock,
            chance=random.Random().random,  # noqa: S311 - spreads retries
            mails=MailCommands(path, SubprocessRunner(environment, language=None)),
            picture=CurvePictures(queue.reader, keeping.attempt_files.folder_of).picture,
        )

    def _code_gate(self) -> CodeGate | None:
        options = self._options
        if not options.code_repository:
            return None
        from stoker.coordinator.http.job_routes import CodeGate

        return CodeGate(
            options.code_repository,
            options.code_branch,
            environment=self._settings.environment,
            clock=self._clock,
        )

    def _announce(self, url: str, ready: ListeningCoordinator) -> None:
        from stoker.host.identity import mine
        from stoker.protocol.discovery import ServeFile, withdraw_start

        said = ServeFile(
            url=url,
            owner=mine(),
            token_file=ready.token_file,
            socket=ready.socket,
            version=self._version,
            ca_file=ready.ca_file,
        )
        said.write(self._settings.state)
        withdraw_start(self._settings.state)

    def _withdraw(self) -> None:
        from stoker.protocol.discovery import withdraw

        withdraw(self._settings.state)

    def _why_taken(self, error: Unavailable, port: int) -> Exception:
        """Return the error; another one if the program at our address is the coordinator of this home."""
        from stoker.protocol.discovery import living_coordinator

        running = living_coordinator(self._settings.state)
        if running is None or urlsplit(running.url).port != port:
            return error
        return AlreadyServing(
            f"the coordinator of this home runs already: {running.url} (process {running.owner.pid})",
            hint="stop it first, or use another STOKER_HOME and --listen",
            url=running.url,
        )


def _keep_what_is_here() -> None:
    """Look for garbage seldom, and never among what was made until now: requests make next to no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _forget_lost_past(keeping: CoordinatorStorage, queue: Queue) -> None:
    """After a restore, remove mirrors of attempts that the queue no longer knows: their numbers are given again."""
    from stoker.coordinator.storage.attempt_files import forget_lost_past

    reader = queue.reader

    def known_attempts(job: str) -> int:
        try:
            attempts = reader.attempts_of(job)
        except NotFound:
            return 0
        # Of very many only the newest are listed.
        return attempts[-1].number if attempts else 0

    generation = int(reader.meta().get("generation", "1"))
    forget_lost_past(keeping.attempt_files, keeping.folder, generation, known_attempts)


FOLDER = "authority"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on
_LOCAL = ("localhost", "127.0.0.1", "::1")


class CoordinatorTls:
    """TLS of one coordinator at one address: certificates of the fleet's own CA, for all of its names.

    CA and certificate lie below `state/authority`; both are made at the first start that listens beyond loopback.
    """

    def __init__(self, state: str, options: ServeOptions, *, host: str, port: int, clock: Clock) -> None:
        from stoker.coordinator.auth import ServerCertificate, open_ca
        from stoker.host.certificates import MACHINE_LIFE_S
        from stoker.host.tls_contexts import server_context

        self._host, self._port = host, port
        self._advertised = read_names(options.advertise)
        self._life_s = options.certificate_life_s or MACHINE_LIFE_S
        self._ca = open_ca(os.path.join(state, FOLDER), fleet=socket.gethostname(), now_s=clock.wall_s())
        self._certificate = ServerCertificate(self._ca, self._certified, clock=clock)
        self._certificate.ensure()
        path = self._certificate.path
        self._context = server_context(certificate_file=path, key_file=path, ca_pem=self._ca.certificate_pem)

    @property
    def ca_file(self) -> str:
        """Where the CA's certificate is, for clients that are to trust it."""
        return self._ca.certificate_file

    @property
    def local_url(self) -> str:
        """Where commands of this machine ask it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 - as above
        return f"https://{_with_port(host, self._port)}"

    @property
    def url(self) -> str:
        """Where others find it, as far as it knows."""
        return f"https://{self.names()[0]}"

    def names(self) -> tuple[str, ...]:
        """Return every `HOST:PORT` by which others may reach it, those that were named first."""
        here = [self._host] if self._host not in _ANY else []
        own = [name for name in own_names() if name not in _LOCAL]
        # Of names without a dot, those that a second machine resolves most often: mDNS.
        own.sort(key=lambda name: not name.endswith(".local"))
        found = dict.fromkeys((*self._advertised, *here, *own))
        return tuple(_with_port(name, self._port) for name in found) or (_with_port(_LOCAL[1], self._port),)

    def enrolment(self) -> Enrolment:
        """Return what lets others in."""
        from stoker.coordinator.auth import Enrolment

        return Enrolment(ca=self._ca, names=self.names, life_s=self._life_s)

    def tls(self) -> Tls:
        """Return what the server speaks."""
        from stoker.coordinator.http.server import Tls

        return Tls(context=self._context, refresh=self.refresh)

    def refresh(self) -> bool:
        """Renew the certificate if needed, for connections from now on; return whether it is a new one."""
        from stoker.host.tls_contexts import load_server

        is_new = self._certificate.ensure()
        if is_new:
            load_server(self._context, certificate_file=self._certificate.path, key_file=self._certificate.path)
        return is_new

    def _certified(self) -> tuple[str, ...]:
        here = [self._host] if self._host not in _ANY else []
        return (*self._advertised, *here, *own_names(), *own_addresses())


def read_names(text: str) -> tuple[str, ...]:
    """Read `NAME[,NAME]`: host names or addresses, without ports."""
    names = tuple(part.strip().strip("[]").lower() for part in text.split(",") if part.strip())
    for name in names:
        if "/" in name or " " in name or (":" in name and not _is_ipv6(name)):
            raise BadInput(f"{name!r} is no name of a host", hint="--advertise desk.example.org,192.0.2.7")
    return names


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv6(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        return False
    return True


# The operator's token: a secret in a file that only its owner may read, made at the first start.

_SHORTEST = 16
_MOST_BYTES = 4096


def make_token(path: str) -> str:
    """Return the token of a file; the file is made, for us alone, if it is missing."""
    make_state(os.path.dirname(path))
    create_file(path, f"{secrets.token_urlsafe(32)}\n".encode(), 0o600)
    return read_token(path)


def read_token(path: str) -> str:
    """Return the token of a file that is there, and that only its owner may read."""
    try:
        text = read_secret(path, _MOST_BYTES).decode().strip()
    except FileNotFoundError:
        raise LocalFile(f"token file not found: {path}", hint="a long random word in a file of mode 600") from None
    except (OSError, ValueError) as error:
        raise LocalFile(f"the token file {path} can't be read: {error}", path=path) from None
    return long_enough(text, path)


def long_enough(token: str, where: str) -> str:
    """Refuse a token that can be guessed, or can't be sent."""
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise BadInput(
            f"the operator's token ({where}) is no word of at least {_SHORTEST} letters",
            hint="such as: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return token
