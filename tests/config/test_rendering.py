"""The settings in effect, as orthia check shows them."""

from dataclasses import replace

from orthia import config
from orthia.config import (
    AcceptorSettings,
    AddressSettings,
    DatabaseStoreSettings,
    DatabaseUrl,
    EffectiveSetting,
    HaPolicy,
    Role,
    Secret,
    Settings,
    User,
)
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.settings import OutboxSettings, VirtualTopicConsumers
from orthia.config.store_settings import RetentionSettings

_STORE = DatabaseStoreSettings(DatabaseUrl.parse("jdbc:postgresql://u:hunter2@h/db"))
_SETTINGS = Settings("a", None, _STORE)


def _rendered(settings: Settings) -> dict[str, EffectiveSetting]:
    return {one.path: one for one in config.render(settings)}


def test_a_setting_is_shown_with_unit_and_default_marker() -> None:
    """A default is marked as one, and what was changed is not."""
    path = "core/store/database-store/jdbc-lock-expiration"
    assert _rendered(_SETTINGS)[path] == EffectiveSetting(path, "20000", "ms", is_default=True)
    changed = replace(_SETTINGS, store=replace(_STORE, jdbc_lock_expiration=9_000))
    assert _rendered(changed)[path] == EffectiveSetting(path, "9000", "ms", is_default=False)


def test_the_limit_of_the_store_is_shown_as_it_is() -> None:
    """Also where the file has none: a database server's is another than that of a file."""
    path = "core/max-store-bytes"
    assert _rendered(_SETTINGS)[path] == EffectiveSetting(
        path, "10737418240", "bytes", is_default=True
    )
    assert _rendered(replace(_SETTINGS, max_store_bytes=5))[path].value == "5"
    on_a_file = DatabaseStoreSettings(DatabaseUrl.parse("jdbc:sqlite:/var/lib/orthia.db"))
    assert _rendered(replace(_SETTINGS, store=on_a_file))[path] == EffectiveSetting(
        path, "-1", "bytes", is_default=True
    )


def test_passwords_are_hidden() -> None:
    """Passwords of the database, its URL and the users show as stars."""
    settings = replace(
        _SETTINGS,
        store=replace(_STORE, jdbc_password=Secret("hunter2")),
        users=(User("alice", Secret("hunter2"), frozenset({"b", "a"})),),
    )
    rendered = _rendered(settings)
    assert rendered["core/store/database-store/jdbc-password"].value == "****"
    assert rendered["core/store/database-store/jdbc-connection-url"].value == (
        "postgresql+psycopg2://u:***@h:5432/db"
    )
    assert rendered["core/users/user[alice]"].value == "password ****, roles a,b"
    assert "hunter2" not in str(rendered)


def test_an_outbox_is_shown_where_there_is_one() -> None:
    """With what the file leaves out."""
    shown = _rendered(replace(_SETTINGS, outbox=OutboxSettings(user="applications")))
    assert shown["core/outbox/user"].value == "applications"
    path = "core/outbox/poll-period"
    assert shown[path] == EffectiveSetting(path, "100", "ms", is_default=True)
    assert shown["core/outbox/notify"].value == "true"
    assert "core/outbox/user" not in _rendered(_SETTINGS)


def test_retention_is_shown_where_there_is_some() -> None:
    """With what the file leaves out."""
    store = replace(_STORE, journal_retention=RetentionSettings(storage_limit=5))
    shown = _rendered(replace(_SETTINGS, store=store))
    path = "core/store/database-store/journal-retention"
    assert shown[f"{path}/@storage-limit"].value == "5"
    assert shown[f"{path}/@unit"] == EffectiveSetting(f"{path}/@unit", "DAYS", is_default=True)
    assert f"{path}/@unit" not in _rendered(_SETTINGS)


def test_an_acceptor_is_shown_with_what_it_serves() -> None:
    """Its protocols, and of AMQP what the file sets."""
    amqp = AcceptorAmqp(credits=10, idle_timeout=0, mechanisms=("PLAIN",))
    amqp = replace(amqp, failover_servers=(("a", 1), ("::1", 2)))
    both = AcceptorSettings("both", "h", 1, ("CORE", "AMQP", "STOMP"), amqp=amqp)
    stomp = AcceptorSettings("stomp", "h", 2, ("STOMP",), amqp=amqp)
    usual = AcceptorSettings("usual", "h", 3, ("STOMP", "AMQP"))
    shown = _rendered(replace(_SETTINGS, acceptors=(both, stomp, usual)))
    path = "core/acceptors/acceptor"
    of_both = {
        name.removeprefix(f"{path}[both]/"): one.value
        for name, one in shown.items()
        if name.startswith(f"{path}[both]/")
    }
    assert of_both == {
        "protocols": "AMQP,STOMP",
        "amqpCredits": "10",
        "amqpIdleTimeout": "0",
        "saslMechanisms": "PLAIN",
        "amqpFailoverServers": "a:1,[::1]:2",
    }
    assert f"{path}[stomp]/amqpCredits" not in shown
    assert shown[f"{path}[usual]/protocols"].is_default


def test_what_is_repeated_is_shown_by_name() -> None:
    """Acceptors and address settings carry their name in the path, and values as in the file."""
    settings = replace(
        _SETTINGS,
        ha_policy=HaPolicy(role=Role.BACKUP),
        acceptors=(
            AcceptorSettings(
                "s",
                "::1",
                61613,
                anycast_prefixes=("q.", "r."),
                virtual_topic_consumers=(VirtualTopicConsumers("C.*.>", 2),),
            ),
        ),
        address_settings=(
            AddressSettings("#", max_delivery_attempts=10, auto_create_queues=False),
        ),
    )
    rendered = _rendered(settings)
    assert rendered["core/ha-policy/shared-store"].value == "backup"
    assert rendered["core/acceptors/acceptor[s]"].value == "tcp://[::1]:61613"
    assert rendered["core/acceptors/acceptor[s]/anycastPrefix"].value == "q.,r."
    virtual = rendered["core/acceptors/acceptor[s]/virtualTopicConsumerWildcards"]
    assert virtual.value == "C.*.>;2"
    assert "core/acceptors/acceptor[s]/connectionTtl" not in rendered
    prefix = "core/address-settings/address-setting[#]"
    assert rendered[f"{prefix}/max-delivery-attempts"].is_default
    assert rendered[f"{prefix}/auto-create-queues"].value == "false"
    assert f"{prefix}/redelivery-delay" not in rendered
