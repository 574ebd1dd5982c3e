from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.core.errors import NoSpace
from stoker.host import resources
from stoker.host.resources import cpu_quota, memory_uses
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import code_of, fork

GIB = 2**30


def test_free_space_is_that_of_the_place_where_the_path_will_be(tmp_path):
    with small_disk(tmp_path / "disk", "size=1m") as place:
        assert 0 < resources.free_bytes(place) <= 2**20
        assert resources.free_bytes(place / "not" / "yet") == resources.free_bytes(place)
        (place / "filler").write_bytes(bytes(500_000))
        assert resources.free_bytes(place) < 2**20 - 500_000


def test_what_fits_leaves_something_to_spare():
    assert resources.has_space(10, 10 + resources.SPARE_BYTES)
    assert not resources.has_space(11, 10 + resources.SPARE_BYTES)
    assert resources.has_space(11, 11, spare_bytes=0)
    assert resources.has_space(0, 0)


@pytest.mark.parametrize("coming_bytes", [None, 5])
def test_what_does_not_fit_is_refused_in_one_line_with_the_numbers(tmp_path, coming_bytes):
    needed_bytes = resources.SPARE_BYTES + (coming_bytes or 0)
    resources.check_space("a model", tmp_path, coming_bytes=coming_bytes, free=needed_bytes)
    with pytest.raises(NoSpace, match=f"no space for a model: .* needed with .* to spare, .* free in {tmp_path}") as no:
        resources.check_space("a model", tmp_path, coming_bytes=coming_bytes, free=needed_bytes - 1)
    assert (no.value.data["needed_bytes"], no.value.data["free_bytes"]) == (needed_bytes, needed_bytes - 1)


def test_memory_is_known_and_plausible():
    total, available = resources.memory_total_bytes(), resources.memory_available_bytes()
    assert total is not None
    assert available is not None
    assert 0 < available <= total


def test_memory_that_cannot_be_read_is_not_guessed(tmp_path):
    assert resources.memory_available_bytes(str(tmp_path)) is None
    assert resources.memory_total_bytes(str(tmp_path)) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_processors_that_we_are_not_bound_to_do_not_count():
    one = {min(os.sched_getaffinity(0))}

    def act() -> None:
        os.sched_setaffinity(0, one)
        assert resources.usable_cores() == 1

    assert code_of(fork(act)) == 0
    assert 1 <= resources.usable_cores() <= len(os.sched_getaffinity(0))


