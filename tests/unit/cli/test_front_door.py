from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from stoker.api.app_parts import AppSettings
from stoker.cli.commands import ALIASES, COMMANDS, Flags, expand, find_command, take_flags, top_help, verbs_of
from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.grammar import instead_of

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts


def test_flags_of_every_command_are_taken_from_anywhere_but_behind_two_dashes() -> None:
    words, flags = take_flags(["--json", "run", "x", "-q", "--", "--debug"])
    assert words == ["run", "x", "--", "--debug"]
    assert (flags.json, flags.quiet, flags.debug) == (True, True, False)


def test_the_longest_command_wins() -> None:
    assert find_command(["admin", "db", "check", "x"]) == (
        next(one for one in COMMANDS if one.words == "admin db check"),
        ["x"],
    )
    assert find_command(["jobs", "show", "x"])[0] is next(one for one in COMMANDS if one.words == "jobs show")
    command, rest = find_command(["jobs", "--limit", "3"])
    assert command is not None
    assert (command.words, rest) == ("jobs", ["--limit", "3"])
    assert find_command(["nothing"]) == (None, ["nothing"])


def test_verbs_of_a_noun_are_those_one_word_longer() -> None:
    assert "admin db" in [verb.words for verb in verbs_of("admin")]
    assert all(len(verb.path) == 2 for verb in verbs_of("admin"))
    assert {verb.path[-1] for verb in verbs_of("admin db")} == {"migrate", "check", "backup", "restore", "move"}


@pytest.mark.parametrize(("old", "new"), ALIASES)
def test_an_alias_leads_to_a_command_and_is_not_one_itself(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    assert expand([*old, "more"]) == [*new, "more"]
    assert find_command(list(new))[0] is not None
    assert find_command(list(old))[0] is None
    assert f"  {old[0]} " not in top_help()


def test_a_longer_alias_wins_over_a_shorter_one() -> None:
    assert expand(["plan", "inspect", "tabular/gbt"]) == ["run", "--dry-run", "tabular/gbt"]
    assert expand(["plan", "tabular/gbt", "lr=1"]) == ["run", "--dry-run", "tabular/gbt", "lr=1"]
    assert expand(["plan", "resume", "plan.json"]) == ["run", "plan.json"]
    assert expand(["train", "tabular/gbt"]) == ["run", "tabular/gbt"]


def test_words_of_system_d_are_commands_or_name_what_replaces_them() -> None:
    assert expand(["leaderboard", "val_loss"]) == ["jobs", "--rank", "val_loss"]
    for word in ("stage", "data", "auto", "policy", "hpo", "lineage"):
        assert "stoker " in instead_of(word)
        assert find_command([word])[0] is None


def test_a_command_closes_a_home_in_which_others_may_write_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    parts = SimpleNamespace(settings=AppSettings(home=str(tmp_path), folder="/", environment={}))
    for said in (f"note: others could write in {tmp_path}/state (mode 777); they no longer can\n", ""):
        call = CommandContext(Flags(), CliOutput(is_json=False, is_quiet=False), lambda: cast("AppParts", parts))
        assert call.parts is call.parts is parts
        assert capsys.readouterr().err == said
