"""Kits: what is sent, what is refused, and what a far side does with it, with a small library and a small Stoker."""

from __future__ import annotations

import grp
import gzip
import io
import json
import os
import pwd
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import SystemClock
from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.core.errors import InvalidCluster, KitRefused, NoBackend
from stoker.core.frozen import changed
from stoker.core.machine import Platform
from stoker.core.pool import KIT, Pool, PoolBackend, require_valid
from stoker.devices.checkup import CheckStatus
from stoker.host.command_runner import ProbeFailure, ProbeOutput, Reply, SubprocessRunner
from stoker.host.durable import remove_tree
from stoker.host.install import find_uv
from stoker.launch import kit_receiver
from stoker.launch.commands import HostCommands
from stoker.launch.kit import (
    FarSide,
    Kit,
    KitBuilder,
    Kits,
    _receiver,
    check_python,
    read_probe,
    requirements_here,
    uv_platform,
)

POOL = Pool(name="small", backend=PoolBackend.LOCAL, python=KIT, wall_s=600)
FAR = Pool(name="far", backend=PoolBackend.SSH, via="me@far")
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)
# Without the shims of an interpreter's manager, each of which takes half a second.
ENVIRONMENT = {**os.environ, "PATH": f"{os.path.dirname(BASE_PYTHON)}:/usr/bin:/bin"}
LINUX = "system Linux\nmachine x86_64\nlibc glibc 2.36\nhome /home/me\n"


class Site:
    """A launcher's side and a far side, both folders of a test."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder = folder
        self.shared = shared
        self.far = folder / "far/kits"
        self.package = folder / "package"
        self.package.mkdir()
        (self.package / "__init__.py").write_text('__version__ = "1"\n')
        (self.package / "work.py").write_text("code = 1\n")
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.kits = self.fresh()

    def fresh(self, trial: str = "import tiny, stoker", commands: type[HostCommands] = HostCommands) -> Kits:
        """Return what another launcher would have."""
        return Kits(
            commands(SubprocessRunner(ENVIRONMENT), control_folder=str(self.folder / "c")),
            self.builder(trial),
            folder=str(self.far),
            clock=SystemClock(),
        )

    def builder(self, trial: str = "", requirement: str = "tiny==1.0") -> KitBuilder:
        settings = {"UV_FIND_LINKS": str(self.shared), "UV_NO_INDEX": "1", "UV_CACHE_DIR": str(self.shared / "cache")}
        return KitBuilder(
            str(self.shared / "here"),
            find_uv(sys.prefix, os.environ),
            SubprocessRunner({**os.environ, **settings}),
            clock=SystemClock(),
            package=str(self.package),
            requirements=lambda: ([requirement], []),
            trial=trial,
        )

    def prepare(self, kits: Kits | None = None) -> Path:
        """Return the folder of the installed kit."""
        made = (kits or self.fresh()).prepare(POOL, lambda kind, fields: self.events.append((kind, fields)))
        return Path(made.python).parents[1]

    def sent(self) -> int:
        return sum(fields["bytes"] for kind, fields in self.events if kind == "kit_sent")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, and the libraries that are unpacked from it once for all tests."""
    folder = tmp_path_factory.mktemp("shared")
    make_wheel(folder / "tiny-1.0-py3-none-any.whl")
    return folder


@pytest.fixture
def site(tmp_path: Path, shared: Path) -> Site:
    return Site(tmp_path, shared)


def make_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in {
            "tiny/__init__.py": "value = 42\n",
            "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
            "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "tiny-1.0.dist-info/RECORD": "",
            "tiny-1.0.data/scripts/uv": "#!/bin/sh\n",
        }.items():
            file.writestr(name, text)


