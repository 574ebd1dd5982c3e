"""A second machine and a laptop join a coordinator over real TLS, each in a network of its own, and work with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.host.certificates import KeyPair, Signer, make_csr, make_key
from tests.fault.network import HERE, CutLink, cut_link
from tests.system.shell import PATIENCE_S, Shell

PORT = 7717
URL = f"https://{HERE}:{PORT}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Three homes on two hosts: the coordinator's, and across the link a machine's and a person's."""

    link: CutLink
    desk: Shell
    lab: Shell
    laptop: Shell

    def code(self, *words: str) -> str:
        """Have somebody invited; give what is typed behind `join`."""
        done = self.desk.stoker("machines", "invite", "--json", *words)
        assert done.code == 0, done.err
        (told,) = done.objects()
        return next(line.split()[-1] for line in told["commands"] if HERE in line)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("join")
    with cut_link() as link:
        fleet = Fleet(
            link=link,
            desk=Shell(folder / "desk", index=index, before=link.here),
            lab=Shell(folder / "lab", index=index, before=link.there),
            laptop=Shell(folder / "laptop", index=index, before=link.there),
        )
        with _served(fleet.desk, PORT):
            yield fleet


@contextmanager
def _served(shell: Shell, port: int, *words: str) -> Iterator[None]:
    """Serve a home for a while."""
    serving = shell.start("serve", "--listen", f"{HERE}:{port}", "--json", *words)
    try:
        assert serving.stdout is not None
        said = serving.stdout.readline()
        assert json.loads(said or "{}").get("url") == f"https://{HERE}:{port}", serving.communicate()[1]
        yield
    finally:
        _end(serving)


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


# In every run, the journey of a second machine goes this way.
@pytest.mark.slow
def test_a_machine_joins_and_a_laptop_submits_to_it(fleet: Fleet):
    joined = fleet.lab.stoker("join", fleet.code("--name", "lab1"))
    assert joined.code == 0, joined.err
    assert "✓ CA" in joined.out
    assert f"joined {URL} as lab1" in joined.out
    person = fleet.laptop.stoker("join", "--operator", fleet.code("--operator", "--role", "submit"))
    assert person.code == 0, person.err
    working = fleet.lab.start("work", "--json")
    try:
        (fleet.laptop.folder / "train.py").write_text("print('trained')\n")
        # Both hosts see one disk: how code travels is told by other tests.
        done = fleet.laptop.stoker("submit", "--name", "job", "--in-place", "--watch", "--", "python", "train.py")
        assert done.code == 0, done.err
        (told,) = fleet.laptop.stoker("jobs", "--json").objects()
        assert (told["name"], told["state"], told["machine"]) == ("job", "completed", "lab1")
        assert _ask_from_python(fleet.laptop).split() == [URL, "lab1"]
        # Whoever may submit may not operate.
        refused = fleet.laptop.stoker("machines", "drain", "lab1")
        assert refused.code == 33, refused.err
        forgotten = fleet.desk.stoker("machines", "forget", "lab1")
        assert forgotten.code == 0, forgotten.err
        assert "is revoked" in forgotten.err
        _end(working)
        gone = fleet.lab.stoker("work", "--until-idle")
        assert gone.code == 33
        assert "was revoked" in gone.out
    finally:
        _end(working)


@pytest.mark.slow
def test_a_code_works_once_and_for_its_name_alone(fleet: Fleet):
    code = fleet.code("--name", "lab9")
    other = fleet.lab.stoker("join", code, "--again", "--name", "lab8")
    assert (other.code, "for lab9" in other.err) == (2, True)
    assert fleet.lab.stoker("join", code, "--again").code == 0
    used = fleet.lab.stoker("join", code, "--again")
    assert used.code == 33
    assert "used" in used.err


@pytest.mark.slow
def test_a_code_that_is_wrong_or_meant_for_another_place_is_told_apart(fleet: Fleet):
    code = fleet.code()
    letters, _, host = code.partition("@")
    wrong = letters[:-1] + ("0" if letters[-1] != "0" else "1")
    done = fleet.lab.stoker("join", f"{wrong}@{host}", "--again")
    assert (done.code, "can't prove that it made this code" in done.err) == (33, True)
    nobody = fleet.lab.stoker("join", f"{letters}@{HERE}:9")
    assert (nobody.code, "refused the connection" in nobody.err, "--listen" in nobody.err) == (34, True, True)


@pytest.mark.slow
def test_a_worker_beside_the_coordinator_joins_by_itself(fleet: Fleet):
    done = fleet.desk.stoker("work", "--until-idle", "--name", "desk")
    assert done.code == 0, done.out + done.err
    assert f"joined {URL} as desk" in done.err
    again = fleet.desk.stoker("work", "--until-idle")
    assert again.code == 0, again.out + again.err
    assert "as desk:" in again.out
    (kept,) = (fleet.desk.home / "state" / "joined").glob("worker-*.ca.pem")
    _let_end(kept.with_name(kept.name.replace(".ca.pem", ".pem")), fleet.desk)
    late = fleet.desk.stoker("work", "--until-idle")
    assert late.code == 0, late.out + late.err
    assert f"joined {URL} as desk" in late.err
    assert os.stat(fleet.desk.home / "state" / "joined").st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_certificate_is_renewed_while_it_works_and_outlives_the_first_one(tmp_path: Path, index: Path, fleet: Fleet):
    desk = Shell(tmp_path / "desk", index=index, before=fleet.link.here)
    lab = Shell(tmp_path / "lab", index=index, before=fleet.link.there)
    with _served(desk, PORT + 1, "--certificate-life", "20s"):
        (told,) = desk.stoker("machines", "invite", "--json").objects()
        code = next(line.split()[-1] for line in told["commands"] if HERE in line)
        assert lab.stoker("join", code).code == 0
        working = lab.start("work", "--json")
        try:
            assert working.stdout is not None
            renewed = 0
            while renewed < 2:
                renewed += json.loads(working.stdout.readline())["kind"] == "certificate_renewed"
            (machine,) = [one for one in desk.stoker("machines", "--json").objects() if not one["is_here"]]
            assert machine["state"] == "ready"
        finally:
            _end(working)


def _let_end(certificate: Path, desk: Shell) -> None:
    """Put a certificate in the place of a machine's that ended a month ago."""
    authority = desk.home / "state" / "authority"
    pair = KeyPair(certificate_pem=(authority / "ca.pem").read_text(), key_pem=(authority / "ca.key").read_text())
    key_pem = make_key()
    long_ago_s = SystemClock().wall_s() - 60 * 86400
    made = Signer(pair).machine(make_csr(key_pem, "desk"), "desk", now_s=long_ago_s).certificate_pem
    certificate.write_text(made + key_pem)


def _ask_from_python(shell: Shell) -> str:
    asks = (
        "from stoker import Client\nwith Client() as fleet: print(fleet.url, *(one.name for one in fleet.machines()))"
    )
    words = [*shell.before, sys.executable, "-P", "-c", asks]
    return subprocess.run(words, env=shell.env, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
