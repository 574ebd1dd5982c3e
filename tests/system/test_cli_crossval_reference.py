"""`stoker reference`: an empty list, a wrong tag, an index out of reach. Fetches are in tests/unit/crossval."""

from __future__ import annotations

from tests.system.shell import Shell


def test_without_a_reference_the_list_says_how_to_fetch_one(shell: Shell) -> None:
    for words in (("reference",), ("reference", "list")):
        ran = shell.stoker(*words)
        assert (ran.code, ran.out) == (0, "")
        assert "stoker reference fetch" in ran.err
    assert shell.stoker("reference", "list", "--json").objects() == []


def test_a_fetch_that_fails_has_its_own_exit_code(shell: Shell) -> None:
    ran = shell.stoker("reference", "fetch", "--tag", "newest", "--json")
    assert (ran.code, ran.objects()[-1]["error"]) == (2, "usage")
    shell.env |= {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/", "UV_HTTP_RETRIES": "0", "UV_NO_CACHE": "1"}
    ran = shell.stoker("reference", "fetch", "--json")
    assert (ran.code, ran.objects()[-1]["error"]) == (14, "network")
    assert "installing xllamacpp==" in ran.err
    assert shell.stoker("reference", "--json").objects() == []
