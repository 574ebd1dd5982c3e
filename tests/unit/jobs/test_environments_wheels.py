"""What a lock alone says about platforms, by texts as uv writes them."""

from __future__ import annotations

import pytest

from stoker.core.errors import BadInput
from stoker.core.machine import Platform, fits, is_platform, platform_of, python_of
from stoker.jobs.pack.lock_file import read_lock
from stoker.jobs.pack.wheels import why_impossible

JETSON = Platform(system="linux", machine="aarch64", libc="glibc 2.35", pythons=("3.10.12",))
DESK = Platform(system="linux", machine="x86_64", libc="glibc 2.39", pythons=("3.12.3", "3.11.9"))
OLD = Platform(system="linux", machine="x86_64", libc="glibc 2.17", pythons=("3.11.9",))
MAC = Platform(system="macos", machine="aarch64", pythons=("3.12.3",))
WINDOWS = Platform(system="windows", machine="x86_64", pythons=("3.12.3",))
MUSL = Platform(system="linux", machine="x86_64", libc="musl 1.2", pythons=("3.12.3",))

HEAD = """\
version = 1
revision = 3
requires-python = ">=3.10"
resolution-markers = [
    "sys_platform == 'linux'",
]

[[package]]
name = "study"
version = "0.1.0"
source = { editable = "." }
dependencies = [
"""


def lock_of(needs: str, packages: str, *, tail: str = "", head: str = HEAD) -> str:
    return f"{head}{needs}]\n{tail}\n{packages}"


def package(
    name: str, *wheels: str, version: str = "1.0", needs: str = "", source: bool = False, tail: str = ""
) -> str:
    lines = [
        "[[package]]",
        f'name = "{name}"',
        f'version = "{version}"',
        'source = { registry = "https://index.invalid/simple" }',
    ]
    if needs:
        lines += ["dependencies = [", needs, "]"]
    if source:
        lines.append(
            f'sdist = {{ url = "https://files.invalid/{name}-{version}.tar.gz", hash = "sha256:00", size = 1 }}'
        )
    if wheels:
        lines.append("wheels = [")
        lines += [
            f'    {{ url = "https://files.invalid/ab/{wheel}", hash = "sha256:00", size = 1 }},' for wheel in wheels
        ]
        lines.append("]")
    return "\n".join([*lines, tail, ""])


TORCH = [
    "torch-2.5.1-cp310-cp310-manylinux1_x86_64.whl",
    "torch-2.5.1-cp311-cp311-manylinux1_x86_64.whl",
    "torch-2.5.1-cp312-cp312-manylinux1_x86_64.whl",
    "torch-2.5.1-cp312-none-macosx_11_0_arm64.whl",
    "torch-2.5.1-cp312-cp312-win_amd64.whl",
]
STUDY = lock_of(
    '    { name = "torch" },\n    { name = "numpy" },\n    { name = "tqdm" },\n',
    package(
        "torch",
        *TORCH,
        version="2.5.1",
        needs="    { name = \"nvidia-nccl-cu12\", marker = \"platform_machine == 'x86_64' and os_name == 'posix'\" },",
    )
    + package(
        "numpy",
        "numpy-1.0-cp310-cp310-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "numpy-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        source=True,
    )
    + package("tqdm", "tqdm-1.0-py3-none-any.whl")
    + package("nvidia-nccl-cu12", "nvidia_nccl_cu12-1.0-py3-none-manylinux_2_18_x86_64.whl"),
)


@pytest.mark.parametrize(
    ("platform", "missing"),
    [
        (JETSON, ["no wheel of torch for aarch64 cp310"]),
        (DESK, []),
        (OLD, ["no wheel of nvidia-nccl-cu12 for x86_64 cp311"]),
        (MAC, []),
        (WINDOWS, []),
        (MUSL, ["no wheel of nvidia-nccl-cu12 for x86_64 cp312", "no wheel of torch for x86_64 cp312"]),
    ],
    ids=["jetson", "desk", "old-glibc", "mac", "windows", "musl"],
)
def test_a_wheel_that_no_platform_takes_is_named(platform: Platform, missing: list[str]) -> None:
    assert sorted(why_impossible(read_lock(STUDY), platform)) == missing


def test_an_unknown_c_library_is_given_the_benefit_of_the_doubt() -> None:
    nobody_knows = Platform(system="linux", machine="x86_64", pythons=("3.11.9",))
    assert why_impossible(read_lock(STUDY), nobody_knows) == []


def test_the_python_that_lacks_least_counts() -> None:
    only = package("torch", "torch-1.0-cp312-cp312-manylinux1_x86_64.whl")
    lock = read_lock(lock_of('    { name = "torch" },\n', only))
    both = Platform(system="linux", machine="x86_64", libc="glibc 2.39", pythons=("3.10.1", "3.12.3"))
    assert why_impossible(lock, both) == []
    assert why_impossible(lock, both, wish="3.10") == ["no wheel of torch for x86_64 cp310"]


def test_a_python_that_the_lock_or_the_wish_does_not_allow_is_told_with_what_there_is() -> None:
    old = Platform(system="linux", machine="x86_64", pythons=("3.8.18", "3.9.2"))
    assert why_impossible(read_lock(STUDY), old) == ["no Python that is >=3.10: it has 3.8.18, 3.9.2"]
    assert why_impossible(read_lock(STUDY), DESK, wish="3.13") == [
        "no Python that is 3.13 and >=3.10: it has 3.12.3, 3.11.9"
    ]


