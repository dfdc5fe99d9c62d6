"""A node is replaced by one of another version, under load.

Also in ``make test``, where both are of this one: it shows that the scenes are right.
"""

import pytest

from tests.process.clients import Producer, receive_all
from tests.process.nodes import accepts
from tests.support.waiting import wait_until
from tests.upgrade.pair import DOES_NOT_KNOW, EITHER_FIRST, QUEUE, Pair, other
from tests.upgrade.versions import HAVE_ONE_SCHEMA, Version
from tests.upgrade.work import at_work


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", EITHER_FIRST)
def test_a_node_is_replaced_by_one_of_the_other_version(pair: Pair, first: Version) -> None:
    """Kill -9 under load: the other version takes over, hands back, and takes over again."""
    pair.start(first, other(first))
    with (
        at_work(pair.ports, pair.directory, pair.settings) as work,
        Producer(pair.ports, QUEUE, pause_seconds=0.002) as producer,
    ):
        producer.wait_receipts(200)
        pair.live.kill()
        pair.backup.wait_serving()
        work.goes_on()
        if not HAVE_ONE_SCHEMA:
            assert pair.live.start().exit_code() == 78
            assert DOES_NOT_KNOW in pair.live.log
            Version.NEWER.of(pair.live)
        pair.live.start().wait_serving()
        wait_until(lambda: not accepts(pair.backup.port), what="the backup is passive again")
        work.goes_on()
        assert pair.live.terminate() == 0
        pair.backup.wait_serving()
        work.goes_on()
        producer.wait_receipts(200)
        receive_all(pair.backup.port, QUEUE, producer.finish())
