"""What follows an IO error: the next life of a process, or none."""

from typing import Any

from orthia.broker.node.restarts import LONGEST_PAUSE_SECONDS, VARIABLE, Life, this_life, written
from orthia.config import DatabaseStoreSettings, DatabaseUrl, HaPolicy, Role, Settings
from orthia.config.settings import IoErrorPolicy
from orthia.config.store_settings import LeaseDatabaseLockerSettings
from orthia.nodemanager.abc import FormerLife

SERVED: dict[str, Any] = {"holder_id": "a@host:1:uuid", "token": 7}
WAITED: dict[str, Any] = {"holder_id": None, "token": None}


def test_shutdown_has_no_next_life() -> None:
    """The process ends, whether it served or waited."""
    assert Life().next(IoErrorPolicy.SHUTDOWN, now=1e6, **SERVED) is None
    assert Life().next(IoErrorPolicy.SHUTDOWN, now=1e6, **WAITED) is None


def test_only_a_node_that_served_resumes() -> None:
    """The next life knows whose lock it is to take; one that waited for a lock ends."""
    life = Life().next(IoErrorPolicy.STOP_CONNECTORS, now=1e6, **SERVED)
    assert life is not None
    assert life.former == FormerLife("a@host:1:uuid", 7, 1e6)
    assert not life.as_backup
    assert life.next(IoErrorPolicy.STOP_CONNECTORS, now=1e6, **WAITED) is None


def test_the_environment_carries_a_life_over_once() -> None:
    """What is read is gone, so that no other process takes it for its own."""
    life = Life().next(IoErrorPolicy.STOP_CONNECTORS, now=1e6, **SERVED)
    assert life is not None
    environment = {VARIABLE: written(life), "OTHER": "x"}
    read = this_life(environment, lambda: 5.0)
    assert (read.former, read.short_lives, read.began_seconds) == (life.former, 0, 5.0)
    assert environment == {"OTHER": "x"}
    assert this_life(environment, lambda: 6.0) == Life(began_seconds=6.0)


def test_lives_that_end_at_once_pause_for_longer_and_longer() -> None:
    """The first new life begins at once, and one that lasted counts as the first again."""
    life, pauses = Life(), []
    for _ in range(9):
        following = life.next(IoErrorPolicy.RESTART_AS_BACKUP, now=1.0, **WAITED)
        assert following is not None
        life = following
        pauses.append(life.pause_seconds)
    assert pauses[:4] == [0.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    lasted = life.next(IoErrorPolicy.RESTART_AS_BACKUP, now=1e6, **WAITED)
    assert lasted is not None
    assert lasted.pause_seconds == 0.0


def test_a_later_life_has_settings_of_its_own() -> None:
    """A backup, and one that does not fail because its own lock is still held."""
    store = DatabaseStoreSettings(
        DatabaseUrl.parse("jdbc:sqlite:/x.db"),
        locker=LeaseDatabaseLockerSettings(fail_if_locked=True),
    )
    given = Settings("a", None, store, HaPolicy(Role.LIVE))
    assert Life().settings(given) is given
    changed = Life(as_backup=True).settings(given)
    assert changed.ha_policy.role is Role.BACKUP
    assert changed.store.locker == LeaseDatabaseLockerSettings(fail_if_locked=False)
