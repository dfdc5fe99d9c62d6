"""The locker of a broker.xml: read, related to the timers, and refused with a reason."""

from pathlib import Path

import pytest

from orthia import config
from orthia.config import ConfigurationError, DatabaseStoreSettings, DatabaseUrl, FileStoreSettings
from orthia.config.changes import changes
from orthia.config.lockers import lock_database, with_locker
from orthia.config.settings import Settings
from orthia.config.store_rules import lease_query_timeout
from orthia.config.store_settings import (
    CustomLockerSettings,
    DatabaseLockerSettings,
    LeaseDatabaseLockerSettings,
    SharedFileLockerSettings,
)

POSTGRESQL = "jdbc:postgresql://h/db"


def load(
    directory: Path,
    locker: str,
    *,
    url: str | None = POSTGRESQL,
    policy: str = "primary",
) -> Settings:
    """Load a broker.xml with this locker, in a database-store at ``url`` or in a file-store."""
    path = directory / "broker.xml"
    locker = f'<locker xmlns="urn:orthia">{locker}</locker>'
    store = (
        f"<file-store>{locker}</file-store>"
        if url is None
        else f"<database-store><jdbc-connection-url>{url}</jdbc-connection-url>{locker}"
        "</database-store>"
    )
    path.write_text(
        f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
        <security-enabled>false</security-enabled>
        <store>{store}</store>
        <ha-policy><shared-store><{policy}/></shared-store></ha-policy>
        </core></configuration>"""
    )
    return config.load(path)


def database_store(settings: Settings) -> DatabaseStoreSettings:
    """Return the database-store of ``settings``."""
    assert isinstance(settings.store, DatabaseStoreSettings)
    return settings.store


def test_a_lease_locker_sets_the_timers_of_the_lease(tmp_path: Path) -> None:
    """Classic's names stand for those of Artemis, which tools and the journal go by."""
    settings = load(
        tmp_path,
        '<lease-database-locker lockAcquireSleepInterval="9000" lockKeepAlivePeriod="1500"'
        ' leaseHolderId="rack 7" maxAllowableDiffFromDBTime="900" queryTimeout="2"'
        ' lockTableName="ACTIVEMQ_LOCK"/>',
    )
    store = database_store(settings)
    assert (store.jdbc_lock_expiration, store.jdbc_lock_renew_period) == (9_000, 1_500)
    assert store.node_manager_store_table_name == "ACTIVEMQ_LOCK"
    assert store.jdbc_allowed_time_diff == 900
    assert store.crash_detection
    assert lease_query_timeout(store) == 2_000
    assert with_locker(store) == store
    assert isinstance(store.locker, LeaseDatabaseLockerSettings)
    assert store.locker.lease_holder_id == "rack 7"
    assert any("never use the clock of a node" in one for one in settings.warnings)


def test_the_defaults_are_those_of_classic() -> None:
    """Except of the shared file, which Classic never looks at again."""
    for kind in (LeaseDatabaseLockerSettings, DatabaseLockerSettings):
        locker = kind()
        assert locker.lock_acquire_sleep_interval == 10_000
        assert locker.lock_keep_alive_period == 30_000
        assert (locker.fail_if_locked, locker.use_lock) == (False, True)
        assert (locker.query_timeout, locker.max_allowable_diff_from_db_time) == (-1, 0)
    assert SharedFileLockerSettings().lock_acquire_sleep_interval == 10_000


def test_classics_lease_that_ends_before_it_is_renewed_is_refused(tmp_path: Path) -> None:
    """The defaults of Classic's lease locker do not start, and the error says why."""
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, "<lease-database-locker/>")
    text = str(refused.value)
    assert "broker.xml:3: <locker>: lockKeepAlivePeriod is 30000 ms" in text
    assert "another node be live beside this one" in text
    assert "lockKeepAlivePeriod 2000 with 10000" in text


def test_an_exclusive_locker_outlives_its_periods(tmp_path: Path) -> None:
    """The holder trusts its lock for three periods, or jdbc-lock-expiration if that is more."""
    store = database_store(load(tmp_path, "<database-locker/>"))
    assert (store.jdbc_lock_renew_period, store.jdbc_lock_expiration) == (30_000, 90_000)
    assert not store.crash_detection
    short = database_store(load(tmp_path, '<database-locker lockKeepAlivePeriod="500"/>'))
    assert (short.jdbc_lock_renew_period, short.jdbc_lock_expiration) == (500, 20_000)


