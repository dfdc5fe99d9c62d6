"""Loading files that can be used."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orthia import config
from orthia.config import (
    AddressSettings,
    DatabaseUrl,
    FileStoreSettings,
    HaPolicy,
    HealthSettings,
    JournalType,
    QueueSettings,
    Role,
    RoutingType,
    Settings,
)
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.addresses import AddressResolver
from orthia.config.parts import Part
from tests.support.broker_xml import broker_xml, database_store

_HERE = Path(__file__).parent
_EXAMPLE = _HERE.parents[1] / "broker.xml.example"
_EXAMPLE_PASSWORDS = {
    "ORTHIA_DB_PASSWORD": 'hunter2 <&"${',
    "ORTHIA_PRODUCER_PASSWORD": "hunter3",
    "ORTHIA_CONSUMER_PASSWORD": "hunter4",
}


def _told(path: Path) -> str:
    """Return the error of loading ``path``; nothing if there is none."""
    try:
        config.load(path)
    except config.ConfigurationError as error:
        return str(error)
    return ""


def test_a_file_of_artemis_is_accepted() -> None:
    """Everything Artemis knows is read or listed in one warning, with its lines."""
    settings = config.load(_HERE / "artemis-broker.xml")

    assert settings.name == "broker-a"
    assert settings.ha_policy == HaPolicy(role=Role.BACKUP, failover_on_shutdown=True)
    assert [(one.name, one.host, one.port) for one in settings.acceptors] == [
        ("artemis", "0.0.0.0", 61616),  # noqa: S104 - as in the file, never opened here
        ("amqp", "0.0.0.0", 5672),  # noqa: S104
        ("stomp", "0.0.0.0", 61613),  # noqa: S104
    ]
    assert settings.database_store.jdbc_user == "sourcepassword"
    password = settings.database_store.jdbc_password
    assert password is not None
    assert password.reveal() == "targetpassword"
    assert settings.global_max_size == 100 * 1024**2
    assert settings.security_settings[0].permissions["send"] == {"amq", "senders"}
    assert settings.addresses[1].queues == (
        QueueSettings(
            "archive",
            RoutingType.MULTICAST,
            max_consumers=1,
            durable=False,
            options={"exclusive": True, "filter": "priority > 4"},
        ),
    )
    assert settings.address_settings[1] == AddressSettings(
        match="#",
        dead_letter_address="DLQ",
        expiry_address="ExpiryQueue",
        redelivery_delay=0,
        address_full_policy=AddressFullPolicy.PAGE,
        auto_create_queues=True,
        auto_delete_queues=False,
    )
    ignored, *_ = settings.warnings  # and one of who can read the file
    assert ignored.startswith(
        f"{_HERE / 'artemis-broker.xml'}: known to Artemis and harmless to leave out here, so"
        " ignored: jdbc-driver-class-name (line 15),"
        " jdbc-connection-url's characterEncoding (line 16),"
        " jdbc-connection-url's serverTimezone (line 16), page-store-table-name (line 21),"
        " jdbc-max-page-size-bytes (line 27), max-redelivery-records (line 32),"
        " journal-type (line 33),"
    )
    assert "scale-down (line 66)" in ignored
    assert "permission manage" not in ignored
    told = [one.partition("artemis-broker.xml:")[2] for one in settings.not_applied]
    assert (
        "50: acceptor 'mqtt': is not opened (its protocols, MQTT, leave out STOMP and AMQP);"
        " its clients cannot connect"
    ) in told
    assert (
        "42: max-disk-usage: the disk is the database server's, which this node cannot look at:"
        " sends are refused at max-store-bytes, 10737418240 by default"
    ) in told


def _shared(element: str) -> str:
    return f"<ha-policy><shared-store><{element}/></shared-store></ha-policy>"


def _large_messages(settings: Settings) -> Path:
    assert isinstance(settings.store, FileStoreSettings)
    return settings.store.large_messages_directory


READ: list[tuple[str, Callable[[Settings], object], object]] = [
    # Artemis' newer and older names of the roles; a node that is nobody's pair is live.
    *((_shared(one), lambda s: s.ha_policy, HaPolicy(Role.LIVE)) for one in ("primary", "master")),
    *((_shared(one), lambda s: s.ha_policy, HaPolicy(Role.BACKUP)) for one in ("backup", "slave")),
    *(
        (core, lambda s: s.ha_policy, HaPolicy())
        for core in (
            "",
            "<ha-policy/>",
            "<ha-policy><primary-only/></ha-policy>",
            "<ha-policy><live-only><scale-down/></live-only></ha-policy>",
        )
    ),
    # A pair that shares its journal shares its large messages, without being told to.
    (
        "<journal-directory>/srv/shared/journal</journal-directory>",
        _large_messages,
        Path("/srv/shared/large-messages"),
    ),
    (
        "<acceptors><acceptor>tcp://</acceptor></acceptors>",
        lambda s: [(one.name, one.host, one.port) for one in s.acceptors],
        [("127.0.0.1:61613", "127.0.0.1", 61613)],
    ),
    # It would take the live lock, and no client could connect to it.
    *(
        (
            acceptors,
            lambda s: [one for one in s.warnings if "no acceptor is open for STOMP" in one] != [],
            True,
        )
        for acceptors in (
            "",
            "<acceptors><acceptor>tcp://127.0.0.1:1?protocols=CORE,MQTT</acceptor></acceptors>",
        )
    ),
    ("<global-max-size>-1</global-max-size>", lambda s: s.global_max_size, 67_108_864),
    (
        '<security-settings><role-mapping from="a" to=""/></security-settings>',
        lambda s: [one.to for one in s.role_mappings],
        [frozenset()],
    ),
    (
        '<security-settings><security-setting match="#"><permission type="send" roles="a"/>'
        '<permission type="send" roles="b"/></security-setting></security-settings>',
        lambda s: [one.permissions for one in s.security_settings],
        [{"send": {"a", "b"}}],
    ),
]
"""Elements, and what is read of them."""


@pytest.mark.parametrize(("core", "of", "expected"), READ)
def test_elements_mean_what_they_mean_in_artemis(
    core: str, of: Callable[[Settings], object], expected: object, tmp_path: Path
) -> None:
    """Also those that are left out, or are written as in an older version."""
    assert of(config.load(broker_xml(tmp_path, core))) == expected


def test_an_empty_address_is_a_setting(tmp_path: Path) -> None:
    """It drops what would go there; what no match sets has a default that keeps it."""
    inner = """<address-settings>
      <address-setting match="prices"><expiry-address/></address-setting>
      <address-setting match="jobs"><dead-letter-address></dead-letter-address></address-setting>
    </address-settings>"""
    settings = config.load(broker_xml(tmp_path, inner))
    found = {name: AddressResolver(settings).resolve(name) for name in ("prices", "jobs")}
    assert {name: one.expiry_address for name, one in found.items()} == {
        "prices": "",
        "jobs": "ExpiryQueue",
    }
    assert {name: one.dead_letter_address for name, one in found.items()} == {
        "prices": "DLQ",
        "jobs": "",
    }


def test_the_example_can_be_used() -> None:
    """broker.xml.example loads without a warning, given its three passwords."""
    settings = config.load(_EXAMPLE, system_properties=_EXAMPLE_PASSWORDS)

    assert settings.warnings == ()
    assert str(settings.database_store.jdbc_connection_url) == (
        "postgresql+psycopg2://127.0.0.1:5432/orthia"
    )
    assert settings.failover_log_directory == _EXAMPLE.parent / "data/log"
    assert settings.health == HealthSettings()
    assert {user.name: user.password.reveal() for user in settings.users} == {
        "producer": "hunter3",
        "consumer": "hunter4",
    }


def test_no_password_is_shown() -> None:
    """Neither the repr of the settings nor their rendering holds a password."""
    settings = config.load(_EXAMPLE, system_properties=_EXAMPLE_PASSWORDS)
    password = settings.database_store.jdbc_password
    assert password is not None
    assert password.reveal() == _EXAMPLE_PASSWORDS["ORTHIA_DB_PASSWORD"]
    for shown in (repr(settings), repr(config.render(settings))):
        assert "hunter" not in shown


def test_an_empty_core_is_enough(tmp_path: Path) -> None:
    """Without anything a node stores in files, in the instance's directory, as Artemis does."""
    settings = config.load(broker_xml(tmp_path, name="etc/broker.xml", core=""))

    data = tmp_path / "data"
    assert settings.store == FileStoreSettings(
        data / "journal", data / "bindings", data / "large-messages"
    )
    assert settings.ha_policy == HaPolicy()
    assert settings.security_enabled
    (acceptors,) = settings.warnings
    assert "no acceptor is open for STOMP" in acceptors


