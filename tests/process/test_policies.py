"""The elements of an HA policy, each as a pair that has it."""

from pathlib import Path

import pytest

from tests.process.clients import QUEUE, Producer, receive_all, served_through_it
from tests.process.nodes import accepts, cluster

pytestmark = pytest.mark.extended


def test_a_backup_that_allows_no_failback_serves_on(tmp_path: Path) -> None:
    """The live node that returns asks in vain, gives up with 75, and nobody is disturbed."""
    with cluster(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as nodes:
        live = nodes.live(jdbc_lock_acquisition_timeout=2_000).wait_serving()
        backup = nodes.backup(allow_failback=False).wait_log("AMQ221031")
        with Producer([backup.port], QUEUE) as producer:
            live.kill()
            backup.wait_serving()
            producer.wait_receipts(20)
            assert live.start().exit_code() == 75
            assert accepts(backup.port)
            producer.wait_receipts(20)
            receipted = producer.finish()
        assert "ORT100011" not in backup.log  # failback requested
        assert backup.log.count("AMQ221010") == 1
        receive_all(backup.port, QUEUE, receipted)


def test_a_backup_that_is_not_to_restart_ends_after_a_failback(tmp_path: Path) -> None:
    """It hands over and ends in good order, where it would else wait as a backup again."""
    with cluster(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as nodes:
        live = nodes.live().wait_serving()
        backup = nodes.backup(restart_backup=False).wait_log("AMQ221031")
        with served_through_it(live, backup) as producer:
            live.kill()
            backup.wait_serving()
            producer.wait_receipts(20)
            live.start().wait_serving()
            assert backup.exit_code() == 0
