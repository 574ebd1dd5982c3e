from __future__ import annotations

import glob
import importlib.util
import os
import sys
import zipfile
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import MissingExtra, NetworkFailed, NotOnServer, PluginFailed, Usage
from stoker.core.frozen import changed
from stoker.crossval.reference import (
    FetchedReference,
    ReferencePlaces,
    fetch_reference,
    find_reference,
    list_references,
    require_reference,
    use_reference,
)
from stoker.host.identity import mine
from stoker.store.environment_cache import EnvironmentCache, offer
from tests.unit.worker.tiny_wheels import wheel

VERSION = "9.9.9"


@pytest.fixture
def places(tmp_path: Path) -> ReferencePlaces:
    """A machine without a network, whose only index is the folder `links`."""
    (tmp_path / "links").mkdir()
    (tmp_path / "simple").mkdir()
    return ReferencePlaces(
        shelf=EnvironmentCache(str(tmp_path / "envs"), clock=SystemClock()),
        environment={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "UV_DEFAULT_INDEX": f"file://{tmp_path}/simple",
            "UV_FIND_LINKS": str(tmp_path / "links"),
            "UV_CACHE_DIR": str(tmp_path / "cache"),
        },
        own_prefix=sys.prefix,
        base_python=getattr(sys, "_base_executable", "") or sys.executable,
        clock=SystemClock(),
    )


def _fetch(
    places: ReferencePlaces, tag: str = VERSION, *, forces: bool = False, cleans: bool = False
) -> FetchedReference:
    return fetch_reference(places, tag, forces=forces, cleans=cleans, say=lambda text: None)


def _offer_library(folder: Path) -> None:
    """Put a wheel with the real library into a folder."""
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    library = glob.glob(os.path.join(os.path.dirname(spec.origin or ""), "*.so"))[0]
    path = wheel(str(folder), "xllamacpp", VERSION)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.write(library, "xllamacpp/xllamacpp.abi3.so")


def test_a_reference_is_installed_checked_recorded_and_found(places: ReferencePlaces, tmp_path: Path):
    _offer_library(tmp_path / "links")
    fetched = _fetch(places)
    one = fetched.reference
    assert fetched.is_new
    assert (one.tag, one.distribution, len(one.library_sha256)) == (VERSION, "xllamacpp", 64)
    assert one.library.startswith(str(tmp_path / "envs"))
    assert "CPU" in one.flags
    assert list_references(places.shelf) == (one,)
    assert find_reference(places.shelf) == require_reference(places.shelf, VERSION) == one
    again = _fetch(places)
    assert (again.is_new, again.reference) == (False, one)
    # One that can't be fetched again stays.
    away = {**places.environment, "UV_FIND_LINKS": "", "UV_CACHE_DIR": str(tmp_path / "other")}
    with pytest.raises(NotOnServer):
        _fetch(changed(places, environment=away), forces=True)
    assert list_references(places.shelf) == (one,)
    with use_reference(places.shelf, owner=mine()) as used:
        assert used == one
        kept = offer(places.shelf, now_s=one.fetched_s + 1e6, max_bytes=0, older_than_s=None)
        assert kept.decision.removals == ()
    freed = offer(places.shelf, now_s=one.fetched_s + 1e6, max_bytes=0, older_than_s=None)
    assert [removal.key for removal in freed.decision.removals] == [one.key]
    _check_damage(places, one.library)


def _check_damage(places: ReferencePlaces, library: str) -> None:
    """A reference that no longer computes is named, and can be deleted and installed again."""
    os.truncate(library, 100)
    with pytest.raises(PluginFailed, match=r"too short|cannot read") as raised:
        _fetch(places)
    assert raised.value.hint.endswith(f"stoker reference fetch --tag {VERSION} --force")
    assert _fetch(places, cleans=True).removed == (VERSION,)


def test_a_package_without_the_library_is_not_kept(places: ReferencePlaces, tmp_path: Path):
    wheel(str(tmp_path / "links"), "xllamacpp", VERSION)
    with pytest.raises(MissingExtra, match=r"no llama\.cpp in"):
        _fetch(places)
    assert list_references(places.shelf) == ()
    assert places.shelf.leftovers() == []


def test_what_can_not_be_fetched_is_named(places: ReferencePlaces):
    with pytest.raises(NotOnServer, match=r"xllamacpp==9\.9\.9 is not on the package index"):
        _fetch(places)
    assert places.shelf.leftovers() == []
    away = {**places.environment, "UV_DEFAULT_INDEX": "http://127.0.0.1:9/", "UV_HTTP_RETRIES": "0"}
    with pytest.raises(NetworkFailed, match="Connection refused"):
        _fetch(changed(places, environment=away))
    with pytest.raises(Usage, match="is no version"):
        _fetch(places, "; rm -rf x")
    with pytest.raises(MissingExtra) as raised:
        require_reference(places.shelf, VERSION)
    assert raised.value.hint == f"stoker reference fetch --tag {VERSION}"
