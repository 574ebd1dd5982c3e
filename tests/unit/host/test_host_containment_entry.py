from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest

from stoker.core.errors import ContainmentUnavailable, LocalFile, NoPermission
from stoker.host.box_entry import ChildSetup, let_in, see_in, through_shell
from stoker.host.processes import Child, start
from tests.unit.host.real_boxes import MIB, PATIENCE_S, PYTHON
from tests.unit.host.real_processes import is_running

ENV = {"PATH": os.environ["PATH"]}
ROOMY = ChildSetup(address_space_bytes=4096 * MIB)
SHELLS = [shell for name in ("dash", "bash", "busybox") if (shell := shutil.which(name))]


def output_of(child: Child) -> str:
    assert child.stdout is not None
    with child.stdout:
        said = child.stdout.read().decode()
    assert child.wait(PATIENCE_S).is_success
    return said


def python(code: str, *arguments: str, entry: ChildSetup = ROOMY, env=ENV, cwd="/") -> Child:
    return start([*PYTHON, code, *arguments], cwd=cwd, env=env, stdout=subprocess.PIPE, entry=entry)


def test_a_program_that_enters_a_box_sees_what_it_would_see_without(tmp_path):
    odd = ["", " ", "a b", "*", "$HOME", "`id`", "-n", "--", "new\nline", "quo'te\"s", "ü"]
    env = {**ENV, "VALUE": "a\nb $x", "with.dot": "1", "with-dash": "2 3", "1st": "4", "LC_ALL": "C.UTF-8"}
    env |= {"limit": "5", "files": "6", "go": "7", "unset": "8", "IFS": "x", "OPTIND": "7", "PPID": "9"}
    code = (
        "import json, os, sys\n"
        "fds = [fd for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)]\n"
        "print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), sys.stdin.read(), len(fds),\n"
        "    os.getsid(0) == os.getpid() == os.getpgid(0)], sort_keys=True))"
    )
    bare = start([*PYTHON, code, *odd], cwd=tmp_path, env=env, stdout=subprocess.PIPE)
    boxed = python(code, *odd, env=env, cwd=tmp_path)
    assert output_of(boxed) == output_of(bare)