class FakeProc:
    """The files of a container, as the kernel would show them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").touch()
        (self.proc / "self" / "mountinfo").touch()
        (self.proc / "meminfo").write_text(f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\n")

    def mount(self, kind: str, name: str, options: str, *, root: str = "/") -> None:
        with (self.proc / "self" / "mountinfo").open("a") as file:
            file.write(f"30 20 0:3 {root} {self.root / name} rw - {kind} none {options}\n")

    def belong(self, line: str) -> None:
        with (self.proc / "self" / "cgroup").open("a") as file:
            file.write(line + "\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def container(tmp_path) -> FakeProc:
    return FakeProc(tmp_path)


def test_the_smallest_limit_above_us_counts_in_version_2(container):
    container.mount("cgroup2", "v2", "rw,nsdelegate")
    container.belong("0::/outer/inner")
    container.write("v2/outer/cpu.max", "150000 100000\n")
    container.write("v2/outer/inner/cpu.max", "max 100000\n")
    container.write("v2/outer/memory.max", f"{8 * GIB}\n")
    container.write("v2/outer/memory.current", f"{3 * GIB}\n")
    container.write("v2/outer/memory.stat", f"anon 5\ninactive_file {GIB}\n")
    container.write("v2/outer/inner/memory.max", "max\n")
    container.write("v2/outer/inner/memory.current", "5\n")
    proc = str(container.proc)
    assert cpu_quota(proc) == 1.5
    assert resources.usable_cores(proc) == 1
    assert resources.memory_total_bytes(proc) == 8 * GIB
    assert resources.memory_available_bytes(proc) == 6 * GIB


def test_limits_of_version_1_count(container):
    container.mount("cgroup", "cpu,cpuacct", "rw,cpu,cpuacct")
    container.mount("cgroup", "memory", "rw,memory")
    container.belong("4:memory:/service")
    container.belong("2:cpu,cpuacct:/service")
    container.write("cpu,cpuacct/service/cpu.cfs_quota_us", "50000\n")
    container.write("cpu,cpuacct/service/cpu.cfs_period_us", "100000\n")
    container.write("cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    container.write("cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    container.write("memory/service/memory.limit_in_bytes", f"{4 * GIB}\n")
    container.write("memory/service/memory.usage_in_bytes", f"{2 * GIB}\n")
    container.write("memory/service/memory.stat", f"inactive_file 7\ntotal_inactive_file {GIB}\n")
    container.write("memory/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    container.write("memory/memory.usage_in_bytes", "0\n")
    proc = str(container.proc)
    assert cpu_quota(proc) == 0.5
    assert resources.usable_cores(proc) == 1
    assert resources.memory_total_bytes(proc) == 4 * GIB
    assert resources.memory_available_bytes(proc) == 3 * GIB


def test_a_container_that_sees_only_its_part_of_the_tree_finds_its_limits(container):
    container.mount("cgroup2", "v2", "rw", root="/docker/abc")
    container.belong("0::/docker/abc/slice")
    container.write("v2/slice/cpu.max", "100000 100000\n")
    assert cpu_quota(str(container.proc)) == 1.0


def test_a_path_of_another_namespace_leads_to_the_top_of_what_we_see(container):
    container.mount("cgroup2", "v2", "rw")
    container.belong("0::/../elsewhere")
    container.write("v2/cpu.max", "400000 100000\n")
    assert cpu_quota(str(container.proc)) == 4.0


@pytest.mark.parametrize("text", ["", "max", "nonsense 3", "100000 0", "\x00"])
def test_what_makes_no_sense_is_no_limit(container, text):
    container.mount("cgroup2", "v2", "rw")
    container.belong("0::/")
    container.write("v2/cpu.max", text)
    container.write("v2/memory.max", text)
    assert cpu_quota(str(container.proc)) is None
    assert memory_uses(str(container.proc)) == []
    assert resources.memory_available_bytes(str(container.proc)) == 60 * GIB


@contextmanager
def _real_group(controller: str):
    folder = Path("/sys/fs/cgroup") / controller / f"stoker-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"control groups of version 1 can't be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


def test_a_real_quota_on_processor_time_counts():
    with _real_group("cpu") as group:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("130000")

        def act() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            assert cpu_quota() == 1.3
            assert resources.usable_cores() == 1

        assert code_of(fork(act)) == 0


def test_a_real_limit_on_memory_counts():
    with _real_group("memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(GIB))

        def act() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            assert resources.memory_total_bytes() == GIB
            available = resources.memory_available_bytes()
            assert available is not None
            assert GIB // 2 < available <= GIB

        assert code_of(fork(act)) == 0


def test_files_below_a_folder_are_added_up_once_each_and_no_link_is_followed(tmp_path):
    top = tmp_path / "top"
    (top / "deep" / "er").mkdir(parents=True)
    (tmp_path / "large").write_bytes(b"x" * 10_000)
    (top / "a").write_bytes(b"x" * 100)
    (top / "deep" / "er" / "b").write_bytes(b"x" * 20)
    os.link(top / "a", top / "deep" / "again")
    os.symlink(tmp_path / "large", top / "l")
    os.symlink("/", top / "deep" / "root")
    assert resources.folder_bytes(top) == 100 + 20 + len(str(tmp_path / "large")) + 1
    assert resources.folder_bytes(top / "a") == 100
    assert resources.folder_bytes(tmp_path / "missing") == 0
