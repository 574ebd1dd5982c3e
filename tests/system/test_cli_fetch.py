"""`stoker fetch` of any address, as a user gives it: against a real server that does what real ones do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import habits as bad
from tests.servers.faulty import FaultyServer, Habit, Version, well
from tests.system.fetching import MIB, fetching_shell, sha256_of, some_bytes, tree
from tests.system.shell import Shell

DATA = some_bytes(3 * MIB + 17)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(Version(data=DATA)) as server:
        server.versions["/models/a%20model.gguf"] = Version(data=DATA[:1000])
        yield server


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return fetching_shell(tmp_path)


def test_an_address_lands_in_this_folder_under_its_last_name(shell: Shell, server: FaultyServer) -> None:
    done = shell.stoker("fetch", f"{server.origin}/models/a%20model.gguf?token=secret#part")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == str(shell.folder / "a model.gguf")
    assert tree(shell.folder) == {"a model.gguf"}
    assert (shell.folder / "a model.gguf").read_bytes() == DATA[:1000]
    assert "secret" not in done.out + done.err


def test_nothing_but_the_file_is_left_in_the_folder_that_was_named(shell: Shell, server: FaultyServer) -> None:
    done = shell.stoker("fetch", server.url, "--out", "deep/er", "-q")
    assert (done.code, done.out, done.err) == (0, f"{shell.folder}/deep/er/file\n", "")
    assert tree(shell.folder) == {"deep", "deep/er", "deep/er/file"}
    assert (shell.folder / "deep/er/file").read_bytes() == DATA


def test_a_file_that_is_there_and_still_the_newest_is_not_fetched_again(shell: Shell, server: FaultyServer) -> None:
    shell.stoker("fetch", server.url)
    server.become(well)
    done = shell.stoker("fetch", server.url)
    assert "present" in done.out
    assert server.gets() == []
    server.become(well, Version(data=DATA[:-1] + b"!", etag='"two"', last_modified=None))
    assert shell.stoker("fetch", server.url).code == 0
    assert (shell.folder / "file").read_bytes() == DATA[:-1] + b"!"
    assert len(server.gets()) == 1


def test_a_file_that_was_edited_is_fetched_again_and_force_fetches_always(shell: Shell, server: FaultyServer) -> None:
    shell.stoker("fetch", server.url)
    (shell.folder / "file").write_bytes(b"mine")
    assert shell.stoker("fetch", server.url).code == 0
    assert (shell.folder / "file").read_bytes() == DATA
    server.become(well)
    assert shell.stoker("fetch", server.url, "--force").code == 0
    assert len(server.gets()) == 1


def test_a_file_of_the_user_is_never_replaced_unasked(shell: Shell, server: FaultyServer) -> None:
    mine = shell.folder / "file"
    mine.write_text("mine")
    for words in ([], ["--sha256", sha256_of(DATA)], ["--dry-run"]):
        done = shell.stoker("fetch", server.url, *words)
        assert done.code == 16, words
        assert f"file exists and was not downloaded by Stoker: {mine}" in done.err
        assert "--force" in done.err
        assert mine.read_text() == "mine"
        assert server.gets() == []
    assert shell.stoker("fetch", server.url, "--force").code == 0
    assert mine.read_bytes() == DATA


def test_a_file_of_the_user_with_the_right_bytes_counts_as_there(shell: Shell, server: FaultyServer) -> None:
    (shell.folder / "file").write_bytes(DATA)
    done = shell.stoker("fetch", server.url, "--sha256", sha256_of(DATA))
    assert "present" in done.out
    assert server.gets() == []


def test_a_web_page_in_place_of_a_file_does_not_get_its_name(shell: Shell, server: FaultyServer) -> None:
    def as_page(asked, version):
        answer = well(asked, version)
        answer.set("Content-Type", "text/html; charset=utf-8")
        return answer

    server.become(as_page)
    done = shell.stoker("fetch", server.url)
    assert done.code == 14
    assert "the server sent a web page, not file" in done.err
    assert tree(shell.folder) == set()
    assert shell.stoker("fetch", server.url, "--sha256", sha256_of(DATA)).code == 0


def test_an_out_that_looks_like_a_file_is_told_to_be_a_folder(shell: Shell, server: FaultyServer) -> None:
    url = f"{server.origin}/models/a%20model.gguf"
    done = shell.stoker("fetch", url, "--out", "sub/other.gguf")
    assert "note: --out sub/other.gguf is a folder; the file is sub/other.gguf/a model.gguf" in done.err
    assert "note" not in shell.stoker("fetch", url, "--out", "sub/other.gguf").err


def test_a_moved_file_is_told_by_the_path_that_was_typed(shell: Shell, server: FaultyServer) -> None:
    shell.stoker("fetch", server.url)
    (shell.folder / "file").rename(shell.folder / "moved.bin")
    done = shell.stoker("check", "moved.bin")
    assert done.code == 0
    assert "moved.bin  3.0 MiB" in done.out
    assert f"from {server.url}" in done.out


def test_the_digest_that_was_expected_may_be_written_in_capitals(shell: Shell, server: FaultyServer) -> None:
    assert shell.stoker("fetch", server.url, "--sha256", sha256_of(DATA).upper()).code == 0
    server.become(well)
    assert "present" in shell.stoker("fetch", server.url, "--sha256", f"sha256:{sha256_of(DATA)}").out
    assert server.asked == []


def test_wrong_bytes_end_with_13_and_never_get_the_name(shell: Shell, server: FaultyServer) -> None:
    done = shell.stoker("fetch", server.url, "--sha256", "0" * 64)
    assert done.code == 13
    assert "hint: " in done.err
    assert not (shell.folder / "file").exists()


@pytest.mark.parametrize(
    ("habit", "code", "said"),
    [
        (bad.status(401), 11, "(401)"),
        (bad.status(403), 11, "(403)"),
        (bad.status(404), 14, "(404)"),
        (bad.status(429, Retry_After="0"), 12, "429"),
        (bad.status(503, Retry_After="0"), 14, "503"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_what_a_server_refuses_has_its_code(
    shell: Shell, server: FaultyServer, habit: Habit, code: int, said: str
) -> None:
    server.become(habit)
    done = shell.stoker("fetch", f"{server.url}?signature=secret", "--retries", "2")
    assert done.code == code, done.err
    assert said in done.err
    assert "secret" not in done.err
    assert "Traceback" not in done.err
    assert tree(shell.folder) <= {"file.part", "file.part.json"}


def test_nobody_there_is_14_with_the_host_in_the_message(shell: Shell, server: FaultyServer) -> None:
    server.close()
    done = shell.stoker("fetch", server.url, "--retries", "1")
    assert done.code == 14
    assert "127.0.0.1" in done.err


def test_a_timeout_counts_time_without_a_byte(shell: Shell, server: FaultyServer) -> None:
    server.become(bad.stalling(MIB))
    done = shell.stoker("fetch", server.url, "--timeout", "0.5", "--retries", "1")
    assert done.code == 14
    assert (shell.folder / "file.part").stat().st_size == MIB


def test_a_disk_that_is_too_small_is_10_before_anything_came(shell: Shell, server: FaultyServer) -> None:
    server.become(bad.with_fields(Content_Length=str(10**15)))
    done = shell.stoker("fetch", server.url)
    assert done.code == 10
    assert not (shell.folder / "file").exists()


def test_a_folder_that_can_not_be_written_is_16(shell: Shell, server: FaultyServer) -> None:
    (shell.folder / "taken").write_text("a file")
    done = shell.stoker("fetch", server.url, "--out", "taken")
    assert done.code == 16
    assert "taken" in done.err


@pytest.mark.parametrize("words", [["--offline"], []], ids=["option", "variable"])
def test_offline_asks_nobody_and_takes_what_is_there(shell: Shell, server: FaultyServer, words: list[str]) -> None:
    env = {} if words else {"STOKER_OFFLINE": "1"}
    missing = shell.stoker("fetch", server.url, *words, **env)
    assert missing.code == 14
    assert "--offline" in missing.err
    shell.stoker("fetch", server.url)
    server.become(well)
    assert shell.stoker("fetch", server.url, *words, **env).code == 0
    assert shell.stoker("fetch", server.url, *words, "--sha256", "0" * 64, **env).code == 13
    assert server.asked == []


def test_a_dry_run_says_what_would_come_and_touches_nothing(shell: Shell, server: FaultyServer) -> None:
    done = shell.stoker("fetch", server.url, "--dry-run")
    assert done.code == 0
    assert "3.0 MiB  to download  file" in done.out
    assert "free there" in done.out
    assert [asked.method for asked in server.asked] == ["HEAD"]
    told, summary = shell.stoker("fetch", server.url, "--dry-run", "--json").objects()
    assert (told["bytes"], told["is_there"], told["to_come_bytes"]) == (len(DATA), False, len(DATA))
    assert (summary["files"], summary["has_space"], summary["to_come_bytes"]) == (1, True, len(DATA))
    assert tree(shell.folder) == set()
    assert not shell.home.exists()


def test_a_receipt_is_left_that_check_believes_until_the_file_changes(shell: Shell, server: FaultyServer) -> None:
    shell.stoker("fetch", f"{server.url}?signature=secret")
    (told,) = shell.stoker("check", "file", "--json").objects()
    assert (told["file"], told["path"]) == ("file", str(shell.folder / "file"))
    assert (told["is_good"], told["sha256"], told["source"]) == (True, sha256_of(DATA), server.url)
    shutil.move(shell.folder / "file", shell.folder / "elsewhere")
    assert shell.stoker("check", "elsewhere").code == 0
    (receipt,) = (shell.home / "state/receipts/digests").iterdir()
    gone = shell.stoker("check", receipt)
    assert gone.code == 15
    assert "file not found" in gone.err
    shutil.move(shell.folder / "elsewhere", shell.folder / "file")
    assert shell.stoker("check", receipt).code == 0
    (shell.folder / "file").write_bytes(DATA[:-1] + b"!")
    changed = shell.stoker("check", "file", "--json")
    assert changed.code == 15
    assert sha256_of(DATA) in changed.objects()[0]["differs"][0]
    receipt.write_text(receipt.read_text().replace(server.url, "https://nicer.example/file"))
    assert "does not match its own checksum" in shell.stoker("check", receipt).err
    (shell.folder / "mine").write_text("never fetched")
    unknown = shell.stoker("check", "mine").err
    assert "no receipt: not downloaded by Stoker" in unknown
    assert f"hint: compare its sha256 {sha256_of(b'never fetched')}" in unknown
    nowhere = shell.stoker("check", "nowhere")
    assert nowhere.code == 16
    assert "hint: check the path" in nowhere.err
    assert shell.stoker("check").code == 2


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ([], "TARGET is missing", "stoker fetch org/repo"),
        (["https://h.example/a", "b"], "do not apply to a URL", ""),
        (["ftp://h.example/a"], "not the name of a repository", "org/name"),
        (["org/repo", "--sha256", "abc"], "64 hexadecimal digits", ""),
        (["org/repo@v1", "--rev", "v2"], "name two revisions", ""),
        (["org/repo", "../x"], "'../x' is not a file name", "path in the repository"),
        (["org/repo", "--retries", "0", "--timeout", "soon"], "at least 1; --timeout: 'soon' is not a duration", ""),
        (["org/repo", "--base-url", "nonsense"], "not a web address: nonsense", ""),
        (["org/repo", "--lock", "x", "--rev", "y"], "--lock and TARGET exclude each other; --lock and --rev", ""),
        (["one", "--lock", "two", "--check"], "--lock two and one name two lists", ""),
        (["org/repo", "--freeze", "--out", "x"], "--freeze and --out exclude each other", ""),
        (["--freeze", "https://h.example/a"], "--freeze needs a repository", "org/repo"),
        (["org/repo/a/m.gguf"], "not the name of a repository", "a separate argument: org/repo a/m.gguf"),
        (["models.lock.json"], "is a file here", "hint: stoker fetch --lock models.lock.json"),
    ],
)
def test_what_is_typed_wrongly_is_told_in_one_line_with_code_2(
    shell: Shell, words: list[str], said: str, hint: str
) -> None:
    (shell.folder / "models.lock.json").write_text("[]")
    done = shell.stoker("fetch", *words)
    assert done.code == 2
    assert said in done.err
    assert hint in done.err


def test_json_is_events_and_nothing_else_and_the_jq_lines_of_the_guide_work(shell: Shell, server: FaultyServer) -> None:
    server.become(bad.at_first(1, bad.cut(MIB)))
    done = shell.stoker("fetch", server.url, "--json", "--verbose")
    assert done.code == 0
    events = done.objects()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(event["v"] == 1 and event["kind"] == f"download_{event['phase']}" for event in events)
    phases = [event["phase"] for event in events]
    assert (phases[0], phases[-1]) == ("start", "done")
    assert {"progress", "retry"} <= set(phases)
    start, end = events[0], events[-1]
    assert (start["url"], start["resume"], start["start"]) == (server.url, False, 0)
    assert (end["bytes"], end["sha256"], end["status"]) == (len(DATA), sha256_of(DATA), "downloaded")
    assert "206" in done.err
    if shutil.which("jq") is None:
        pytest.skip("there is no jq here")
    tsv = _jq(done.out, "-r", 'select(.phase=="progress") | [.downloaded,.total] | @tsv')
    assert all(line.split("\t")[1] == str(len(DATA)) for line in tsv.splitlines())
    assert tsv
    said = _jq(done.out, "-r", 'select(.phase=="done") | "Downloaded \\(.bytes) bytes in \\(.ms)ms"')
    assert said == f"Downloaded {len(DATA)} bytes in {end['ms']}ms\n"
    retry = json.loads(_jq(done.out, "-c", 'select(.phase=="retry")'))
    assert retry["wait_secs"] >= 0
    assert retry["msg"]


def _jq(text: str, *words: str) -> str:
    return subprocess.run(["jq", *words], input=text, capture_output=True, text=True, check=True).stdout


def test_a_failure_is_the_last_event_of_the_stream(shell: Shell, server: FaultyServer) -> None:
    server.become(bad.status(404))
    done = shell.stoker("fetch", server.url, "--json")
    assert done.code == 14
    (event,) = done.objects()
    assert (event["phase"], event["kind"], event["error"]) == ("failed", "download_failed", "not_on_server")
    assert event["exit_code"] == 14


def test_programs_and_people_are_given_the_same_hint(shell: Shell, server: FaultyServer) -> None:
    server.become(bad.stalling(MIB))
    done = shell.stoker("fetch", server.url, "--json", "--retries", "1", "--timeout", "0.5")
    assert done.code == 14
    hint = done.objects()[-1]["hint"]
    assert "downloaded data is kept" in hint
    assert f"hint: {hint}\n" in done.err


def test_a_fetched_file_is_checked_as_a_file_though_it_looks_like_a_list(shell: Shell, server: FaultyServer) -> None:
    server.versions["/list.json"] = Version(data=b'[{"id": "x", "sha256": "not one", "urls": []}]')
    assert shell.stoker("fetch", f"{server.origin}/list.json").code == 0
    assert shell.stoker("check", "list.json").code == 0
    shutil.copy(shell.folder / "list.json", shell.folder / "mine.json")
    assert shell.stoker("check", "mine.json").code == 20


def test_no_progress_leaves_the_progress_out(shell: Shell, server: FaultyServer) -> None:
    done = shell.stoker("fetch", server.url, "--json", "--no-progress")
    assert [event["phase"] for event in done.objects()] == ["start", "done"]
    assert shell.stoker("fetch", server.url, "--force", "--no-progress").out.count("\n") == 2


def test_verbose_tells_hosts_of_redirects_and_no_secrets(shell: Shell, server: FaultyServer) -> None:
    with FaultyServer(Version(data=DATA)) as other:
        server.become(bad.redirected(f"{other.url}?X-Signature=hidden"))
        done = shell.stoker("fetch", f"{server.origin.replace('://', '://me:pass@')}/file?k=hidden", "--verbose")
    assert done.code == 0, done.err
    assert f"GET {server.url}: 302 to {other.url}" in done.err
    assert f"GET {other.url}: 200" in done.err
    assert "hidden" not in done.err + done.out
    assert "pass" not in done.err + done.out
    assert other.gets()[0].field("Authorization") is None


def test_the_everyday_commands_do_not_pay_for_downloads(shell: Shell) -> None:
    script = "import sys; from stoker.__main__ import main; main(); print(*sys.modules)"
    for words in (["--help"], ["fetch", "--help"], ["jobs"]):
        told = subprocess.run(
            [sys.executable, "-P", "-c", script, *words],
            env=shell.env,
            cwd=shell.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = told.stdout.splitlines()[-1].split()
        assert "urllib3" not in loaded
        assert "zstandard" not in loaded
        if words != ["fetch", "--help"]:
            assert not [name for name in loaded if name.startswith(("stoker.transfer.download", "stoker.transfer.hub"))]


def test_a_proxy_of_the_environment_is_asked(shell: Shell, server: FaultyServer) -> None:
    with FaultyServer(Version(data=DATA)) as proxy:
        done = shell.stoker("fetch", "http://nowhere.invalid/file", http_proxy=proxy.origin)
        assert done.code == 0, done.err
        assert proxy.asked[0].target == "http://nowhere.invalid/file"


def test_one_lock_is_waited_for_and_then_16(shell: Shell, server: FaultyServer) -> None:
    reached = threading.Event()
    server.become(bad.stalling(MIB, reached))
    first = shell.start("fetch", server.url)
    try:
        assert reached.wait(20)
        second = shell.stoker("fetch", server.url, "--json", "--timeout", "0.5")
    finally:
        first.kill()
        first.communicate()
    assert second.code == 16
    phases = [event["phase"] for event in second.objects()]
    assert phases == ["waiting", "failed"]
    assert os.path.exists(shell.folder / "file.part")
