"""`stoker store put`, `store refs`, `get` and `store verify` on what was put: through real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.shell import Shell, finish, wait_until
from tests.unit.store.hostile_archives import file, hardlink, tar

FILES = {
    "model.bin": b"m" * 20_000,
    "deep/notes.txt": b"notes",
    "deep/copy.bin": b"m" * 20_000,
    "run.sh": b"#!/bin/sh\n",
}


@pytest.fixture
def data(shell: Shell) -> Path:
    folder = shell.folder / "data"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "run.sh").chmod(0o755)
    (folder / "deep" / "link").symlink_to("../model.bin")
    return folder


def read(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".stoker.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if not path.is_symlink()}


def test_what_is_put_is_listed_known_again_and_given_back_as_plain_files(shell: Shell, data: Path) -> None:
    done = shell.stoker("store", "put", "data")
    assert done.code == 0, done.err
    assert done.out.endswith("5 files, 39.1 KiB; 19.5 KiB added\n")
    assert "already stored, 0 B added" in shell.stoker("store", "put", "data", "--as", "again").out
    listed = shell.stoker("store", "refs", "--json").objects()
    assert [one["name"] for one in listed] == ["again", "data"]
    assert listed[0]["digest"] == listed[1]["digest"]
    got = shell.stoker("get", "data", "out")
    assert got.out == f"data: 5 files in {shell.folder / 'out'}\n"
    assert read(shell.folder / "out") == FILES
    assert os.access(shell.folder / "out" / "run.sh", os.X_OK)
    assert os.readlink(shell.folder / "out" / "deep" / "link") == "../model.bin"
    assert read(data) == FILES
    by_digest = shell.stoker("get", listed[0]["digest"][:10], "by-digest")
    assert by_digest.code == 0, by_digest.err
    assert read(shell.folder / "by-digest") == FILES


def test_what_was_got_can_be_put_again_as_the_same_thing(shell: Shell, data: Path) -> None:
    (put,) = shell.stoker("store", "put", "data", "--json").objects()
    assert shell.stoker("get", "data", "out").code == 0
    (again,) = shell.stoker("store", "put", "out", "--json").objects()
    assert (again["digest"], again["files"], again["is_known"]) == (put["digest"], 5, True)


def test_a_file_that_was_put_comes_back_as_that_file_in_a_folder(shell: Shell, data: Path) -> None:
    assert shell.stoker("store", "put", "data/model.bin", "--as", "base").code == 0
    assert shell.stoker("get", "base").code == 0
    assert read(shell.folder / "base") == {"model.bin": FILES["model.bin"]}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("store", "unpin", "data"), "did you mean `stoker store pin data --remove`?"),
        (("store", "unpin"), "did you mean `stoker store pin NAME --remove`?"),
        (("store", "rm", "data"), "did you mean `stoker store refs data --remove`?"),
        (("store", "ls"), "did you mean `stoker store refs`?"),
        (("store", "list"), "did you mean `stoker store refs`?"),
        (("store", "get", "data"), "did you mean `stoker get data`?"),
        (("store", "pni"), "did you mean 'pin'?"),
        (("jobs", "delete", "gbt"), "did you mean `stoker jobs rm gbt`?"),
        (("jobs", "gbt"), "stoker jobs show gbt"),
        (("put", "data"), "did you mean `stoker store put`?"),
        (("machines", "list"), "did you mean `stoker machines`?"),
        (("cluster", "list"), "did you mean `stoker cluster show`?"),
        (("gpus",), "did you mean `stoker machines memory`?"),
    ],
)
def test_words_that_people_try_first_lead_to_the_right_ones(shell: Shell, words: tuple[str, ...], hint: str) -> None:
    done = shell.stoker(*words)
    assert (done.code, done.err.splitlines()[-1]) == (2, f"hint: {hint}")


def test_an_archive_of_another_format_is_told_by_its_name(shell: Shell, data: Path) -> None:
    subprocess.run(["tar", "-czf", "d.tgz", "data"], cwd=shell.folder, check=True)
    done = shell.stoker("store", "put", "d.tgz", "--unpack")
    first, second = done.err.splitlines()
    assert done.code == 20
    assert first.endswith("this is gzip; supported are .tar and .tar.zst")
    assert second == "hint: unpack it with its own program and put the folder; or put the file as it is"


def test_json_tells_everything_of_a_put_and_nothing_else(shell: Shell, data: Path) -> None:
    (one,) = shell.stoker("store", "put", "data", "--kind", "dataset", "--json").objects()
    assert (one["name"], one["kind"], one["files"], one["added_bytes"]) == ("data", "dataset", 5, 20_015)
    assert (one["is_known"], one["before"]) == (False, None)
    (row,) = [json.loads(line) for line in (shell.home / "store" / "index.jsonl").read_text().splitlines()]
    assert (row["did"], row["digest"], row["source"]) == ("put", one["digest"], str(data))
    objects = shell.stoker("store", "--json").objects()
    assert objects[0] == {"name": "data", "digest": one["digest"], "kind": "dataset", "bytes": 20_015}
    shown = shell.stoker("store", "refs", "data", "--json").objects()
    assert [entry["path"] for entry in shown] == ["deep/copy.bin", "deep/link", "deep/notes.txt", "model.bin", "run.sh"]


def test_a_bundle_is_the_same_bytes_each_time_and_can_be_put_again(shell: Shell, data: Path) -> None:
    (put,) = shell.stoker("store", "put", "data", "--json").objects()
    (one,) = shell.stoker("get", "data", "--bundle", "a.tar.zst", "--json").objects()
    assert one["digest"] == put["digest"]
    assert shell.stoker("get", put["digest"][:12], "--bundle", "b.tar.zst").code == 0
    first, second = ((shell.folder / name).read_bytes() for name in ("a.tar.zst", "b.tar.zst"))
    assert first == second
    refused = shell.stoker("get", "data", "--bundle", "a.tar.zst")
    assert (refused.code, "already exists" in refused.err) == (1, True)
    unpacked = subprocess.run(
        ["tar", "--zstd", "-tf", "a.tar.zst"], cwd=shell.folder, capture_output=True, text=True, check=True
    )
    assert sorted(unpacked.stdout.split()) == ["deep/copy.bin", "deep/link", "deep/notes.txt", "model.bin", "run.sh"]
    elsewhere = {"STOKER_HOME": str(shell.folder / "other-home")}
    (again,) = shell.stoker("store", "put", "a.tar.zst", "--unpack", "--json", **elsewhere).objects()
    assert (again["name"], again["digest"]) == ("a", put["digest"])
    assert shell.stoker("get", "a", "back", **elsewhere).code == 0
    assert read(shell.folder / "back") == FILES


def test_a_name_is_moved_only_when_told(shell: Shell, data: Path) -> None:
    (first,) = shell.stoker("store", "put", "data", "--json").objects()
    (data / "new").write_bytes(b"new")
    refused = shell.stoker("store", "put", "data")
    assert refused.code == 1
    assert "the name 'data' already belongs to another tree" in refused.err
    assert "--replace" in refused.err
    moved = shell.stoker("store", "put", "data", "--replace")
    assert f"data was {first['digest'][:12]} before" in moved.err
    assert "(no name)" in shell.stoker("store").out
    unnamed = next(one for one in shell.stoker("store", "--json").objects() if one.get("things"))
    # The large file is shared with what the name stands for now: only what lies in the old record would go.
    assert (unnamed["things"], unnamed["bytes"]) == (1, 15)
    assert shell.stoker("store", "pin", first["digest"][:12]).code == 0
    assert first["digest"][:12] in shell.stoker("store", "pins").out


def test_jobs_win_over_what_was_put_and_that_is_said(shell: Shell, data: Path) -> None:
    assert shell.stoker("run", "toy/text", "value=3", "--no-out").code == 0
    (put,) = shell.stoker("store", "put", "data", "--as", "text", "--json").objects()
    got = shell.stoker("get", "text", "out")
    assert got.code == 0
    assert f"the stored tree text: use its digest, {put['digest'][:12]}" in got.err
    assert not (shell.folder / "out" / "model.bin").exists()
    assert shell.stoker("get", put["digest"], "mine").code == 0
    assert read(shell.folder / "mine") == FILES


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("store", "put"), 2, "PATH is missing"),
        (("store", "put", "nope"), 16, "no such file or folder"),
        (("store", "put", "pipe"), 16, "neither a file nor a folder"),
        (("store", "put", "bad"), 20, "pipe: is neither a file"),
        (("store", "put", "data", "--as", "a/b"), 2, "invalid name"),
        (("store", "put", "data/model.bin", "--unpack"), 20, "the archive can't be unpacked: "),
        (("get", "dta"), 1, "there is no job 'dta', and nothing was put under that name"),
        (("store", "refs", "nope", "--remove"), 1, "no stored tree 'nope'"),
        (("store", "refs", "--remove"), 2, "--remove needs a name"),
        (("store", "verify", "--sample", "7/3"), 2, "is not a part"),
        (("store", "verify", "--sample", "1/3", "--full"), 2, "--full and --sample exclude each other"),
        (("store", "verify", "--rate", "fast"), 2, "is not a size"),
        (("store", "prune", "--quarantine"), 2, "--quarantine needs --everywhere"),
        (("store", "prune", "--downloads"), 2, "--downloads needs --everywhere"),
        (("clean", "--dry-run", "--yes"), 2, "--dry-run and --yes exclude each other"),
    ],
)
def test_bad_input_is_told_in_one_line_with_its_code(
    shell: Shell, data: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    if "pipe" in words:
        os.mkfifo(shell.folder / "pipe")
    if "bad" in words:
        (shell.folder / "bad").mkdir()
        os.mkfifo(shell.folder / "bad" / "pipe")
        (shell.folder / "bad" / "out").symlink_to("/etc/passwd")
    done = shell.stoker(*words)
    assert (done.code, told in done.err + done.out) == (code, True), done
    assert "Traceback" not in done.err
    assert shell.staged() == []


@pytest.mark.parametrize("sort", ["folder", "archive"])
def test_a_refusal_says_what_is_wrong_and_what_to_do(shell: Shell, sort: str) -> None:
    if sort == "folder":
        (shell.folder / "bad").mkdir()
        os.mkfifo(shell.folder / "bad" / "pipe")
        done = shell.stoker("store", "put", "bad")
        told, hint = "pipe: is neither a file, a folder nor a symlink", "remove the rest"
    else:
        (shell.folder / "evil.tar").write_bytes(tar(file("../evil", b"x"), file("good", b"y")))
        done = shell.stoker("store", "put", "evil.tar", "--unpack")
        told, hint = "../evil: has an unsafe name: ", "nothing of it was kept"
    first, second = done.err.splitlines()
    assert done.code == 20
    assert first.startswith(f"stoker: {told}")
    assert second.startswith("hint: ")
    assert hint in second


def test_several_faults_are_all_told_below_a_line_that_counts_them(shell: Shell) -> None:
    (shell.folder / "evil.tar").write_bytes(tar(file("../evil", b"x"), file("a", b"y"), file("a", b"z")))
    done = shell.stoker("store", "put", "evil.tar", "--unpack")
    assert done.err.splitlines()[0] == "stoker: the archive can't be unpacked"
    assert "  ../evil: has an unsafe name" in done.err
    assert "  a: comes twice" in done.err


def test_a_prune_tells_what_it_did_once_and_after_it_was_done(shell: Shell, data: Path) -> None:
    """The same three fields say what happened, with --everywhere and without it."""
    assert shell.stoker("store", "put", "data").code == 0
    staging = shell.home / "store" / "staging" / ".999999.1.put"
    staging.mkdir()
    (staging / "left").write_bytes(b"x" * 1000)
    for words in ((), ("--everywhere",)):
        (*_, shown) = shell.stoker("store", "prune", *words, "--json").objects()
        assert (shown["done"], shown["freed_bytes"], shown["stuck"]) == (False, 0, [])
    (*before, done) = shell.stoker("store", "prune", "--yes", "--json").objects()
    assert [one for one in before if "done" in one] == []
    assert (done["done"], done["freed_bytes"], done["stuck"]) == (True, 1000, [])
    assert not staging.exists()
    (*_, again) = shell.stoker("store", "prune", "--everywhere", "--yes", "--json").objects()
    assert (again["done"], again["stuck"]) == (True, [])


def test_a_damaged_name_is_told_as_a_name(shell: Shell, data: Path) -> None:
    (put,) = shell.stoker("store", "put", "data", "--json").objects()
    assert isinstance(put["at_s"], float)
    (ref,) = (shell.home / "store" / "refs").glob("*.ref")
    ref.chmod(0o644)
    ref.write_bytes(ref.read_bytes()[:-5])
    told = shell.stoker("store", "verify", "--json").objects()[0]
    assert (told["what"], told["name"], told["stage"], told["key"]) == ("ref", "data", None, None)
    assert "repaired from the index" in told["damage"]
    assert shell.stoker("get", "data", "out").code == 0


def test_damage_is_listed_by_name_before_it_is_summed_up(shell: Shell, data: Path) -> None:
    (put,) = shell.stoker("store", "put", "data", "--json").objects()
    assert shell.stoker("store", "put", "data", "--as", "too").code == 0
    (blob,) = shell.home.glob("store/blobs/*/*")
    blob.chmod(0o644)
    blob.write_bytes(b"!")
    process = subprocess.run(
        [sys.executable, "-P", "-m", "stoker", "store", "verify"],
        cwd=shell.folder,
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    header, row, summary, hint = process.stdout.splitlines()
    assert process.returncode == 13
    assert header.split() == ["what", "damage"]
    assert row.split("  ")[0] == put["digest"][:12]
    assert "put as data, too  lost: deep/copy.bin, model.bin" in row
    assert summary.startswith("stoker: 1 damaged item; moved to ")
    assert hint.startswith("hint: ")


def test_stages_trials_and_metrics_are_a_jobs(shell: Shell, data: Path) -> None:
    shell.stoker("store", "put", "data")
    for words in (("get", "data/3"), ("get", "data", "--metrics", "m.csv")):
        done = shell.stoker(*words)
        assert (done.code, "is not a job" in done.err) == (2, True), done.err


def test_a_file_in_the_way_of_what_is_given_back_is_not_touched(shell: Shell, data: Path) -> None:
    shell.stoker("store", "put", "data/model.bin")
    (shell.folder / "model.bin").write_bytes(b"mine")
    done = shell.stoker("get", "model.bin")
    assert done.code == 1
    assert "is not a folder" in done.err
    assert (shell.folder / "model.bin").read_bytes() == b"mine"


def test_a_prune_keeps_what_has_a_name_and_takes_what_has_none(shell: Shell, data: Path) -> None:
    (put,) = shell.stoker("store", "put", "data", "--json").objects()
    kept = shell.stoker("store", "prune", "--max-size", "0", "--yes")
    assert "not removed: 1 result, put as data" in kept.out
    assert shell.stoker("get", "data", "out").code == 0
    gone = shell.stoker("store", "refs", "data", "--remove")
    assert "removed the name data" in gone.out
    spared = shell.stoker("store", "prune").out
    assert "no results to remove" in spared
    assert "not removed: 1 result, put without a name, for less than an hour" in spared
    record = next((shell.home / "store" / "records").glob(f"*/{put['key']}"))
    os.utime(record, (time.time() - 7200, time.time() - 7200))
    shown = shell.stoker("store", "prune").out
    assert "no name stands for it any more" in shown
    assert "nothing was removed; remove it with --yes" in shown
    wait_until(lambda: all(time.time() - path.stat().st_ctime > 1.2 for path in shell.home.glob("store/blobs/*/*")))
    assert "freed 19.5 KiB" in shell.stoker("store", "prune", "--yes").out
    assert "(no name)" not in shell.stoker("store").out
    assert shell.stoker("get", put["digest"], "again").code == 1


def test_parts_of_the_store_are_verified_and_damage_to_what_was_put_is_found(shell: Shell, data: Path) -> None:
    for number in range(6):
        (data / f"extra-{number}").write_bytes(b"%d" % number * 10_000)
    assert shell.stoker("store", "put", "data").code == 0
    parts = ("1/2", "2/2")
    told = [shell.stoker("store", "verify", "--sample", part, "--json").objects()[-1] for part in parts]
    assert sum(one["hashed_bytes"] for one in told) == 80_000
    blob = next(iter(shell.home.glob("store/blobs/*/*")))
    info = blob.stat()
    blob.chmod(0o644)
    blob.write_bytes(b"!" + blob.read_bytes()[1:])
    os.utime(blob, ns=(info.st_atime_ns, info.st_mtime_ns))
    found = [shell.stoker("store", "verify", "--sample", part, "--json") for part in parts]
    assert 13 in {done.code for done in found}
    damaged = [one for done in found for one in done.objects() if one.get("damage")]
    assert {one["what"] for one in damaged} == {"put"}
    assert not blob.exists()
    assert "in quarantine" in shell.stoker("store").out
    mended = shell.stoker("store", "put", "data")
    assert "added" in mended.out
    assert shell.stoker("store", "verify", "--full", "--rate", "1GB").out == ("0 results and 1 stored tree verified\n")


def test_a_slow_verification_takes_its_time_and_is_ended_by_ctrl_c(shell: Shell, data: Path) -> None:
    (data / "large").write_bytes(os.urandom(3 << 20))
    assert shell.stoker("store", "put", "data").code == 0
    began_s = time.monotonic()
    assert shell.stoker("store", "verify", "--full", "--rate", "4M").code == 0
    assert time.monotonic() - began_s >= 0.7
    slow = shell.start("store", "verify", "--full", "--rate", "1k")
    wait_until(lambda: _is_asleep(slow.pid))
    slow.send_signal(signal.SIGINT)
    done = finish(slow)
    assert done.code == 130
    assert "interrupted" in done.err
    assert shell.stoker("store", "verify").code == 0


def _is_asleep(pid: int) -> bool:
    """Return whether a process waits while it has a blob open: it sleeps between two blocks."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
        opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return state == "S" and any("/blobs/" in path for path in opened)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_put_that_is_stopped_leaves_nothing_half(shell: Shell, number: signal.Signals, code: int) -> None:
    with open(shell.folder / "large", "wb") as file:
        file.truncate(1 << 30)
    process = shell.start("store", "put", "large")
    wait_until(lambda: any(path.stat().st_size for folder in shell.staged() for path in folder.iterdir()))
    process.send_signal(number)
    done = finish(process)
    assert (done.code, done.out) == (code, ""), done.err
    assert shell.staged() == []
    assert shell.stoker("store", "refs").out == "no stored trees; add one: stoker store put PATH\n"
    assert not list(shell.home.glob("store/blobs/*/*"))
    assert not list((shell.home / "store" / "leases").glob("?" * 64))