def test_stable_abi_wheels_fit_later_pythons_and_no_earlier_ones() -> None:
    lock = read_lock(
        lock_of('    { name = "fast" },\n', package("fast", "fast-1.0-cp311-abi3-manylinux_2_17_x86_64.whl"))
    )
    assert why_impossible(lock, DESK) == []
    older = Platform(system="linux", machine="x86_64", libc="glibc 2.39", pythons=("3.10.1",))
    assert why_impossible(lock, older) == ["no wheel of fast for x86_64 cp310"]


def test_extras_and_groups_count_only_where_they_are_installed() -> None:
    tail = (
        '\n[package.optional-dependencies]\ncuda = [\n    { name = "cu" },\n]\n'
        '\n[package.dev-dependencies]\ndev = [\n    { name = "lint" },\n]\n'
    )
    packages = package("cu", "cu-1.0-cp312-cp312-win_amd64.whl") + package("lint", "lint-1.0-cp39-cp39-win_amd64.whl")
    lock = read_lock(lock_of("", packages, tail=tail))
    assert why_impossible(lock, DESK, groups=()) == []
    assert why_impossible(lock, DESK, groups=(), extras=("cuda",)) == ["no wheel of cu for x86_64 cp312"]
    assert why_impossible(lock, DESK) == ["no wheel of lint for x86_64 cp312"]


def test_of_several_versions_the_one_that_the_marker_means_counts() -> None:
    needs = (
        '    { name = "np", version = "1.0", marker = "python_full_version < \'3.12\'" },\n'
        '    { name = "np", version = "2.0", marker = "python_full_version >= \'3.12\'" },\n'
    )
    packages = package("np", "np-1.0-cp39-cp39-win_amd64.whl") + package("np", "np-2.0-py3-none-any.whl", version="2.0")
    lock = read_lock(lock_of(needs, packages))
    assert why_impossible(lock, DESK) == []
    assert why_impossible(lock, DESK, wish="3.11") == ["no wheel of np for x86_64 cp311"]


def test_what_can_not_be_judged_is_not_called_impossible() -> None:
    needs = (
        '    { name = "a", marker = "extra == \'extra-5-study-cpu\'" },\n'
        '    { name = "b", marker = "nonsense ??" },\n'
        '    { name = "c" },\n'
        '    { name = "gone" },\n'
    )
    bad = "x-1.0-cp39-cp39-win_amd64.whl"
    packages = package("a", bad) + package("b", bad) + package("c", "odd.whl") + package("c", "odd.whl", version="2.0")
    assert why_impossible(read_lock(lock_of(needs, packages)), DESK) == []


def test_extras_of_dependencies_bring_their_own() -> None:
    needs = '    { name = "jax", extra = ["cuda"] },\n'
    tail = '\n[package.optional-dependencies]\ncuda = [\n    { name = "plugin" },\n]\n'
    packages = package("jax", "jax-1.0-py3-none-any.whl", tail=tail) + package(
        "plugin", "plugin-1.0-cp39-cp39-win_amd64.whl"
    )
    assert why_impossible(read_lock(lock_of(needs, packages)), DESK) == ["no wheel of plugin for x86_64 cp312"]


@pytest.mark.parametrize(
    "text",
    ["", "[[package]", "version = 1\npackage = 3", 'version = 1\n[[package]]\nversion = "1"', "version = 'x'"],
    ids=["empty", "broken", "no-list", "no-name", "no-version"],
)
def test_what_is_no_lock_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput) as told:
        read_lock(text)
    assert "\n" not in told.value.message


@pytest.mark.parametrize(
    ("version", "wish", "does"),
    [
        ("3.11.7", "3.11", True),
        ("3.11.7", "3.11.7", True),
        ("3.11.6", "3.11.7", False),
        ("3.12.0", ">=3.10,<3.12", False),
        ("3.11.7", "", True),
        ("3.11.7", "3.11.*", True),
        ("3.11.7", "nonsense", False),
        ("3.11.7", "~=3.10", True),
        ("3.11.7", "~=3.10.2", False),
        ("3.11.7", "!=3.11.*", False),
        ("3.11.0", ">3.11", False),
        ("3.11.1", ">3.11", True),
        ("3.11.0", "==3.11", True),
        ("3.13.0rc1", ">=3.13", True),
        ("3.9.18", ">=3.10", False),
    ],
)
def test_a_version_fits_what_is_wished(version: str, wish: str, does: bool) -> None:
    assert fits(version, wish) is does


def test_platforms_go_by_one_name_however_their_system_spells_it() -> None:
    assert platform_of(system="Darwin", machine="arm64").name == "macos-aarch64"
    assert platform_of(system="Windows", machine="AMD64").name == "windows-x86_64"
    jetson = platform_of(system="Linux", machine="aarch64", pythons=["3.10.12", "", "3.10.12", "3.8.10"])
    assert jetson.text == "linux-aarch64-cp310"
    assert jetson.is_named("linux-aarch64")
    assert jetson.is_named("linux-aarch64-cp38")
    assert not jetson.is_named("linux-aarch64-cp311")
    assert is_platform("linux-aarch64-cp310")
    assert not is_platform("default")
    assert (python_of("linux-aarch64-cp310"), python_of("linux-aarch64")) == ("3.10", "")
