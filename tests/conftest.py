"""How far tests look: the same examples every time in `make test`, new ones in `make soak`. And databases for them."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings
from hypothesis.internal import charmap
from hypothesis.internal.conjecture import providers
from hypothesis.internal.intervalsets import IntervalSet

from stoker.host import linux
from tests import later
from tests.lengths import examples
from tests.others import folder_for_all

if TYPE_CHECKING:
    from tests.servers.fresh_databases import FreshDatabases
    from tests.servers.kubernetes_api import KubernetesApi
    from tests.servers.postgres import PostgresServer
    from tests.servers.ray_jobs import RayJobs
    from tests.servers.seaweed import SeaweedServer
    from tests.servers.slurm import SlurmCluster

# Without a GPU its kernels are interpreted. Triton decides that once, when it is imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"

# Several processes share the cores: more threads of each only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What random examples find is for whoever went looking, not for whoever changes something else that day.
# Nor how long one took: every stall of a machine would fail some property.
settings.register_profile("steady", max_examples=examples(20, 40), derandomize=True, deadline=None)
settings.register_profile("seeking", deadline=None)
settings.load_profile("steady")


# Hypothesis tries constants of our source: an edit of any module would change the examples of all tests. To find them
# takes 7 s of processor time in each process of a fresh clone.
_find_constants = providers._get_local_constants


def _constants() -> Any:
    is_steady = settings.get_current_profile_name() == "steady"
    return providers._local_constants if is_steady else _find_constants()


providers._get_local_constants = _constants

# To try which characters UTF-8 has takes seconds in each process of a fresh clone: all but the surrogates.
_find_intervals = charmap.intervals_from_codec


@cache
def _intervals(codec: str) -> tuple[IntervalSet, IntervalSet]:
    if codec == "utf-8":
        return IntervalSet(((0, 0xD7FF), (0xE000, sys.maxunicode))), IntervalSet(())
    return _find_intervals(codec)


charmap.intervals_from_codec = _intervals

# What a shell or nohup starts in the background ignores these, and so would every command that a test starts.
for number, heard in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, heard)

# It changes how a Python starts, and so no command of a test would start warm.
os.environ.pop("PYTHONUNBUFFERED", None)

# Half a million objects come from collecting, and stay: a collector that looks through them all the time finds nothing.
gc.disable()


# Tests wait for the disk after every durable write, thousands of times, and what is tested is not the disk.
MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Put the folders of tests into memory where there is room, and where programs may be started from it."""
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not MEMORY.is_dir():
        return
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize >= _ROOM_BYTES and not room.f_flag & os.ST_NOEXEC:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the modules before the rest: what one process has compiled, the others need not."""
    later.put_off(on=True)
    given: dict[str, Any] = getattr(session.config, "workerinput", {})
    if not given or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    modules = sorted(Path(__file__).parent.rglob("test_*.py"))
    for path in modules[int(given["workerid"].removeprefix("gw")) :: given["workercount"]]:
        # Whatever is wrong with it is told when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    later.put_off(on=False)
    gc.enable()
    gc.freeze()
    # A seventh of the time of pure tests is the collector's by default, and few of them make cycles.
    gc.set_threshold(50_000, 20, 50)
    # Many tests fork, and a fork copies the tables of all this memory.
    for _ in linux.moves():
        pass


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Import what the test's module puts off, unless the test is skipped."""
    if isinstance(item, pytest.Function):
        later.import_for(item.module)


TRIES = 3
"""How often a test of a time is tried: a stall of the machine is over by then, and what is too slow stays so."""
_SHORT_S = 0.005
"""Durations below this are not listed by `--durations`."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test of a time again if it fails, with fixtures of its own, and let a worker send few reports.

    Most reports say that a setup or a teardown of no length succeeded. To send and to read them takes longer than most
    tests.
    """
    is_of_a_time = item.get_closest_marker("timing") is not None
    is_in_worker = hasattr(item.config, "workerinput")
    if not is_of_a_time and not is_in_worker:
        return None
    if not is_in_worker:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for _ in range(TRIES - 1 if is_of_a_time else 0):
        if any(report.failed for report in reports):
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        if not is_in_worker or report.when == "call" or not report.passed or report.duration >= _SHORT_S:
            item.ihook.pytest_runtest_logreport(report=report)
    if not is_in_worker:
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder of this test's own that other users may enter."""
    with folder_for_all() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test process. Whoever breaks it mends it: others use it too."""
    from tests.servers.postgres import postgres, why_not

    if why := why_not():
        pytest.skip(why)
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[SlurmCluster]:
    """A Slurm of this test process."""
    from tests.servers.slurm import slurm, why_no_slurm

    if why := why_no_slurm():
        pytest.skip(why)
    with slurm() as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(shared_slurm: SlurmCluster) -> SlurmCluster:
    """An idle Slurm, shared with other tests of this process. Whoever kills a daemon of it starts it again."""
    shared_slurm.clear()
    return shared_slurm


@pytest.fixture
def kubernetes_api(tmp_path: Path) -> Iterator[KubernetesApi]:
    """A small Kubernetes API, for the system's kubectl."""
    from tests.servers.kubernetes_api import KubernetesApi

    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    api = KubernetesApi(tmp_path / "kubernetes")
    yield api
    api.close()


@pytest.fixture
def ray_jobs(tmp_path: Path) -> Iterator[RayJobs]:
    """The Jobs interface of a Ray cluster."""
    from tests.servers.ray_jobs import RayJobs

    cluster = RayJobs(tmp_path / "ray")
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedServer]:
    """An S3 store (SeaweedFS) of this test process. Each test takes a prefix of its own: `new_site`."""
    from tests.servers.seaweed import seaweed, why_not

    if reason := why_not():
        pytest.skip(reason)
    with seaweed() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database of this test's own, on the shared server."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of this test's own, once of each sort: with the queue's tables, and nothing in them."""
    if request.param == "sqlite":
        path = tmp_path / "queue.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create(request.getfixturevalue("postgres_template"))
    yield url
    server.drop(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the queue's tables, to be copied: that is quicker than to make them each time."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    _make_tables(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a database with the queue's tables, to be copied."""
    url = postgres.create()
    _make_tables(url)
    return url.rpartition("/")[2]


@pytest.fixture(scope="session")
def fresh_databases(
    request: pytest.FixtureRequest, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FreshDatabases]:
    """Empty databases for tests that need one after another."""
    from tests.servers.fresh_databases import FreshDatabases, kept_engines

    def make_postgres() -> str:
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.create(request.getfixturevalue("postgres_template"))

    folder = tmp_path_factory.mktemp("fresh")
    with kept_engines(), closing(FreshDatabases(folder, sqlite_template, make_postgres)) as fresh:
        yield fresh


def _make_tables(url: str) -> None:
    from stoker.coordinator.database.database import open_database
    from stoker.core.clock import SystemClock

    open_database(url, clock=SystemClock()).close()