def test_a_kit_is_installed_once_and_its_python_has_stoker_and_the_libraries(site: Site) -> None:
    kit = site.prepare()
    program = "import stoker.work, sys, tiny; print(stoker.work.code, tiny.value, sys.prefix)"
    done = subprocess.run([kit / "bin/python", "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "42", str(kit)]
    assert [kind for kind, _ in site.events] == ["kit_sent", "kit_installed"]
    assert os.access(kit / "bin/uv", os.X_OK), "the worker builds environments with it"
    assert kit.stat().st_mode & 0o777 == 0o700
    site.prepare()
    assert len(site.events) == 2, "it is there"
    assert sorted(path.name for path in site.far.iterdir()) == [".lock", kit.name]


def test_a_dry_run_names_the_path_and_sends_nothing(site: Site) -> None:
    planned = site.kits.prepare(POOL, lambda *_: pytest.fail("sent"), is_dry=True)
    assert not site.far.exists()
    assert Path(planned.python).parents[1] == site.prepare()


def test_after_a_change_of_the_code_only_the_changed_file_is_sent(site: Site) -> None:
    first = site.prepare()
    before = site.sent()
    (site.package / "work.py").write_text("code = 22\n")
    second = site.prepare()
    assert second != first
    assert site.sent() - before == len("code = 22\n")
    assert first.exists(), "the newest two stay"


def test_old_kits_go_once_no_worker_needs_them_and_the_newest_two_stay(site: Site) -> None:
    kits = []
    made, far = built(site)
    for number in range(4):
        (site.package / "work.py").write_text(f"code = {number}\n")
        made, far = built(site)
        # The last one was needed until 1970.
        until_s = 4e9 if number < 3 else 0.0
        assert receive("install", far, made, payload(site, made, made.sources), until_s)["state"] == "ready"
        kits.append(site.far / made.digest)
    assert all(one.exists() for one in kits), "workers may still run from them"
    for number, one in enumerate(kits):
        (one / kit_receiver.NEEDED_UNTIL).write_text(f"{number + 1}\n")
    assert receive("install", far, made, payload(site, made, ()))["state"] == "ready"
    assert {one.name for one in site.far.iterdir() if not one.name.startswith(".")} == {kits[2].name, kits[3].name}


def test_what_arrived_before_a_transfer_broke_is_not_sent_again(site: Site) -> None:
    kit, far = built(site)
    whole = payload(site, kit, kit.sources)
    answer = receive("install", far, kit, whole[: len(whole) * 2 // 3])
    assert answer["reason"] == "broken"
    assert not (site.far / kit.digest).exists(), "half a kit is none"
    kept = {path.name for path in (site.far / ".parts").iterdir()}
    assert kept
    assert all(kit_receiver.hash_of(str(site.far / ".parts" / name)) == name for name in kept)
    missing = receive("look", far, kit, payload(site, kit, ()))["missing"]
    assert set(missing) == set(kit.sources) - kept
    assert site.prepare().name == kit.digest


def test_bytes_that_are_not_their_digest_are_refused(site: Site) -> None:
    kit, far = built(site)
    lines = gzip.decompress(payload(site, kit, ()))
    digest = next(iter(kit.sources))
    forged = gzip.compress(lines + f"{digest} 3\nabc".encode())
    assert receive("install", far, kit, forged)["reason"] == "broken"
    assert not list((site.far / ".parts").iterdir())


@pytest.mark.parametrize("verb", ["look", "install"])
def test_a_listing_that_is_not_the_kits_is_refused(site: Site, verb: str) -> None:
    kit, far = built(site)
    lines = gzip.decompress(payload(site, kit, ()))
    changed_name = gzip.compress(lines.replace(b"METADATA", b"METADATE", 1))
    answer = receive(verb, far, kit, changed_name)
    assert (answer["reason"], answer["text"]) == ("broken", f"the listing is not that of {kit.digest[:12]}")


@pytest.mark.parametrize("path", ["../../escaped", "/{far}/escaped", "lib/../../escaped", "..", "", "lib//x", "./x"])
def test_a_listing_with_a_path_out_of_the_kit_is_refused(site: Site, path: str) -> None:
    data = b"escaped"
    entry = TreeEntry(path.format(far=site.far), len(data), digest_bytes(data))
    tree = Tree((entry,))
    kit = Kit(tree=tree, digest=tree.digest(), sources={entry.sha256: data}, executable=BASE_PYTHON)
    _, far = built(site)
    answer = receive("install", far, kit, payload(site, kit, kit.sources))
    assert (answer["reason"], "has a path out of the kit" in answer["text"]) == ("broken", True)
    assert not site.far.exists()
    assert not (site.far.parent / "escaped").exists()


@pytest.mark.parametrize("damage", ["change", "remove", "add", "mode", "link"])
def test_a_kit_that_was_changed_is_not_used_but_made_again(site: Site, damage: str) -> None:
    made, far = built(site)
    data = payload(site, made, made.sources)
    assert receive("install", far, made, data)["state"] == "ready"
    kit = site.far / made.digest
    code = next(kit.glob("lib/*/site-packages/stoker/work.py"))
    match damage:
        case "change":
            code.write_text("code = 6\n")
        case "remove":
            code.unlink()
        case "add":
            (code.parent / "hostile.py").write_text("")
        case "mode":
            code.chmod(0o666)
        case "link":
            (kit / "bin/python").unlink()
            (kit / "bin/python").symlink_to("/bin/sh")
    assert receive("look", far, made, data)["state"] == "missing"
    assert receive("install", far, made, data)["state"] == "ready"
    assert receive("look", far, made, data)["state"] == "ready"
    assert code.read_text() == "code = 1\n"
    assert os.readlink(kit / "bin/python") != "/bin/sh"
    assert not (code.parent / "hostile.py").exists()


def test_a_folder_in_which_others_may_write_is_refused(site: Site) -> None:
    site.far.mkdir(parents=True)
    site.far.chmod(0o777)
    with pytest.raises(KitRefused, match="others may write") as refused:
        site.prepare()
    assert (refused.value.exit_code, refused.value.data["reason"]) == (60, "not_own")
    site.far.rmdir()
    site.far.symlink_to(site.folder)
    with pytest.raises(KitRefused, match="is not a folder"):
        site.prepare()


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("above", ["lab", "lab/me", "link"])
def test_a_folder_that_others_may_replace_is_refused(site: Site, above: str, is_there: bool) -> None:
    (site.folder / "lab/me").mkdir(parents=True, mode=0o700)
    (site.folder / "links").mkdir(mode=0o700)
    (site.folder / "links/me").symlink_to(site.folder / "lab/me")
    site.far = site.folder / ("links/me/kits" if above == "link" else "lab/me/kits")
    if is_there:
        site.far.mkdir(mode=0o700)
    replaceable = site.folder / ("links" if above == "link" else above)
    replaceable.chmod(0o757)
    kit, far = built(site)
    answer = receive("look", far, kit, payload(site, kit, ()))
    assert (answer["reason"], answer["text"]) == ("replaceable", f"others may write in {replaceable} (mode 757)")
    replaceable.chmod(0o1777)
    answer = receive("look", far, kit, payload(site, kit, ()))
    assert answer["state"] == "missing", "with the sticky bit only the owner may rename it"


def test_members_of_a_group_may_not_replace_kits_unless_the_group_is_the_users_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, far = built(site)
    data = payload(site, made, made.sources)
    site.far.parent.mkdir(mode=0o700)
    site.far.parent.chmod(0o775)
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(user.pw_gid)
    os.chown(site.far.parent, -1, user.pw_gid)
    own = grp.struct_group((user.pw_name, "x", user.pw_gid, []))
    for found, state in (
        (grp.struct_group((user.pw_name, "x", user.pw_gid, ["mallory"])), "refused"),
        (grp.struct_group(("staff", "x", user.pw_gid, [])), "refused"),
        (own, "ready"),
    ):
        monkeypatch.setattr(grp, "getgrgid", lambda gid, found=found: found if gid == group.gr_gid else group)
        assert receive("install", far, made, data)["state"] == state


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_below_one_of_another_user_is_refused(site: Site) -> None:
    site.far.mkdir(parents=True, mode=0o700)
    os.chown(site.far.parent, 65534, 65534)
    with pytest.raises(KitRefused, match=rf"{site.far.parent} belongs to another user") as refused:
        site.prepare()
    assert "chmod g-w" in refused.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_refused(site: Site) -> None:
    site.far.mkdir(parents=True, mode=0o700)
    os.chown(site.far, 65534, 65534)
    with pytest.raises(KitRefused, match="belongs to another user"):
        site.prepare()


def test_a_full_disk_is_found_before_anything_is_sent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    kit, far = built(site)
    monkeypatch.setattr(kit_receiver, "_free_bytes", lambda _folder: 1000)
    answer = receive("look", far, kit, payload(site, kit, ()))
    assert (answer["state"], answer["reason"], answer["free"]) == ("refused", "no_space", 1000)
    assert answer["needed"] > kit.tree.size_bytes
    assert not site.far.exists()


def test_a_home_that_is_not_writable_is_found_before_anything_is_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, far = built(site)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    answer = receive("look", far, kit, payload(site, kit, ()))
    assert (answer["reason"], answer["text"]) == ("not_writable", f"{site.folder}: no permission to write")


def test_a_file_in_the_way_is_refused(site: Site) -> None:
    (site.folder / "far").write_text("")
    with pytest.raises(KitRefused, match="no permission to write") as refused:
        site.prepare()
    assert refused.value.hint.startswith("set folder")


def test_what_a_killed_launcher_left_here_goes_after_an_hour(site: Site) -> None:
    left, recent = (site.shared / "here" / name for name in (".payload-left", ".payload-recent"))
    built(site)
    for path in (left, recent):
        path.write_text("")
    os.utime(left, (1, 1))
    site.kits.check(POOL, "")
    assert (left.exists(), recent.exists()) == (False, True)


def test_what_a_killed_receiver_left_there_goes_after_an_hour(site: Site) -> None:
    site.prepare()
    for name in (".new-file", ".new-recent"):
        (site.far / name).write_text("")
    (site.far / ".new-folder").mkdir()
    for name in (".new-file", ".new-folder"):
        os.utime(site.far / name, (1, 1))
    made, far = built(site)
    assert receive("install", far, made, payload(site, made, made.sources))["state"] == "ready"
    assert sorted(one.name for one in site.far.glob(".new-*")) == [".new-recent"]


def test_libraries_that_another_process_removed_are_refused_and_then_made_again(site: Site, shared: Path) -> None:
    builder = site.builder("import tiny")
    _, far = built(site)
    kit = builder.build(far)
    libraries = Path(next(iter(builder._made.values()))[0])
    payloads = list((shared / "here").glob(".payload-*"))
    os.utime(libraries, (1, 1))
    assert builder.build(far) is kit
    assert libraries.stat().st_mtime > 1, "what is used is not pruned"
    remove_tree(libraries)
    with pytest.raises(KitRefused, match="No such file") as refused:
        builder.payload(kit, kit.sources)
    assert (refused.value.data["reason"], "try again" in refused.value.hint) == ("not_made", True)
    assert list((shared / "here").glob(".payload-*")) == payloads, "no half payload stays"
    again = builder.build(far)
    assert again.digest == kit.digest
    os.unlink(builder.payload(again, again.sources))
    remove_tree(libraries)
    assert builder.build(far).digest == kit.digest
    assert libraries.is_dir()


def test_a_slow_index_delays_no_kit_that_needs_nothing_of_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = site.builder()
    _, far = built(site)
    begun, go_on = threading.Event(), threading.Event()
    unpack = builder._libraries

    def slow(platform: str, minor: str, where: str) -> str:
        if platform.startswith("aarch64"):
            begun.set()
            go_on.wait(30)
        return unpack(platform, minor, where)

    monkeypatch.setattr(builder, "_libraries", slow)
    other = changed(far, platform=changed(far.platform, machine="aarch64"))
    waiting = threading.Thread(target=builder.build, args=(other,), daemon=True)
    waiting.start()
    assert begun.wait(10)
    quick = threading.Thread(target=builder.build, args=(far,), daemon=True)
    quick.start()
    quick.join(10)
    is_done = not quick.is_alive()
    go_on.set()
    waiting.join(30)
    assert is_done


def test_a_longer_time_limit_keeps_the_kit_longer(site: Site) -> None:
    needed_until: list[float] = []

    class Ready(HostCommands):
        def run(self, where: str, argv: Any, **options: Any) -> Reply:
            if "look" not in argv:
                return super().run(where, argv, **options)
            needed_until.append(float(argv[-1]))
            return ProbeOutput(out='{"state": "ready"}')

    kits = site.fresh(commands=Ready)
    for wall_s in (600, 600, 86_400):
        kits.prepare(changed(POOL, wall_s=wall_s), lambda *_: None)
    first, second = needed_until
    assert second - first > 80_000


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "null",
        '{"state": "odd"}',
        '{"state": "missing"}',
        '{"state": "missing", "bytes": "1", "free": 1, "missing": []}',
        '{"state": "missing", "bytes": 1, "free": 1, "missing": ["../../etc/passwd"]}',
        '{"state": "missing", "bytes": 1, "free": 1, "missing": [{}]}',
        '{"state": "refused"}',
        '{"state": "refused", "reason": "no_space", "text": "", "needed": {}, "free": 1}',
    ],
)
def test_an_answer_that_is_none_is_an_error_of_the_backend(site: Site, text: str) -> None:
    class Lying(HostCommands):
        def run(self, where: str, argv: Any, **options: Any) -> Reply:
            return ProbeOutput(out=text) if "look" in argv else super().run(where, argv, **options)

    with pytest.raises(NoBackend, match="kit on "):
        site.prepare(site.fresh(commands=Lying))


def test_the_program_for_a_login_shell_is_one_line() -> None:
    # csh ends a word at the line's end, and reads `!` also within quotes.
    assert not {"\n", "!", "'"} & set(_receiver())


def test_a_kit_that_does_not_start_there_is_not_kept(site: Site) -> None:
    with pytest.raises(KitRefused, match="No module named 'nowhere'") as refused:
        site.prepare(site.fresh("import nowhere"))
    assert "python" in refused.value.hint
    assert [one.name for one in site.far.iterdir() if not one.name.startswith(".")] == []


def test_two_launchers_at_once_make_one_kit(site: Site) -> None:
    kit, far = built(site)
    path = site.folder / "payload"
    path.write_bytes(payload(site, kit, kit.sources))
    text = Path(kit_receiver.__file__).read_text()
    words = [far.python, "-I", "-c", text, "install", far.base, kit.digest, "0"]
    several = []
    for _ in range(3):
        with path.open("rb") as file:
            several.append(subprocess.Popen(words, stdin=file, stdout=subprocess.PIPE))
    answers = [json.loads(one.communicate(timeout=60)[0]) for one in several]
    assert [one["state"] for one in answers] == ["ready"] * 3
    assert sorted(one["received"] > 0 for one in answers) == [False, False, True]
    assert sorted(one.name for one in site.far.iterdir()) == [".lock", kit.digest]


def test_a_lost_connection_is_told_and_the_next_try_goes_on(site: Site) -> None:
    class Losing(HostCommands):
        def run(self, where: str, argv: Any, **options: Any) -> Reply:
            reply = super().run(where, argv, **options)
            return ProbeFailure(why="connection lost", code="connection_lost") if "install" in argv else reply

    with pytest.raises(NoBackend, match="transfer of the kit to this machine broke: connection lost") as lost:
        site.prepare(site.fresh(commands=Losing))
    assert lost.value.exit_code == 62
    site.events.clear()
    site.prepare()
    assert site.events == [], "it had arrived"


def test_check_tells_what_is_missing_and_then_what_is_there(site: Site) -> None:
    python, kit = site.kits.check(POOL, "")
    assert (python.verdict, kit.verdict) == (CheckStatus.OK, CheckStatus.OK)
    assert "to install" in kit.message
    assert not site.far.exists()
    site.prepare()
    assert "is installed" in site.kits.check(POOL, "")[1].message


def test_libraries_that_can_not_be_had_are_refused_with_the_reason(site: Site) -> None:
    platform = Platform(system="linux", machine="aarch64", libc="glibc 2.31", pythons=("3.12.1",))
    far = FarSide(platform=platform, python="/usr/bin/python3.12", base="/none")
    with pytest.raises(KitRefused, match=r"libraries for aarch64 cp312: .*absent") as refused:
        site.builder(requirement="absent==1.0").build(far)
    assert refused.value.data["reason"] == "no_libraries"
    assert site.builder().build(far).digest != built(site)[0].digest


def test_the_requirements_are_those_of_a_worker_in_the_versions_installed_here() -> None:
    requirements, pins = requirements_here()
    assert any(one.startswith("pydantic") for one in requirements)
    assert not any("fastapi" in one or "extra" in one for one in requirements)
    pinned = dict(one.split("==") for one in pins)
    assert {"cryptography", "uv", "typing-extensions"} <= set(pinned)
    assert "torch" not in pinned


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        (("linux", "x86_64", "glibc 2.36"), "x86_64-manylinux_2_36"),
        (("linux", "aarch64", "glibc 2.30"), "aarch64-manylinux_2_28"),
        (("linux", "x86_64", "glibc 2.12"), "x86_64-manylinux_2_17"),
        (("linux", "x86_64", ""), "x86_64-manylinux_2_17"),
        (("linux", "x86_64", "glibc 2.99"), "x86_64-manylinux_2_40"),
        (("linux", "aarch64", "musl"), "aarch64-unknown-linux-musl"),
    ],
)
def test_a_platform_is_named_as_uv_names_it(platform: tuple[str, str, str], name: str) -> None:
    system, machine, libc = platform
    assert uv_platform(Platform(system=system, machine=machine, libc=libc)) == name