def test_unset_elements_have_the_defaults_of_the_settings(tmp_path: Path) -> None:
    """A file that says nothing about it leaves every other setting as the dataclasses have it."""
    path = broker_xml(tmp_path, f"<name>a</name>{database_store(url='jdbc:sqlite:/x.db')}")
    loaded = config.load(path)
    store = config.DatabaseStoreSettings(DatabaseUrl.parse("jdbc:sqlite:/x.db"))
    assert loaded == Settings("a", path, store, warnings=loaded.warnings)


def test_relative_paths_start_from_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They start beside the file, or where artemis.instance says, and never where one stands."""
    path = broker_xml(
        tmp_path,
        name="a/broker.xml",
        core='<failover-log-directory xmlns="urn:orthia">log</failover-log-directory>',
    )
    monkeypatch.chdir(tmp_path)
    assert config.load("a/broker.xml").failover_log_directory == tmp_path / "a/log"
    elsewhere = config.load(path, system_properties={"artemis.instance": "/srv/b"})
    assert elsewhere.failover_log_directory == Path("/srv/b/log")
    assert isinstance(elsewhere.store, FileStoreSettings)
    assert elsewhere.store.journal_directory == Path("/srv/b/data/journal")


def test_a_file_store_has_its_elements(tmp_path: Path) -> None:
    """Every element of Artemis' file journal is read, with its unit."""
    core = """
      <journal-directory>j</journal-directory><bindings-directory>/b</bindings-directory>
      <large-messages-directory>l</large-messages-directory>
      <create-journal-dir>false</create-journal-dir><create-bindings-dir>false</create-bindings-dir>
      <journal-type>MAPPED</journal-type><journal-file-size>1M</journal-file-size>
      <journal-sync-transactional>false</journal-sync-transactional>
      <journal-sync-non-transactional>false</journal-sync-non-transactional>
      <journal-datasync>false</journal-datasync><journal-min-files>3</journal-min-files>
      <journal-pool-files>4</journal-pool-files><journal-max-io>5</journal-max-io>
      <journal-buffer-size>6K</journal-buffer-size>
      <journal-buffer-timeout>7</journal-buffer-timeout>
      <journal-compact-min-files>8</journal-compact-min-files>
      <journal-compact-percentage>9</journal-compact-percentage>
      <journal-lock-acquisition-timeout>10</journal-lock-acquisition-timeout>
      <store><file-store/></store>"""
    settings = config.load(broker_xml(tmp_path, core))
    assert settings.store == FileStoreSettings(
        tmp_path / "j",
        Path("/b"),
        tmp_path / "l",
        create_journal_dir=False,
        create_bindings_dir=False,
        journal_type=JournalType.MAPPED,
        journal_sync_transactional=False,
        journal_sync_non_transactional=False,
        journal_datasync=False,
        journal_file_size=1_048_576,
        journal_min_files=3,
        journal_pool_files=4,
        journal_max_io=5,
        journal_buffer_size=6_144,
        journal_compact_min_files=8,
        journal_compact_percentage=9,
        journal_lock_acquisition_timeout=10,
    )
    not_durable = [one for one in settings.warnings if "survives the death of this node" in one]
    assert len(not_durable) == 3


