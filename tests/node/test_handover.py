"""When an operator's wish to hand over counts, and what is left of it."""

import threading

import pytest

from orthia.broker.node.handover import HandoverWish


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_wish_counts_while_the_node_serves_and_leaves_nothing(*, is_interrupted: bool) -> None:
    """One that is too late would end the wait of the backup that the node has become."""
    wake = threading.Event()
    wish = HandoverWish(wake)
    wish.ask()
    assert (wish.is_there, wake.is_set()) == (False, False)
    wish.begin()
    wish.ask()
    assert (wish.is_there, wake.is_set()) == (True, True)
    wish.end(is_interrupted=is_interrupted)
    assert (wish.is_there, wake.is_set()) == (False, is_interrupted)
    wake.clear()
    wish.ask()
    assert (wish.is_there, wake.is_set()) == (False, False)
