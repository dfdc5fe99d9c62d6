"""The rules of a whole configuration, for settings built without a file."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.config import (
    AcceptorSettings,
    ConfigurationError,
    DatabaseStoreSettings,
    DatabaseUrl,
    Settings,
)
from orthia.config.names import validate_table_name
from orthia.config.rules import check, violations
from orthia.config.store_rules import MINIMUM_QUERY_TIMEOUT, lease_query_timeout

_STORE = DatabaseStoreSettings(DatabaseUrl.parse("jdbc:sqlite:/orthia.db"))
_SETTINGS = Settings(name="a", source=None, store=_STORE)
_MILLISECONDS = st.integers(min_value=-10, max_value=100_000)


def test_the_defaults_keep_every_rule() -> None:
    """Settings with nothing but a database can be used."""
    check(_SETTINGS)


@pytest.mark.parametrize(
    ("renew", "expiration", "network", "expected"),
    [(2_000, 20_000, 20_000, 16_000), (500, 3_000, 20_000, 2_000), (500, 3_000, 700, 700)],
)
def test_the_query_timeout_follows_from_the_timers(
    renew: int, expiration: int, network: int, expected: int
) -> None:
    """It is what the expiration leaves beside two periods, and never above the network's."""
    store = replace(
        _STORE,
        jdbc_lock_renew_period=renew,
        jdbc_lock_expiration=expiration,
        jdbc_network_timeout=network,
    )
    assert lease_query_timeout(store) == expected


@given(renew=_MILLISECONDS, expiration=_MILLISECONDS, network=_MILLISECONDS)
def test_timers_that_pass_bound_a_hung_renewal(renew: int, expiration: int, network: int) -> None:
    """Whatever timers are accepted, a hung renewal is over a period before the lease ends."""
    store = replace(
        _STORE,
        jdbc_lock_renew_period=renew,
        jdbc_lock_expiration=expiration,
        jdbc_network_timeout=network,
    )
    if not violations(replace(_SETTINGS, store=store)):
        timeout = lease_query_timeout(store)
        assert timeout >= MINIMUM_QUERY_TIMEOUT
        assert 0 < renew + timeout <= expiration - renew


def test_every_violation_is_told() -> None:
    """check raises once, with a line for each rule that is broken."""
    broken = replace(
        _SETTINGS,
        store=replace(_STORE, jdbc_lock_renew_period=0, bindings_table_name="MESSAGES"),
        acceptors=(AcceptorSettings("a", "127.0.0.1", -1),),
    )
    with pytest.raises(ConfigurationError) as caught:
        check(broken)
    assert str(caught.value).splitlines() == [
        "<jdbc-lock-renew-period>: is 0 ms; expected more than 0",
        "<message-table-name>: 'MESSAGES' is the name of two tables: bindings-table-name and"
        " message-table-name; expected a name of its own for each (case does not count)",
        "<acceptor[a]>: port -1 does not exist; expected 1 to 65535, or 0 for any free one",
    ]


def test_acceptors_may_share_the_port_any() -> None:
    """Port 0 takes a free one each time, so two acceptors may ask for it."""
    acceptors = tuple(AcceptorSettings(name, "127.0.0.1", 0) for name in "ab")
    assert violations(replace(_SETTINGS, acceptors=acceptors)) == []


@pytest.mark.parametrize("name", ["MESSAGES", "_m", "a1", "M" * 48])
def test_a_table_name_is_returned(name: str) -> None:
    """A name of letters, digits and underscores can be a table's."""
    assert validate_table_name(name) == name


@pytest.mark.parametrize("name", ["", "1a", "a-b", 'a"b', "a.b", "a b", "ä", "a\n", "M" * 49])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """What could mean anything else in SQL, or be cut short, is refused."""
    with pytest.raises(ConfigurationError, match="table name"):
        validate_table_name(name)