@pytest.mark.parametrize("shell", SHELLS, ids=os.path.basename)
def test_every_shell_that_may_be_sh_leaves_the_environment_as_it_was(shell, tmp_path):
    inside = tmp_path / "cgroup.procs"
    inside.touch()
    entry = ChildSetup(procs_files=(str(inside),), address_space_bytes=1024 * MIB)
    env = {"VALUE": "x", "with.dot": "1"}
    command = through_shell(entry, "/usr/bin/env", ["env"], env)
    command[0] = "sh"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        said = subprocess.run(
            command,
            executable=shell,
            stdin=theirs.fileno(),
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        see_in(ours)
    # These two bash insists on.
    lines = [line for line in said.stdout.splitlines() if not line.startswith(("_=", "SHLVL="))]
    assert sorted(lines) == ["VALUE=x", "with.dot=1"]
    assert inside.read_text() == "0\n"


def test_a_program_in_a_folder_with_an_equals_sign_is_run(tmp_path):
    (tmp_path / "lr=0.1").mkdir()
    program = tmp_path / "lr=0.1" / "hello"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    for env in (ENV, {**ENV, "with.dot": "1"}):
        child = start([str(program)], cwd="/", env=env, stdout=subprocess.PIPE, entry=ROOMY)
        assert output_of(child) == "hello\n"


def test_the_process_that_enters_is_the_program(tmp_path):
    inside = tmp_path / "cgroup.procs"
    inside.touch()
    child = python("import os; print(os.getpid())", entry=ChildSetup(procs_files=(str(inside),)))
    # Zero stands for the writer itself.
    assert inside.read_text() == "0\n"
    assert output_of(child) == f"{child.identity.pid}\n"


def test_a_limit_on_address_space_is_kept_by_the_program():
    child = python(
        "import resource\nprint(resource.getrlimit(resource.RLIMIT_AS))\n"
        "try: bytearray(2**30)\nexcept MemoryError: print('refused')",
        entry=ChildSetup(address_space_bytes=512 * MIB),
    )
    assert output_of(child) == f"({512 * MIB}, {512 * MIB})\nrefused\n"


@pytest.mark.parametrize("name", ["no-such-program", "./no-such-program", "/no/such/program"])
def test_a_program_that_is_missing_is_the_same_error_as_without_a_box(name, tmp_path):
    for entry in (None, ROOMY):
        with pytest.raises(LocalFile, match=r"no such file or folder: .*no.such.program"):
            start([name], cwd=tmp_path, env=ENV, entry=entry)


def test_a_program_that_may_not_be_run_is_the_same_error_as_without_a_box(tmp_path):
    (tmp_path / "text").write_text("not a program")
    (tmp_path / "folder").mkdir()
    for entry in (None, ROOMY):
        for name in ("text", "folder"):
            with pytest.raises(NoPermission, match=name):
                start([f"./{name}"], cwd=tmp_path, env=ENV, entry=entry)
            with pytest.raises(NoPermission, match=name):
                start([name], cwd="/", env={"PATH": str(tmp_path)}, entry=entry)


def test_a_folder_that_is_missing_is_the_same_error_as_without_a_box(tmp_path):
    for entry in (None, ROOMY):
        with pytest.raises(LocalFile, match="no-such-folder"):
            start(["true"], cwd=tmp_path / "no-such-folder", env=ENV, entry=entry)


def test_a_script_whose_interpreter_is_missing_is_refused_and_the_interpreter_named(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/python -u\n")
    script.chmod(0o755)
    with pytest.raises(LocalFile, match="/no/such/python") as raised:
        start(["./script"], cwd=tmp_path, env=ENV, entry=ROOMY)
    assert str(script) in raised.value.hint.replace("/./", "/")


@pytest.mark.parametrize("path", [".", "bin", "missing::bin"])
def test_a_program_is_found_on_its_own_path_from_its_own_folder(path, tmp_path):
    (tmp_path / "bin").mkdir()
    for place in (tmp_path, tmp_path / "bin"):
        (place / "hello").write_text("#!/bin/sh\necho hello\n")
        (place / "hello").chmod(0o755)
    for entry in (None, ROOMY):
        child = start(["hello"], cwd=tmp_path, env={"PATH": path}, stdout=subprocess.PIPE, entry=entry)
        assert output_of(child) == "hello\n"


def test_without_a_path_programs_are_found_where_the_system_has_them():
    assert output_of(start(["echo", "x"], cwd="/", env={}, stdout=subprocess.PIPE, entry=ROOMY)) == "x\n"


def test_a_door_that_does_not_open_is_an_error_with_its_reason_and_leaves_nobody(tmp_path):
    with pytest.raises(ContainmentUnavailable, match="no-such-group") as raised:
        python("print('never')", entry=ChildSetup(procs_files=(str(tmp_path / "no-such-group" / "cgroup.procs"),)))
    assert raised.value.exit_code == 42


def test_what_goes_wrong_at_the_door_is_not_written_to_the_program_s_output(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as file, pytest.raises(ContainmentUnavailable):
        start(["true"], cwd="/", env=ENV, stdout=file, stderr=file, entry=ChildSetup(procs_files=("/no/such/procs",)))
    assert log.read_text() == ""


def test_a_program_in_a_box_has_no_standard_input_to_give():
    with pytest.raises(ValueError, match="standard input"):
        start(["cat"], cwd="/", env=ENV, stdin=subprocess.PIPE, entry=ROOMY)


def test_a_program_waits_at_its_gate_until_it_is_let_in(tmp_path):
    ours, theirs = socket.socketpair()
    came = tmp_path / "came"
    with ours:
        child = start(["touch", str(came)], cwd="/", env=ENV, entry=ChildSetup(gate_fd=theirs.fileno()))
        theirs.close()
        with pytest.raises(TimeoutError):
            child.wait(0.05)
        assert not came.exists()
        let_in(ours)
    assert child.wait(PATIENCE_S).is_success
    assert came.exists()


def test_a_program_whose_gate_is_closed_never_runs(tmp_path):
    ours, theirs = socket.socketpair()
    came = tmp_path / "came"
    with ours, theirs:
        child = start(["touch", str(came)], cwd="/", env=ENV, entry=ChildSetup(gate_fd=theirs.fileno()))
    assert child.wait(PATIENCE_S).status == 125
    assert not came.exists()
    assert not is_running(child.identity.pid)


def test_letting_in_somebody_who_has_gone_is_an_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(ContainmentUnavailable):
        let_in(ours)