def test_an_unset_file_store_has_artemis_defaults(tmp_path: Path) -> None:
    """What the file does not say is as in Artemis."""
    store = config.load(broker_xml(tmp_path, "<store><file-store/></store>")).store
    assert store == FileStoreSettings(
        tmp_path / "data/journal",
        tmp_path / "data/bindings",
        tmp_path / "data/large-messages",
        journal_type=JournalType.ASYNCIO,
        journal_file_size=10 * 1024 * 1024,
        journal_min_files=2,
        journal_pool_files=-1,
        journal_max_io=4_096,
        journal_buffer_size=490 * 1024,
        journal_compact_min_files=10,
        journal_compact_percentage=30,
        journal_lock_acquisition_timeout=-1,
    )


@pytest.mark.parametrize(
    ("element", "value", "expected"),
    [
        ("journal-type", "NOI", "expected ASYNCIO, NIO or MAPPED; did you mean 'NIO'?"),
        ("journal-file-size", "1K", "is 1024; expected 65536 bytes or more"),
        ("journal-min-files", "1", "is 1; expected 2 or more"),
        ("journal-pool-files", "-2", "is -2; expected -1 (keep all) or more"),
        ("journal-max-io", "0", "is 0; expected 1 or more"),
        ("journal-compact-percentage", "101", "is 101; expected 0 to 100"),
        ("journal-lock-acquisition-timeout", "-2", "is -2; expected -1 (wait for ever) or more"),
    ],
)
def test_a_file_store_that_cannot_work_is_refused(
    element: str, value: str, expected: str, tmp_path: Path
) -> None:
    """The error names file, line, element and what was expected."""
    path = broker_xml(tmp_path, f"<{element}>{value}</{element}>")
    told = _told(path)
    assert told.startswith(f"{path}:1: <{element}>: ")
    assert expected in told


