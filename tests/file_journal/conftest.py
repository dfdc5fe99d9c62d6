"""Where the journals of these tests are."""

import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.leftovers import make_directory

MEMORY = Path("/dev/shm")  # noqa: S108 - what is made there has a directory of its own


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Give a directory in memory, if there is one: no test here is about the device's speed."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    directory, kept = make_directory(MEMORY)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(kept)


@pytest.fixture
def quietly() -> Iterator[None]:
    """Say nothing of writes that were dropped."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def base(tmp_path: Path) -> Callable[[], Path]:
    """Give what makes directories, of which the last alone is kept."""
    count = itertools.count()

    def next_directory() -> Path:
        shutil.rmtree(tmp_path)
        directory = tmp_path / str(next(count))
        directory.mkdir(parents=True)
        return directory

    return next_directory
