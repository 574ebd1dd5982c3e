"""A project's code as a tree: what git tracks as it lies there, what is named beside it, and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, InvalidArchive, InvalidInput, Refused
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps
from stoker.host.git import NOT_THERE, ask_git
from stoker.jobs.pack import code_tree, project
from stoker.jobs.pack.code_tree import PackedProject, pack
from stoker.jobs.pack.project import Project, find_project
from stoker.store.trees import hash_file
from tests.unit.jobs.conftest import Office

WHO = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "PATH": os.defpath,
}


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], env=WHO, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder, train_py="print(1)", lib__model_py="x = 1")
    return folder


@pytest.fixture
def repository(plain: Path) -> Path:
    git(plain, "init", "-q", "-b", "main")
    commit(plain)
    return plain


def found(folder: Path) -> Project:
    return find_project(str(folder), environment=WHO)


def packed(office: Office, folder: Path, *include: str, needed: tuple[str, ...] = ()) -> PackedProject:
    return pack(found(folder), builder=office.builder, include=include, needed=needed)


def names(one: PackedProject) -> list[str]:
    return [entry.path for entry in one.tree.entries]


def test_what_git_tracks_goes_along_as_it_lies_there_now(office: Office, repository: Path) -> None:
    clean = packed(office, repository)
    head = git(repository, "rev-parse", "HEAD")
    assert (names(clean), clean.commit, clean.uncommitted) == (["lib/model.py", "train.py"], head, 0)
    write(repository, train_py="print(2)", untracked_py="no")
    (repository / "lib" / "model.py").unlink()
    write(repository, staged_py="new")
    git(repository, "add", "staged.py")
    dirty = packed(office, repository)
    assert names(dirty) == ["staged.py", "train.py"]
    assert (dirty.commit, dirty.uncommitted) == (f"{head}+3", 3)
    assert dirty.tree.entries[1].sha256 == hash_file(str(repository / "train.py"))[0]


def test_a_project_is_known_by_its_first_commit_and_the_folder_wherever_it_lies(
    office: Office, repository: Path, tmp_path: Path
) -> None:
    first = git(repository, "rev-parse", "HEAD")
    write(repository, train_py="print(3)")
    commit(repository)
    elsewhere = tmp_path / "elsewhere"
    git(repository, "clone", "-q", str(repository), str(elsewhere))
    assert found(repository).identity == found(elsewhere).identity == first
    inner = found(elsewhere / "lib")
    assert (inner.identity, inner.folder, inner.root) == (f"{first}/lib", "lib", str(elsewhere))
    # Whoever submits from a folder sends the whole project.
    assert packed(office, elsewhere / "lib").digest == packed(office, repository).digest


def test_what_has_no_first_commit_is_known_by_its_path(plain: Path, tmp_path: Path) -> None:
    assert found(plain).identity == str(plain)
    git(plain, "init", "-q")
    assert found(plain).identity == str(plain)
    commit(plain)
    write(plain, train_py="print(4)")
    commit(plain)
    shallow = tmp_path / "shallow"
    git(plain, "clone", "-q", "--depth", "1", f"file://{plain}", str(shallow))
    assert found(shallow).identity == str(shallow)


def test_untracked_files_go_along_if_they_are_named(office: Office, repository: Path) -> None:
    write(repository, _gitignore="*.secret\nweights/\n", configs__local_yaml="a", configs__other_yaml="b")
    (repository / "_gitignore").rename(repository / ".gitignore")
    write(repository / "weights", small="1", __pycache____x="no")
    write(repository / "lib", local__a="1")
    one = packed(office, repository, "configs/*_yaml", "weights")
    assert names(one) == [
        "configs/local_yaml",
        "configs/other_yaml",
        "lib/model.py",
        "train.py",
        "weights/small",
    ]
    assert one.uncommitted == 3
    # From the folder that it is submitted from, as everything that is typed there.
    assert "lib/local/a" in names(packed(office, repository / "lib", "local"))
    assert "configs/local_yaml" in names(packed(office, repository, needed=("configs/local_yaml",)))


def test_a_pattern_that_finds_nothing_or_leaves_the_project_is_refused(office: Office, repository: Path) -> None:
    with pytest.raises(BadInput, match="configs/none matches nothing"):
        packed(office, repository, "configs/none")
    with pytest.raises(BadInput, match="is outside of the project"):
        packed(office, repository, "../*")


def test_results_that_were_copied_into_the_project_are_no_code(office: Office, plain: Path) -> None:
    before = packed(office, plain)
    for folder in ("got", "got/lr=1", "."):
        write(plain / folder, model="weights")
        sidecar = {"v": 1, "artifacts": [], "files": {"model": [["sha256:1", 7, 1, 1]], "../train.py": []}}
        (plain / folder / ".stoker.json").write_text(dumps(sidecar))
    again = packed(office, plain)
    assert (names(again), again.digest) == (names(before), before.digest)
    assert again.notes == ("not sent, results of jobs: ./, got/, got/lr=1/; --include sends them",)
    write(plain, got__mine="own")
    assert names(packed(office, plain)) == ["got/mine", "lib/model.py", "train.py"]
    assert "got/lr=1/model" in names(packed(office, plain, "got"))
    (plain / ".stoker.json").write_text("{}")
    assert "model" in names(packed(office, plain)), "a file of that name that is not ours claims nothing"


def test_the_ignore_file_leaves_tracked_files_out_too(office: Office, repository: Path) -> None:
    write(repository, big__a_bin="1", big__keep="2")
    commit(repository)
    (repository / ".stokerignore").write_text("big/*\n!big/keep\n*.md\n")
    write(repository, big__a_bin="changed")
    one = packed(office, repository)
    assert names(one) == ["big/keep", "lib/model.py", "train.py"]
    # What is left out is no change of what is sent.
    assert one.uncommitted == 0


def test_submodules_are_said_plainly_and_go_along_if_they_are_named(
    office: Office, repository: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    write(other, code_py="1")
    commit(other)
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "third")
    commit(repository)
    one = packed(office, repository)
    assert "third/code.py" not in names(one)
    assert any("submodules are not sent unless `include` names them: third" in note for note in one.notes)
    named = packed(office, repository, "third")
    assert "third/code.py" in names(named)
    assert not any(name.startswith("third/.git") for name in names(named))
    assert not named.notes


def test_executable_bits_and_inner_links_are_kept_and_links_that_lead_out_refused(
    office: Office, repository: Path
) -> None:
    write(repository, run_sh="#!/bin/sh")
    (repository / "run_sh").chmod(0o755)
    (repository / "latest").symlink_to("lib/model.py")
    git(repository, "add", "-A")
    by_name = {entry.path: entry for entry in packed(office, repository).tree.entries}
    assert by_name["run_sh"].executable
    assert not by_name["train.py"].executable
    assert by_name["latest"].link_to == "lib/model.py"
    (repository / "data").symlink_to("/mnt/somewhere")
    (repository / "up").symlink_to("../elsewhere")
    git(repository, "add", "-A")
    with pytest.raises(InvalidInput) as refused:
        packed(office, repository)
    assert [fault.where for fault in refused.value.faults] == ["data", "up"]
    assert ".stokerignore" in refused.value.hint


def test_a_folder_that_became_a_link_is_not_followed(office: Office, repository: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "secrets"
    elsewhere.mkdir()
    (elsewhere / "model.py").write_text("not yours")
    (repository / "lib" / "model.py").unlink()
    (repository / "lib").rmdir()
    (repository / "lib").symlink_to(elsewhere)
    assert names(packed(office, repository)) == ["train.py"]


def test_outside_of_git_everything_goes_along_but_rubbish(office: Office, plain: Path) -> None:
    for name in (".venv/bin/python", "lib/__pycache__/model.pyc", "stoker-out/x/y", "node_modules/a", "other.pyc"):
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).touch()
    write(plain, env__pyvenv_cfg="", notes="n", home__store__a="1")
    (plain / "env" / "pyvenv_cfg").rename(plain / "env" / "pyvenv.cfg")
    (plain / ".stokerignore").write_text("notes\n")
    with socket.socket(socket.AF_UNIX) as heard:
        heard.bind(str(plain / "agent"))
        one = pack(found(plain), builder=changed(office.builder, own_folders=(str(plain / "home"),)))
    assert names(one) == [".stokerignore", "lib/model.py", "train.py"]
    assert (one.commit, one.uncommitted) == ("", 0)
    assert any("agent (a socket)" in note for note in one.notes)


def test_too_much_outside_of_git_is_refused_with_numbers(
    office: Office, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "MOST_FILES", 10)
    for number in range(20):
        (plain / "lib" / f"{number}").touch()
    with pytest.raises(BadInput, match=r"more than 10 files, lib/ ") as refused:
        packed(office, plain)
    assert ".stokerignore" in refused.value.hint
    assert "--in-place" in refused.value.hint
    monkeypatch.setattr(project, "MOST_FILES", 100)
    with (plain / "model.bin").open("wb") as file:
        file.truncate(2 << 20)
    for module in (project, code_tree):
        monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    with pytest.raises(BadInput, match=r"2\.0 MiB, more than 1\.0 MiB: model\.bin 2\.0 MiB"):
        packed(office, plain)
    # What is in git is told, and sent.
    git(plain, "init", "-q")
    commit(plain)
    assert any("model.bin 2.0 MiB" in note for note in packed(office, plain).notes)


def test_names_that_are_not_unicode_or_not_for_every_machine_are_refused_by_name(
    office: Office, repository: Path
) -> None:
    with open(os.path.join(os.fsencode(repository), b"caf\xe9.py"), "wb"):
        pass
    git(repository, "add", "-A")
    with pytest.raises(InvalidInput, match=r"caf\\udce9\.py.*not valid Unicode"):
        packed(office, repository)
    os.unlink(os.path.join(os.fsencode(repository), b"caf\xe9.py"))
    (repository / "a:b").touch()
    git(repository, "add", "-A")
    with pytest.raises(InvalidArchive, match="colon"):
        packed(office, repository)


def test_a_file_that_changes_while_it_is_read_is_read_again_and_one_that_never_rests_refused(
    office: Office, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest_of, times = code_tree._digest_of, []

    def changing(file):
        digest = digest_of(file)
        times.append(1)
        if len(times) <= most:
            (plain / "train.py").write_text(f"print({len(times)})" * len(times))
        return digest

    monkeypatch.setattr(code_tree, "_digest_of", changing)
    most = 2
    one = packed(office, plain)
    assert {entry.path: entry.sha256 for entry in one.tree.entries}["train.py"] == hash_file(str(plain / "train.py"))[0]
    most = 100
    (plain / "train.py").write_text("once more")
    with pytest.raises(Refused, match="keeps changing while it is read"):
        packed(office, plain)


def test_what_has_not_changed_is_not_read_again(
    office: Office, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in repository.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    # A file's change of status can't be set back: the memo is asked with a clock that is far ahead.
    monkeypatch.setattr("stoker.store.memo.SETTLED_NS", -(10**18))
    first = packed(office, repository)

    def unread(_file: object) -> None:
        message = "it was read again"
        raise AssertionError(message)

    monkeypatch.setattr(code_tree, "_digest_of", unread)
    monkeypatch.setattr(code_tree, "check_tree", unread)
    assert packed(office, repository).digest == first.digest


def test_nothing_is_written_to_the_repository(office: Office, repository: Path) -> None:
    write(repository, train_py="print(2)")
    os.utime(repository / "lib" / "model.py")
    before = (repository / ".git" / "index").stat().st_mtime_ns, sorted(os.listdir(repository / ".git"))
    packed(office, repository)
    assert ((repository / ".git" / "index").stat().st_mtime_ns, sorted(os.listdir(repository / ".git"))) == before


def test_a_repository_that_git_does_not_read_is_no_plain_folder(office: Office, plain: Path) -> None:
    (plain / ".git").mkdir()
    with pytest.raises(BadInput, match="git does not read the repository") as refused:
        found(plain)
    assert "--in-place" in refused.value.hint
    with pytest.raises(BadInput, match="git is not installed"):
        find_project(str(plain), environment={"PATH": "/nowhere"})


def test_nothing_that_a_repository_names_is_run(office: Office, repository: Path, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    command = f"touch {proof}; cat"
    (repository / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    hook = repository / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "filter.evil.smudge"):
        git(repository, "config", name, command)
    git(repository, "config", "filter.evil.required", "true")
    os.utime(repository / "train.py", (1, 1))
    packed(office, repository)
    assert not proof.exists()
    # It is gone here, and said to be had by a command.
    git(repository, "config", "extensions.partialClone", "far")
    git(repository, "config", "remote.far.url", str(tmp_path))
    git(repository, "config", "remote.far.uploadpack", command)
    (repository / ".git" / "refs" / "heads" / "main").write_text(f"{'1' * 40}\n")
    with suppress(BadInput):
        packed(office, repository)
    assert not proof.exists()


@pytest.mark.parametrize("elsewhere", [".", "..", "../other"])
def test_a_repository_can_not_say_that_its_files_lie_elsewhere(repository: Path, elsewhere: str) -> None:
    (repository.parent / "other").mkdir()
    where = (repository / elsewhere).resolve()
    git(repository, "config", "core.worktree", str(where))
    if elsewhere == ".":
        assert found(repository).root == str(repository)
        return
    with pytest.raises(BadInput, match=r"core.worktree|git does not read"):
        found(repository)


def test_a_filter_that_can_not_be_turned_off_is_refused(repository: Path) -> None:
    with (repository / ".git" / "config").open("a") as file:
        file.write('[filter "a=b"]\n\tclean = true\n')
    with pytest.raises(BadInput, match="can't be turned off"):
        found(repository)


def test_git_answers_side_by_side_and_says_what_is_wrong(repository: Path) -> None:
    good, bad = ask_git(str(repository), ("rev-parse", "HEAD"), ("rev-parse", "nothing"), environment=WHO)
    assert good.is_good
    assert len(good.lines()[0]) == 40
    assert not bad.is_good
    assert "nothing" in bad.err
    (missing,) = ask_git(str(repository), ("status",), environment={"PATH": "/nowhere"})
    assert (missing.exit_code, missing.err) == (NOT_THERE, "git is not installed")
    (slow,) = ask_git(str(repository), ("-c", "alias.wait=!sleep 5", "wait"), environment=WHO, limit_s=0.05)
    assert "timed out after" in slow.err