def test_a_platform_without_wheels_is_refused() -> None:
    with pytest.raises(KitRefused, match="no kit for linux-ppc64le"):
        uv_platform(Platform(system="linux", machine="ppc64le", libc="glibc 2.28"))


def test_a_probe_chooses_the_first_python_that_fits() -> None:
    text = LINUX + "python 3.9.2 cpython - /usr/bin/python3\npython 3.12.1 cpython - /opt/a b/bin/python3.12\n"
    far = read_probe(ProbeOutput(out=text), FAR, folder="/none")
    assert (far.python, far.platform.pythons, far.platform.text) == (
        "/opt/a b/bin/python3.12",
        ("3.12.1",),
        "linux-x86_64-cp312",
    )
    assert (far.base, far.is_same) == ("/home/me/.local/state/stoker/kits", False)
    assert (
        read_probe(ProbeOutput(out=text), changed(FAR, folder="/shared/me"), folder="/none").base == "/shared/me/kits"
    )
    assert read_probe(ProbeOutput(out=text), changed(FAR, via=""), folder="/here").base == "/here"
    assert read_probe(ProbeOutput(out=LINUX + "same yes\n"), FAR, folder="/none").is_same


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        (LINUX, "no_python", "me@far: no Python; Stoker needs >=3.11"),
        (LINUX + "python 3.9.2 cpython - /usr/bin/python3\n", "old_python", "/usr/bin/python3 is 3.9.2"),
        (LINUX + "python 3.13.1 cpython t /usr/bin/python3\n", "old_python", "no Python that fits"),
        (LINUX + "python 3.11.1 pypy - /usr/bin/pypy3\n", "old_python", "no Python that fits"),
        ("", "setup", "the setup commands ended the shell with exit code 0: no error output"),
        (LINUX.replace("/home/me", "/home/m e") + "python 3.11.1 cpython - /p\n", "path", "can't hold Stoker"),
    ],
)
def test_a_far_side_that_can_not_run_stoker_is_refused_with_a_hint(text: str, reason: str, message: str) -> None:
    with pytest.raises(KitRefused, match=message) as refused:
        read_probe(ProbeOutput(out=text), FAR, folder="/none")
    assert (refused.value.data["reason"], bool(refused.value.hint)) == (reason, True)