@pytest.mark.parametrize(
    ("locker", "store", "expected"),
    [
        (
            '<lease-database-locker lockKeepAlivePeriod="0"/>',
            {},
            "lockKeepAlivePeriod is 0 ms: the lease would never be renewed",
        ),
        (
            '<database-locker lockKeepAlivePeriod="50"/>',
            {},
            "lockKeepAlivePeriod is 50 ms; expected at least 100 ms, or 0 for never",
        ),
        (
            '<database-locker lockAcquireSleepInterval="0"/>',
            {},
            "lockAcquireSleepInterval is 0 ms; expected 1 or more",
        ),
        (
            "<database-locker/>",
            {"url": "jdbc:sqlite:orthia.db"},
            "SQLite: it locks the whole database and not a row",
        ),
        (
            '<database-locker queryTimeout="31"/>',
            {},
            "queryTimeout is 31 s, and the timers leave a statement 30000 ms",
        ),
        (
            '<database-locker lockCreateStatement="SELECT 1"/>',
            {},
            "attribute 'lockCreateStatement' cannot be given; expected none: the statements",
        ),
        (
            '<lease-database-locker leaseObtainStatement="UPDATE T"/>',
            {},
            "attribute 'leaseObtainStatement' cannot be given",
        ),
        (
            '<database-locker lockTableName="a b"/>',
            {},
            "<node-manager-store-table-name>",
        ),
        ("<shared-file-locker/>", {}, "directory is missing; with a database-store expected"),
        (
            '<shared-file-locker directory="locks" useLock="false"/>',
            {"policy": "backup"},
            "useLock is false for a backup",
        ),
        (
            '<database-locker jdbcConnectionUrl="jdbc:postgresql://h/other"/>',
            {},
            "jdbcConnectionUrl is given beside a database-store",
        ),
        (
            "<database-locker/>",
            {"url": None},
            "jdbcConnectionUrl is missing; with the file journal",
        ),
        ('<custom-locker name="x"/>', {"url": None}, "name goes with a database-store"),
        ("<custom-locker/>", {}, "lacks the attribute 'name'"),
        ('<database-locker lockKeepalivePeriod="1"/>', {}, "did you mean 'lockKeepAlivePeriod'?"),
        ("<database-locker/><shared-file-locker/>", {}, "<shared-file-locker>"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    tmp_path: Path, locker: str, store: dict[str, str], expected: str
) -> None:
    """With the attribute, its value and what was expected."""
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, locker, **store)
    assert expected in str(refused.value)


def test_without_a_lock_there_is_a_loud_warning(tmp_path: Path) -> None:
    """And one for a lock that is never looked at again."""
    warnings = load(tmp_path, '<database-locker useLock="false"/>').warnings
    assert any("NO LOCK IS TAKEN" in one for one in warnings)
    warnings = load(tmp_path, '<database-locker lockKeepAlivePeriod="0"/>').warnings
    assert any("keeps VACUUM from removing" in one for one in warnings)
    assert any("never looks whether it still holds its lock" in one for one in warnings)


def test_a_file_journal_can_have_its_locks_in_a_database(tmp_path: Path) -> None:
    """Classic's KahaDB with a lease locker."""
    settings = load(
        tmp_path,
        '<lease-database-locker lockKeepAlivePeriod="2000" jdbcUser="u" jdbcPassword="p"'
        ' jdbcConnectionUrl="jdbc:postgresql://h/locks"/>',
        url=None,
    )
    assert isinstance(settings.store, FileStoreSettings)
    database = lock_database(settings.store)
    assert database is not None
    assert database.jdbc_connection_url == DatabaseUrl.parse("jdbc:postgresql://h/locks")
    assert (database.jdbc_user, str(database.jdbc_password)) == ("u", "****")
    assert (database.jdbc_lock_renew_period, database.jdbc_lock_expiration) == (2_000, 10_000)
    rendered = {one.path: one for one in config.render(settings)}
    path = "core/store/file-store/locker/lease-database-locker"
    assert rendered[f"{path}/@jdbcPassword"].value == "****"
    assert rendered[f"{path}/@lockKeepAlivePeriod"].value == "2000"
    assert rendered[f"{path}/@failIfLocked"].is_default


def test_paths_start_from_the_instance(tmp_path: Path) -> None:
    """As every path of the file does."""
    locker = database_store(load(tmp_path, '<shared-file-locker directory="locks"/>')).locker
    assert isinstance(locker, SharedFileLockerSettings)
    assert locker.directory == tmp_path / "locks"


def test_a_custom_locker_has_properties_of_its_own(tmp_path: Path) -> None:
    """Which are shown as well."""
    settings = load(
        tmp_path, '<custom-locker name="etcd"><property key="host" value="e1"/></custom-locker>'
    )
    assert database_store(settings).locker == CustomLockerSettings(
        name="etcd", properties={"host": "e1"}
    )
    paths = {one.path: one.value for one in config.render(settings)}
    assert paths["core/store/database-store/locker/custom-locker/property[host]"] == "e1"


def test_no_password_of_a_custom_locker_is_shown(tmp_path: Path) -> None:
    """Neither in what is in effect nor in what changed: also one within a URL."""
    urls = ["https://ada:s3cret@h:1/a?token=s3cret&amp;x=1", "https://ada:s3cret@h:2/a?x=1"]
    before, after = (
        load(
            tmp_path, f'<custom-locker name="e"><property key="url" value="{url}"/></custom-locker>'
        )
        for url in urls
    )
    shown = [f"{one.path} {one.value}" for one in config.render(before)]
    told = [str(one) for one in changes(before, after)]
    assert told
    assert not [one for one in (*shown, *told) if "s3cret" in one]
    assert any("https://ada:****@h:1/a?token=****&x=1" in one for one in shown)
    assert "https://ada:****@h:2/a?x=1" in told[0]


def test_no_locker_changes_nothing() -> None:
    """The store is what it was."""
    store = DatabaseStoreSettings(DatabaseUrl.parse(POSTGRESQL))
    assert with_locker(store) is store
