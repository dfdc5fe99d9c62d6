"""Nodes for the scenarios of clients: one on SQLite, or with CLIENTS=everywhere in every place."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.node import EVERYWHERE, HERE, Scene, Scenes, nodes_at
from tests.conftest import Servers
from tests.process.nodes import NodeProcess

PLACES = EVERYWHERE if os.environ.get("CLIENTS") == "everywhere" else [HERE]


@pytest.fixture(scope="module")
def scenes(shared_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    """Give the nodes of a module: each scenario has queues of its own."""
    made = Scenes(shared_servers, tmp_path_factory.mktemp("nodes"))
    yield made
    made.close()


@pytest.fixture(params=PLACES, ids=str)
def scene(request: pytest.FixtureRequest, scenes: Scenes) -> Iterator[Scene]:
    """Give the nodes of one scenario."""
    with scenes.scene(request.param) as made:
        yield made


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """Give a node that only this test uses."""
    with nodes_at(HERE, None, tmp_path) as nodes:
        yield nodes.alone()


@pytest.fixture(
    params=[place for place in EVERYWHERE if place.moves and not place.is_paged], ids=str
)
def moving(request: pytest.FixtureRequest, scenes: Scenes) -> Iterator[Scene]:
    """Give a live node that serves and its backup, on each store."""
    with scenes.scene(request.param) as made:
        yield made