def test_setup_commands_run_before_the_probe_and_can_bring_a_python(site: Site) -> None:
    tools = site.folder / "tools"
    tools.mkdir()
    python = tools / f"python3.{sys.version_info.minor}"
    python.write_text(f"#!/bin/sh\necho 3.{sys.version_info.minor}.1 cpython - /module/bin/python3\n")
    python.chmod(0o755)
    pool = changed(POOL, setup=("echo noise; cat", f"PATH={tools}:$PATH", "x='a b'"))
    (found, _) = site.kits.check(pool, "")
    assert found.message.startswith("/module/bin/python3: ")
    ends = changed(pool, setup=("echo 'module: command not found' >&2; exit 3",))
    said = "the setup commands ended the shell with exit code 3: module: command not found"
    with pytest.raises(KitRefused, match=said):
        site.kits.prepare(ends, lambda *_: None, is_dry=True)
    with pytest.raises(KitRefused, match=said) as refused:
        site.kits.prepare(changed(ends, python="/usr/bin/python3"), lambda *_: None)
    assert refused.value.hint.startswith("correct setup")


def test_another_version_of_stoker_in_the_pools_python_is_refused(site: Site) -> None:
    python = site.folder / "python"
    python.write_text("#!/bin/sh\necho 3.11.7 0.0.1\n")
    python.chmod(0o755)
    pool = changed(POOL, python=str(python))
    with pytest.raises(KitRefused, match=r"Stoker 0\.0\.1, here is") as refused:
        site.kits.prepare(pool, lambda *_: None)
    assert "pip install stoker==" in refused.value.hint
    python.write_text("#!/bin/sh\nexit 127\n")
    with pytest.raises(KitRefused, match="no output"):
        site.kits.prepare(pool, lambda *_: None)
    slurm = changed(pool, backend=PoolBackend.SLURM)
    assert site.kits.prepare(slurm, lambda *_: None) == slurm, "its compute nodes may have it"
    assert check_python(ProbeOutput(out="3.11.7 0.0.1"), pool, "p").verdict is CheckStatus.BAD