def test_a_file_store_has_no_database(tmp_path: Path) -> None:
    """Whoever asks for the database is told that there is none."""
    settings = config.load(broker_xml(tmp_path, ""))
    with pytest.raises(config.ConfigurationError, match="no database-store is configured"):
        _ = settings.database_store


def test_without_persistence_one_warning_says_so(tmp_path: Path) -> None:
    """Nothing is stored, and the start says it; a backup would have nothing to take over."""
    core = (
        "<persistence-enabled>false</persistence-enabled><security-enabled>false</security-enabled>"
        "<acceptors><acceptor>tcp://127.0.0.1:1</acceptor></acceptors>"
    )
    settings = config.load(broker_xml(tmp_path, core))
    assert not settings.persistence_enabled
    (warning,) = settings.warnings
    assert "NOTHING IS STORED" in warning
    backup = "<ha-policy><shared-store><backup/></shared-store></ha-policy>"
    assert "<persistence-enabled>: is false for a backup" in _told(
        broker_xml(tmp_path, name="backup.xml", core=core + backup)
    )


def test_pool_properties_are_sorted(tmp_path: Path) -> None:
    """Those of the pool are kept, those of the connection are read, the others are listed."""
    properties = {
        "url": "jdbc:postgresql://h/db",
        "username": "u",
        "password": config.mask("hunter2"),
        "maxTotal": "8",
        "poolPreparedStatements": "true",
    }
    inner = "".join(
        f'<data-source-property key="{key}" value="{value}"/>' for key, value in properties.items()
    )
    core = (
        "<store><database-store><data-source-properties>"
        f"{inner}</data-source-properties></database-store></store>"
    )
    settings = config.load(broker_xml(tmp_path, core))
    store = settings.database_store
    assert store.data_source_properties == {"maxTotal": "8"}
    assert store.jdbc_user == "u"
    assert store.jdbc_password == config.Secret("hunter2")
    assert store.jdbc_connection_url.dialect is config.Dialect.POSTGRESQL
    assert "data-source-property poolPreparedStatements" in settings.warnings[0]


@pytest.mark.parametrize(
    ("core", "properties"),
    [
        ("", {"artemis.default.sensitive.string.codec.key": "my own key"}),
        (
            "<password-codec>org.apache.activemq.artemis.utils.DefaultSensitiveStringCodec"
            ";key=my own key</password-codec>",
            {},
        ),
    ],
)
def test_a_codec_key_of_ones_own_is_used(
    core: str, properties: dict[str, str], tmp_path: Path
) -> None:
    """A password masked with one's own key is read with the key from outside or from the file."""
    masked = config.mask("hunter2", "my own key")
    path = broker_xml(
        tmp_path,
        name="b.xml",
        core=core + database_store(f"<jdbc-password>{masked}</jdbc-password>"),
    )
    loaded = config.load(path, system_properties=properties)
    assert loaded.database_store.jdbc_password == config.Secret("hunter2")


