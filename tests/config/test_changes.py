"""What changed between two readings of a broker.xml, by name, and what becomes of each change."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from orthia import config
from orthia.config.changes import RELOADED, Effect, changes, reloaded
from orthia.config.login_domains import LoginDomain
from orthia.config.settings import Settings
from orthia.config.urls import DatabaseUrl
from tests.support.broker_xml import broker_xml, database_store

_PERMISSIONS = '<permission type="send" roles="{send}"/><permission type="consume" roles="a"/>'


def read(tmp_path: Path, core: str, *, of_store: str = "one", port: int = 61613) -> Settings:
    """Return the settings of a file with more elements in its ``core``."""
    password = f"<jdbc-password>{of_store}</jdbc-password>"
    acceptor = f'<acceptor name="stomp">tcp://127.0.0.1:{port}</acceptor>'
    store = database_store(password, "jdbc:postgresql://db/x")
    given = f"<name>a</name>{store}<acceptors>{acceptor}</acceptors>{core}"
    return config.load(broker_xml(tmp_path, given))


def of(element: str, content: str) -> str:
    """Return an element that is not there if it has nothing."""
    return f"<{element}>{content}</{element}>" if content else ""


def setting(match: str, content: str) -> str:
    """Return address-settings with one of them."""
    return of("address-settings", f'<address-setting match="{match}">{content}</address-setting>')


def queue(attributes: str = "", content: str = "", name: str = "q") -> str:
    """Return addresses with one queue."""
    inside = f'<anycast><queue name="{name}" {attributes}>{content}</queue></anycast>'
    return of("addresses", f'<address name="orders">{inside}</address>')


def user(password: str, roles: str) -> str:
    """Return users with one of them."""
    one = f'<user name="ada" password="{password}" roles="{roles}"/>'
    return f'<users xmlns="urn:orthia">{one}</users>'


def security(send: str) -> str:
    """Return security-settings with one of them."""
    given = _PERMISSIONS.format(send=send)
    return of("security-settings", f'<security-setting match="x.#">{given}</security-setting>')


def divert(filters: str = "") -> str:
    """Return diverts with one of them."""
    where = "<address>a</address><forwarding-address>b</forwarding-address>"
    return of("diverts", f'<divert name="d">{where}{filters}</divert>')


_AT = "address-settings/address-setting[orders.#]"
_QUEUE = "addresses/address[orders]/queue[q]"
_NOW, _NEW, _RESTART = Effect.NOW.value, Effect.NEW_QUEUES.value, Effect.RESTART.value


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("", "", []),
        (
            setting("orders.#", "<redelivery-delay>10</redelivery-delay>"),
            setting("orders.#", "<redelivery-delay>3</redelivery-delay>"),
            [f"{_AT}/redelivery-delay: 10 -> 3 ({_NOW})"],
        ),
        (
            "",
            setting("orders.#", "<default-ring-size>9</default-ring-size>"),
            [f"{_AT}: added ({_NOW})", f"{_AT}/default-ring-size: not set -> 9 ({_NEW})"],
        ),
        (
            setting("orders.#", "<default-ring-size>9</default-ring-size>"),
            "",
            [f"{_AT}: removed ({_NOW})"],
        ),
        (
            security("a"),
            security("a,b"),
            [f"security-settings/security-setting[x.#]/send: a -> a,b ({_NOW})"],
        ),
        (user("x", "a"), user("y", "a"), [f"users/user[ada]/password: changed ({_NOW})"]),
        (user("x", "a"), user("x", ""), [f"users/user[ada]/roles: a -> none ({_NOW})"]),
        (
            divert(),
            divert('<filter string="n > 1"/>'),
            [f"diverts/divert[d]/filter: not set -> n > 1 ({_NOW})"],
        ),
        (divert(), "", [f"diverts/divert[d]: removed ({_NOW})"]),
        (
            "",
            queue(),
            [f"addresses/address[orders]: added ({_NOW})", f"{_QUEUE}: added ({_NOW})"],
        ),
        (queue(), "", [f"addresses/address[orders]: removed ({Effect.STAYS.value})"]),
        (
            queue(),
            queue(name="p"),
            [
                f"{_QUEUE}: removed ({Effect.STAYS.value})",
                f"addresses/address[orders]/queue[p]: added ({_NOW})",
            ],
        ),
        (
            queue('max-consumers="1"'),
            queue('max-consumers="2" exclusive="true"', "<durable>false</durable>"),
            [
                f"{_QUEUE}/max-consumers: 1 -> 2 ({_NOW})",
                f"{_QUEUE}/durable: true -> false ({Effect.STORED.value})",
                f"{_QUEUE}/exclusive: not set -> true ({_RESTART})",
            ],
        ),
        (
            "<max-disk-usage>90</max-disk-usage>",
            "<max-disk-usage>80</max-disk-usage>",
            [f"max-disk-usage: 90 -> 80 ({_RESTART})"],
        ),
    ],
)
def test_each_change_is_told_by_name(
    tmp_path: Path, before: str, after: str, told: list[str]
) -> None:
    """With the old value and the new one, and whether it is applied."""
    found = changes(read(tmp_path, before), read(tmp_path, after))
    assert [str(one) for one in found] == told


def test_the_store_and_acceptors_need_a_restart_and_no_password_is_told(tmp_path: Path) -> None:
    """Nothing of them is among what a running node applies."""
    before = read(tmp_path, "", of_store="hunter1")
    after = read(tmp_path, "", of_store="hunter2", port=61614)
    found = changes(before, after)
    assert [str(one) for one in found] == [
        f"acceptors/acceptor[stomp]/port: 61613 -> 61614 ({_RESTART})",
        f"store/jdbc-password: changed ({_RESTART})",
    ]
    assert all(one.needs_restart for one in found)
    assert reloaded(before, after) == before


def test_no_password_is_told_wherever_it_is(tmp_path: Path) -> None:
    """In the URL of a database, or among the properties of its pool."""
    settings = read(tmp_path, "")

    def of_store(password: str) -> Settings:
        store = replace(
            settings.database_store,
            jdbc_connection_url=DatabaseUrl.parse(f"jdbc:postgresql://db/x?password={password}"),
            data_source_properties={"password": password},
        )
        return replace(settings, store=store)

    assert [str(one) for one in changes(of_store("s3cret"), of_store("0ther"))] == [
        f"store/jdbc-connection-url: changed ({_RESTART})",
        f"store/data-source-properties/password: changed ({_RESTART})",
    ]


def test_a_change_of_order_is_told(tmp_path: Path) -> None:
    """Of two patterns that match alike the first in the file counts."""
    one, other = ("<address-setting match='*.x'/>", "<address-setting match='#.x'/>")
    before = read(tmp_path, of("address-settings", one + other))
    after = read(tmp_path, of("address-settings", other + one))
    assert [str(change) for change in changes(before, after)] == [
        f"address-settings: in another order ({_NOW})"
    ]


def test_what_is_applied_has_a_field(tmp_path: Path) -> None:
    """And nothing but that is taken over from what was read."""
    before = read(tmp_path, "")
    after = read(tmp_path, user("x", "a") + divert() + queue(), port=1)
    assert {one.name for one in fields(Settings)} >= set(RELOADED)
    taken = reloaded(before, after)
    assert (taken.users, taken.diverts, taken.addresses) == (
        after.users,
        after.diverts,
        after.addresses,
    )
    assert replace(taken, **{name: getattr(before, name) for name in RELOADED}) == before


def test_each_file_that_is_read_is_named(tmp_path: Path) -> None:
    """Also one that is included and not there: it may come."""
    part = tmp_path / "part.xml"
    part.write_text('<diverts xmlns="urn:activemq:core"/>')
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="part.xml"/>'
    read(tmp_path, include)
    opened: list[Path] = []
    config.load(tmp_path / "broker.xml", reads=opened.append)
    assert opened == [tmp_path / "broker.xml", part]
    part.unlink()
    opened.clear()
    with pytest.raises(config.ConfigurationError, match="there is no file"):
        config.load(tmp_path / "broker.xml", reads=opened.append)
    assert part in opened


def test_an_element_that_came_or_went_is_told_in_words(tmp_path: Path) -> None:
    """And not as a value that is set and then not."""
    without = read(tmp_path, "")
    domain = LoginDomain(Path("login.config"), "work")
    told = Effect.RESTART.value
    (change,) = changes(replace(without, login_domain=domain), without)
    assert str(change) == f"login-domain: removed ({told})"
    (change,) = changes(without, replace(without, login_domain=domain))
    assert str(change) == f"login-domain: added ({told})"