def test_a_pool_may_ask_for_a_kit_where_its_backend_can_bring_one(site: Site) -> None:
    require_valid(POOL)
    ray = Pool(name="r", backend=PoolBackend.RAY, python=KIT, options={"address": "http://127.0.0.1:8265"})
    with pytest.raises(InvalidCluster, match="no kit for ray"):
        require_valid(ray)
    own = changed(POOL, python="")
    assert site.kits.prepare(own, lambda *_: None) == own, "without `via` the launcher's interpreter is used"
    with pytest.raises(InvalidCluster, match="setup"):
        site.kits.prepare(changed(POOL, setup=("a\nb",)), lambda *_: None)


def built(site: Site) -> tuple[Kit, FarSide]:
    platform = Platform(
        system="linux", machine="x86_64", libc="glibc 2.36", pythons=(".".join(map(str, sys.version_info[:3])),)
    )
    far = FarSide(platform=platform, python=BASE_PYTHON, base=str(site.far))
    return site.builder("import tiny").build(far), far


def payload(site: Site, kit: Kit, digests: Any) -> bytes:
    path = Path(site.builder("import tiny").payload(kit, digests))
    data = path.read_bytes()
    path.unlink()
    return data


def receive(verb: str, far: FarSide, kit: Kit, data: bytes, until_s: float = 0.0) -> dict[str, Any]:
    kit_receiver._LISTED.clear()
    return kit_receiver.main(verb, far.base, kit.digest, until_s, io.BytesIO(data))
