"""The limits of what is stored, as a file gives them: each acts, or is refused by its name."""

from pathlib import Path

import pytest

from orthia import config
from orthia.config import ConfigurationError
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.addresses import AddressResolver
from orthia.config.settings import SERVER_STORE_BYTES, Settings
from tests.support.broker_xml import SQLITE, broker_xml, database_store

_SERVER = "jdbc:postgresql://db:5432/orthia"


def load(tmp_path: Path, elements: str = "", *, url: str | None = SQLITE) -> Settings:
    """Return the settings of a file with these elements in ``core``."""
    store = "" if url is None else database_store(url=url)
    return config.load(broker_xml(tmp_path, store + elements))


def test_an_address_has_its_own_limits(tmp_path: Path) -> None:
    """By the most specific match, as every other setting."""
    settings = load(
        tmp_path,
        """<address-settings>
        <address-setting match="#"><page-limit-messages>7</page-limit-messages></address-setting>
        <address-setting match="orders"><address-full-policy>FAIL</address-full-policy>
        <max-size-bytes>1M</max-size-bytes><page-limit-bytes>2M</page-limit-bytes>
        <page-full-policy>FAIL</page-full-policy></address-setting></address-settings>""",
    )
    orders = AddressResolver(settings).resolve("orders")
    assert orders.address_full_policy is AddressFullPolicy.FAIL
    assert (orders.max_size_bytes, orders.page_limit_bytes) == (1024**2, 2 * 1024**2)
    assert orders.page_limit_messages == 7


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("page-limit-bytes", "-2"),
        ("page-limit-messages", "-2"),
    ],
)
def test_what_is_not_done_is_refused_by_name(tmp_path: Path, element: str, value: str) -> None:
    """A limit below -1 has no meaning."""
    with pytest.raises(ConfigurationError, match=f"<{element}>: .*{value}"):
        load(
            tmp_path,
            '<address-settings><address-setting match="#">'
            f"<{element}>{value}</{element}></address-setting></address-settings>",
        )


@pytest.mark.parametrize(
    "element",
    [
        "<max-disk-usage>101</max-disk-usage>",
        "<max-disk-usage>-2</max-disk-usage>",
        "<disk-scan-period>0</disk-scan-period>",
    ],
)
def test_a_limit_that_is_none_is_refused(tmp_path: Path, element: str) -> None:
    """With what was expected."""
    with pytest.raises(ConfigurationError, match="expected"):
        load(tmp_path, element)


def test_the_disk_is_watched_where_it_can_be(tmp_path: Path) -> None:
    """Under SQLite and files; a database server has a limit in bytes instead."""
    embedded, files = load(tmp_path), load(tmp_path, url=None)
    server = load(tmp_path, url=_SERVER)
    assert embedded.watched_directories == (tmp_path,)
    assert tmp_path / "data" / "journal" in files.watched_directories
    assert server.watched_directories == ()
    assert [one.store_limit for one in (embedded, files, server)] == [-1, -1, SERVER_STORE_BYTES]
    limited = '<max-store-bytes xmlns="urn:orthia">{}</max-store-bytes>'
    assert load(tmp_path, limited.format("1G")).store_limit == 1024**3
    assert load(tmp_path, limited.format("-1"), url=_SERVER).store_limit == -1


def test_a_disk_that_nobody_can_look_at_is_told(tmp_path: Path) -> None:
    """Artemis' files have max-disk-usage, also with a database."""
    usage = "<max-disk-usage>80</max-disk-usage>"
    (told,) = load(tmp_path, usage, url=_SERVER).not_applied
    assert "max-disk-usage" in told
    assert f"max-store-bytes, {SERVER_STORE_BYTES}" in told
    assert not load(tmp_path, usage).not_applied
