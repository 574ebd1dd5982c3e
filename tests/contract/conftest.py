"""A queue on a database of each sort; whatever a test does to it, no promise may be broken afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.contract.queue_driving import Driven
from tests.contract.queue_words import SHA
from tests.servers.fresh_databases import FreshDatabases

if TYPE_CHECKING:
    from stoker.crossval.plugin_process import Plugin


@pytest.fixture(params=["sqlite", "postgresql"])
def queue_url(request: pytest.FixtureRequest, fresh_databases: FreshDatabases) -> str:
    """A database with the queue's tables, and nothing in them, once of each sort."""
    return fresh_databases.sqlite() if request.param == "sqlite" else fresh_databases.postgres()


@pytest.fixture
def fleet(queue_url: str) -> Iterator[Driven]:
    """A queue of which no promise may be broken, whatever a test does to it."""
    from stoker.coordinator.database.database_check import check_database

    driven = Driven(queue_url)
    driven.objects[SHA] = 10
    yield driven
    broken = list(check_database(driven.database, has_object=driven.objects.get))
    driven.close()
    assert broken == []


@pytest.fixture(scope="session")
def torch_plugin() -> Iterator[Plugin]:
    """The plug-in of torch, started once: that takes seconds. A test loads its own model into it."""
    from stoker.crossval.plugin_process import Plugin
    from stoker.crossval.runtimes import RuntimePlaces, plugin_command, read_runtime

    here = RuntimePlaces(environment=os.environ, folder="/", own_prefix=sys.prefix, own_python=sys.executable)
    with Plugin(plugin_command(read_runtime("torch"), here)) as plugin:
        yield plugin
