from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import BadCookbook, UnknownRecipe
from stoker.engine.catalogue import Catalogue, CookbookSource, find_sources, load_cookbook

_names = (f"cookbook_{number}" for number in itertools.count())

BODY = '''
from dataclasses import dataclass
from stoker.authoring import Category, Cookbook, JsonKind, Plan, PlanBuilder, arg, recipe, stage

class Cake(JsonKind):
    name = "cake"

@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    eggs: int = arg(2, ge=1)
    layers: tuple[int, ...] = arg((1, 2))

@stage("{name}/bake", inline=True)
def bake(job, args: Args) -> Cake:
    return job.save(Cake, args.eggs)

@recipe("{name}/cake", output=Cake, category=Category.TRAIN, summary="{summary}")
def cake(args: Args) -> Plan:
    return PlanBuilder("cake").start(bake, args).finish()

@recipe("{name}/tart", output=Cake, category=Category.DATA_PREP)
def tart() -> Plan:
    """Bake a tart."""
    return PlanBuilder("tart").start(bake).finish()

COOKBOOK = Cookbook(
    name="{declared}", recipes=(cake, tart), stages=(bake,), kinds=(Cake,), prefill={{"{name}/cake": {{"eggs": 5}}}}
)
'''


class Shelf:
    """Cookbooks in a folder that Python imports from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: list[CookbookSource] = []
        self.index = str(folder / "state" / "cookbooks.json")

    def add(self, *, body: str = BODY, summary: str = "a cake", declared: str = "", name: str = "") -> str:
        module = next(_names)
        self.write(module, body, summary=summary, declared=declared, name=name)
        self.sources.append(CookbookSource(name=module, value=f"{module}:COOKBOOK"))
        return module

    def write(
        self, module: str, body: str = BODY, *, summary: str = "a cake", declared: str = "", name: str = ""
    ) -> None:
        text = body.format(name=name or module, summary=summary, declared=declared or module)
        (self.folder / f"{module}.py").write_text(text)
        importlib.invalidate_caches()

    def catalogue(self) -> Catalogue:
        """As a new process sees it: nothing imported."""
        for source in self.sources:
            sys.modules.pop(source.module, None)
        return Catalogue(self.index, list(self.sources))

    def imported(self) -> set[str]:
        return {source.module for source in self.sources if source.module in sys.modules}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Shelf(tmp_path)
    yield made
    for source in made.sources:
        sys.modules.pop(source.module, None)


def test_recipes_are_listed_in_the_order_of_categories(shelf: Shelf) -> None:
    one, two = shelf.add(), shelf.add()
    listed = [entry.name for entry in shelf.catalogue().entries()]
    assert listed == [f"{one}/tart", f"{two}/tart", f"{one}/cake", f"{two}/cake"]


def test_an_entry_says_everything_about_a_recipe(shelf: Shelf) -> None:
    name = shelf.add()
    entry = shelf.catalogue().find(f"{name}/cake")
    assert (entry.cookbook, entry.summary, entry.category, entry.backend) == (name, "a cake", "train", "python")
    assert (entry.version, entry.inputs, entry.output) == (1, (), "cake@1")
    assert entry.args["properties"]["eggs"] == {"type": "integer", "minimum": 1, "default": 2}
    assert entry.prefill == {"eggs": 5, "layers": [1, 2]}


def test_the_first_listing_is_what_later_ones_read_from_the_index(shelf: Shelf) -> None:
    shelf.add()
    first = shelf.catalogue().entries()
    assert shelf.imported()
    second = shelf.catalogue()
    assert second.entries() == first
    assert not shelf.imported()
    assert second.loaded() == []


def test_an_edited_cookbook_makes_the_index_stale(shelf: Shelf) -> None:
    name = shelf.add()
    shelf.catalogue().entries()
    shelf.write(name, summary="a better cake")
    assert shelf.catalogue().find(f"{name}/cake").summary == "a better cake"


def test_a_new_cookbook_makes_the_index_stale(shelf: Shelf) -> None:
    shelf.add()
    assert len(shelf.catalogue().entries()) == 2
    shelf.add()
    assert len(shelf.catalogue().entries()) == 4
    shelf.sources.pop()
    assert len(shelf.catalogue().entries()) == 2


def test_no_cookbooks_at_all_is_an_answer_that_is_remembered(shelf: Shelf) -> None:
    assert shelf.catalogue().entries() == []
    before = os.stat(shelf.index).st_ino
    assert shelf.catalogue().entries() == []
    assert os.stat(shelf.index).st_ino == before


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 2, "stamp": [], "files": [], "recipes": 5}']
)
def test_a_damaged_index_is_built_again(shelf: Shelf, text: str) -> None:
    name = shelf.add()
    shelf.catalogue().entries()
    Path(shelf.index).write_text(text)
    assert shelf.catalogue().find(f"{name}/cake").output == "cake@1"


def test_an_index_that_cant_be_written_costs_only_time(shelf: Shelf) -> None:
    name = shelf.add()
    Path(shelf.folder / "state").write_text("in the way")
    assert shelf.catalogue().find(f"{name}/cake").cookbook == name


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError"),
        ("COOKBOOK = 5", "is not a cookbook"),
        ("OTHER = 5", "AttributeError"),
    ],
)
def test_a_broken_cookbook_is_a_trouble_and_not_a_crash(shelf: Shelf, body: str, says: str) -> None:
    good, bad = shelf.add(), shelf.add(body=body)
    catalogue = shelf.catalogue()
    assert [entry.name for entry in catalogue.entries()] == [f"{good}/tart", f"{good}/cake"]
    (trouble,) = catalogue.troubles
    assert says in trouble
    assert bad in trouble
    with pytest.raises(UnknownRecipe) as raised:
        catalogue.find(f"{bad}/cake")
    assert "not loaded" in raised.value.hint
    catalogue.cookbooks()
    assert len(catalogue.troubles) == 1


def test_a_cookbook_that_was_mended_is_noticed(shelf: Shelf) -> None:
    bad = shelf.add(body="raise RuntimeError('boom')")
    assert shelf.catalogue().entries() == []
    shelf.write(bad)
    later = shelf.catalogue()
    assert later.find(f"{bad}/cake").cookbook == bad
    assert later.troubles == []


def test_one_recipe_name_in_two_cookbooks_is_an_error_that_names_both(shelf: Shelf) -> None:
    one = shelf.add()
    two = shelf.add(name=one)
    with pytest.raises(BadCookbook, match=f"recipe {one}/cake is in two cookbooks, {one} and {two}"):
        shelf.catalogue().entries()


def test_a_cookbook_goes_by_the_name_of_its_entry_point(shelf: Shelf) -> None:
    name = shelf.add(declared="other")
    catalogue = shelf.catalogue()
    assert catalogue.entries() == []
    assert catalogue.troubles == [f"cookbook 'other' is registered as {name!r}: both names must be the same"]


def test_a_recipe_is_found_by_its_last_name_if_there_is_one_of_it(shelf: Shelf) -> None:
    one = shelf.add()
    assert shelf.catalogue().find("cake").name == f"{one}/cake"
    two = shelf.add()
    with pytest.raises(UnknownRecipe, match=f"'cake' could be {one}/cake or {two}/cake"):
        shelf.catalogue().find("cake")


def test_a_misspelt_recipe_is_answered_with_the_nearest(shelf: Shelf) -> None:
    name = shelf.add()
    with pytest.raises(UnknownRecipe) as raised:
        shelf.catalogue().find(f"{name}/caek")
    assert raised.value.hint == f"did you mean '{name}/cake'?"
    assert raised.value.exit_code == 27


def test_recipes_with_equal_ends_can_stand_in_for_each_other(shelf: Shelf) -> None:
    one, two = shelf.add(), shelf.add()
    swaps = [entry.name for entry in shelf.catalogue().swaps(f"{one}/cake")]
    assert swaps == [f"{one}/tart", f"{two}/tart", f"{two}/cake"]


def test_loading_a_recipe_imports_its_cookbook_only(shelf: Shelf) -> None:
    one, two = shelf.add(), shelf.add()
    shelf.catalogue().entries()
    catalogue = shelf.catalogue()
    recipe = catalogue.load(f"{two}/cake")
    assert recipe.compile(recipe.args.build({}, owner="x")).final == "bake"
    assert shelf.imported() == {two}
    assert [book.name for book in catalogue.loaded()] == [two]
    assert one not in shelf.imported()


def test_a_recipe_that_went_away_since_the_index_was_read_says_so(shelf: Shelf) -> None:
    name = shelf.add()
    shelf.catalogue().entries()
    catalogue = shelf.catalogue()
    catalogue.entries()
    text = (shelf.folder / f"{name}.py").read_text()
    (shelf.folder / f"{name}.py").write_text(text.replace("recipes=(cake, tart)", "recipes=(tart,)"))
    importlib.invalidate_caches()
    with pytest.raises(UnknownRecipe, match="no longer has"):
        catalogue.load(f"{name}/cake")


def test_a_cookbook_that_is_no_longer_installed_says_so(shelf: Shelf) -> None:
    shelf.add()
    with pytest.raises(BadCookbook, match="no longer installed"):
        shelf.catalogue().cookbook("gone")


def test_the_module_that_declares_a_cookbook_is_watched_too(shelf: Shelf) -> None:
    """Recipes below `book/pages`, the cookbook itself in `book`: an edit of either is noticed."""
    name = next(_names)
    package = shelf.folder / name
    (package / "pages").mkdir(parents=True)
    (package / "pages" / "__init__.py").touch()
    body = BODY.format(name=name, summary="a cake", declared=name).split("COOKBOOK =")
    (package / "pages" / "recipes.py").write_text(body[0])
    head = f"from {name}.pages.recipes import *\nfrom stoker.authoring import Cookbook\n"
    (package / "__init__.py").write_text(f"{head}COOKBOOK = Cookbook(name='{name}', recipes=(cake,))\n")
    shelf.sources.append(CookbookSource(name=name, value=f"{name}:COOKBOOK"))
    importlib.invalidate_caches()

    def count() -> int:
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[loaded]
        return len(shelf.catalogue().entries())

    assert count() == 1
    (package / "__init__.py").write_text(f"{head}COOKBOOK = Cookbook(name='{name}', recipes=(cake, tart,))\n")
    assert count() == 2


# --- entry points --------------------------------------------------------------------------------


def distribution(folder: Path, name: str, text: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(textwrap.dedent(text))


def test_cookbooks_are_found_through_entry_points(tmp_path: Path) -> None:
    distribution(
        tmp_path,
        "one",
        """\
        [console_scripts]
        tool = tool:main

        [stoker.cookbooks]
        # a comment
        pastry = bakery.pastry:COOKBOOK
        bread=bakery.bread:COOKBOOK
        [other]
        x = y:z
        """,
    )
    (tmp_path / "bare-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    assert [(one.name, one.value) for one in find_sources([str(tmp_path), "/nowhere"])] == [
        ("bread", "bakery.bread:COOKBOOK"),
        ("pastry", "bakery.pastry:COOKBOOK"),
    ]


def test_the_first_of_a_name_on_the_path_wins(tmp_path: Path) -> None:
    distribution(tmp_path / "a", "one", "[stoker.cookbooks]\nx = first:C\n")
    distribution(tmp_path / "b", "two", "[stoker.cookbooks]\nx = second:C\n")
    (found,) = find_sources([str(tmp_path / "a"), str(tmp_path / "b")])
    assert found.value == "first:C"


def test_the_shipped_cookbook_is_found_here() -> None:
    sources = {source.name: source for source in find_sources(sys.path)}
    assert load_cookbook(sources["tabular"]).name == "tabular"


def test_listing_from_the_index_imports_no_library(tmp_path: Path) -> None:
    script = """
import sys
from stoker.engine.catalogue import Catalogue
names = [entry.name for entry in Catalogue(sys.argv[1]).entries()]
assert "tabular/gbt" in names, names
heavy = {"numpy", "pandas", "sklearn", "stoker.engine.recipe", "stoker.engine.stage", "stoker.cookbooks.tabular"}
print(sorted(heavy & set(sys.modules)))
"""
    index = str(tmp_path / "index.json")
    answers = [
        subprocess.run([sys.executable, "-c", script, index], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(2)
    ]
    assert answers[1] == "[]"
    assert "'numpy'" not in answers[0]