def test_what_a_killed_put_left_is_cleared_away_and_the_put_can_be_repeated(shell: Shell) -> None:
    large = shell.folder / "large"
    with open(large, "wb") as file:
        file.truncate(1 << 30)
    process = shell.start("store", "put", "large")
    wait_until(lambda: any(path.stat().st_size for folder in shell.staged() for path in folder.iterdir()))
    process.kill()
    process.communicate()
    assert shell.staged()
    assert shell.stoker("store", "refs", "--json").objects() == []
    assert "1 staging folder" in shell.stoker("store", "prune").out
    assert shell.stoker("store", "prune", "--yes").code == 0
    assert shell.staged() == []
    large.write_bytes(b"small now" * 1000)
    assert shell.stoker("store", "put", "large").code == 0
    assert shell.stoker("store", "verify", "--full").code == 0


def test_putting_imports_no_archive_library_and_draws_nothing(shell: Shell, data: Path) -> None:
    from tests.system.test_cli_start import NEVER, modules_of

    loaded = modules_of(shell, "store", "put", "data")
    assert not loaded & (NEVER | {"zstandard", "urllib3"})
    assert not modules_of(shell, "get", "data", "out") & (NEVER | {"zstandard", "urllib3"})


def test_an_empty_name_is_refused_and_not_taken_for_none(shell: Shell, data: Path) -> None:
    done = shell.stoker("store", "put", "data", "--as", "")
    assert done.code == 2
    assert "it is empty" in done.err
    assert "data" not in shell.stoker("store", "refs").out


def test_hard_links_of_an_archive_are_stored_once_and_come_back_as_files(shell: Shell) -> None:
    links = [hardlink(f"link{number}", "b") for number in range(20)]
    (shell.folder / "it.tar").write_bytes(tar(file("b", b"m" * 100_000), hardlink("a", "b"), *links))
    done = shell.stoker("store", "put", "it.tar", "--unpack", "--as", "it")
    assert done.code == 0, done.err
    assert done.out.endswith("22 files, 2.1 MiB; 97.7 KiB added\n")
    assert shell.stoker("store", "verify").code == 0
    assert shell.stoker("get", "it", "back").code == 0
    assert set(read(shell.folder / "back").values()) == {b"m" * 100_000}
    assert len(read(shell.folder / "back")) == 22
