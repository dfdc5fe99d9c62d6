"""Whether the tests run on what mypyc has compiled: all modules that are marked, or none."""

from typing import Final

import pytest

from orthia.journal.model import codec

_IS_COMPILED: Final = not str(codec.__file__).endswith(".py")


def needs_pure_python(reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test that machine code cannot pass, for ``reason``."""
    return pytest.mark.skipif(_IS_COMPILED, reason=reason)
