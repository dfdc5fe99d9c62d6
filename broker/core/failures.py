"""Work for many, of which one may fail without keeping the others back."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("orthia.broker")


@contextmanager
def by_itself(what: str, *names: str) -> Iterator[None]:
    """Log what fails in here, as ``what`` of ``names``, and go on behind it.

    But for a MemoryError, with which the node is to end.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception:
        LOGGER.exception(what, *names)