def test_another_file_is_included(tmp_path: Path) -> None:
    """xi:include puts a file in place; its errors name that file and its line."""
    included = tmp_path / "parts" / "name.xml"
    included.parent.mkdir()
    included.write_text('<name xmlns="urn:activemq:core">\nlive-1</name>')
    path = broker_xml(
        tmp_path,
        name="broker.xml",
        core='<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="${parts}/name.xml"/>',
    )
    assert config.load(path, system_properties={"parts": "parts"}).name == "live-1"

    included.write_text('\n<nam xmlns="urn:activemq:core">live-1</nam>')
    with pytest.raises(config.ConfigurationError) as caught:
        config.load(path, system_properties={"parts": "parts"})
    assert str(caught.value) == f"{included}:2: <nam>: unknown element; did you mean <name>?"


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """A file of more than 4 MiB is no broker.xml."""
    path = broker_xml(tmp_path, " " * (4 * 1024 * 1024))
    with pytest.raises(config.ConfigurationError, match="is larger than 4194304 bytes"):
        config.load(path)


def test_nesting_is_bounded(tmp_path: Path) -> None:
    """Elements nested without end are refused before a tree is built of them."""
    path = broker_xml(tmp_path, "<a>" * 100)
    with pytest.raises(config.ConfigurationError, match="is nested deeper than 64 elements"):
        config.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    with pytest.raises(config.ConfigurationError) as caught:
        config.load(tmp_path / "broker.xml")
    assert str(caught.value) == (
        f"{tmp_path / 'broker.xml'}: cannot be read: No such file or directory"
    )


@hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    before=st.text(st.sampled_from("<&;!-[]>/'\"= ab"), max_size=6),
    after=st.text(st.sampled_from("<&;!-[]>/'\"= ab"), max_size=6),
)
def test_a_password_that_breaks_the_file_is_not_quoted(
    before: str, after: str, tmp_path: Path
) -> None:
    """Whatever a password does to the XML around it, no error quotes it."""
    inner = f"<jdbc-password>{before}Hunter2{after}</jdbc-password>"
    path = broker_xml(tmp_path, database_store(inner))
    assert "Hunter2" not in _told(path)


def test_limits_of_single_users_are_read(tmp_path: Path) -> None:
    """By Artemis' names, those of older versions too; ``check`` shows what is in effect."""
    core = """<resource-limit-settings>
      <resource-limit-setting match="ada"><max-sessions>5</max-sessions></resource-limit-setting>
      <resource-limit-setting match="bob"><max-connections>6</max-connections>
        <max-queues>9</max-queues></resource-limit-setting>
      <resource-limit-setting match="eve"/>
    </resource-limit-settings>"""
    settings = config.load(broker_xml(tmp_path, core))
    found = settings.resource_limit_settings
    assert [(one.match, one.max_sessions, one.max_queues) for one in found] == [
        ("ada", 5, None),
        ("bob", 6, 9),
        ("eve", None, None),
    ]
    shown = {one.path: one for one in config.render(settings)}
    ada = "core/resource-limit-settings/resource-limit-setting[ada]/max-sessions"
    assert shown[ada].value == "5"
    bob = "core/resource-limit-settings/resource-limit-setting[bob]/max-queues"
    assert shown[bob].value == "9"
    of_user = shown["core/stomp-limits/max-connections-per-user"]
    assert (of_user.value, of_user.is_default) == ("seven eighths of max-connections", True)


def test_the_part_of_the_store_has_all_of_it_and_needs_nothing_else(tmp_path: Path) -> None:
    """Directories of a file store are found; passwords of key stores and users are not asked."""
    of_store = (
        "<name>a</name><journal-directory>/srv/journal</journal-directory>"
        "<bindings-directory>/srv/bindings</bindings-directory>"
        "<large-messages-directory>/srv/large</large-messages-directory>"
        "<journal-file-size>1M</journal-file-size><store><file-store/></store>"
    )
    others = (
        '<acceptors><acceptor name="tls">tcp://127.0.0.1:1?keyStorePassword=${NOWHERE}</acceptor>'
        "</acceptors>"
    )
    whole = config.load(broker_xml(tmp_path, name="store.xml", core=of_store))
    path = broker_xml(tmp_path, of_store + others)
    assert config.load(path, part=Part.STORE).store == whole.store
    with pytest.raises(config.ConfigurationError, match="NOWHERE"):
        config.load(path, part=Part.ACCEPTORS)
