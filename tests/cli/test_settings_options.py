"""Options made from the settings, and what nodes make of them."""

import re
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from orthia.broker.cli.backup import backup
from orthia.broker.cli.live import live
from orthia.broker.cli.node_options import node_settings
from orthia.broker.cli.settings_options import StoreOptions, policy_options, store_options
from orthia.config.errors import ConfigurationError
from orthia.config.exposure import exposure_warnings
from orthia.config.secrets import mask
from orthia.config.settings import HaPolicy, Role, Settings
from orthia.config.store_settings import DatabaseStoreSettings, InDatabaseLockerSettings
from orthia.config.urls import DatabaseUrl
from tests.cli.conftest import Run
from tests.support.broker_xml import broker_xml, database_store

CONFIGURATION = """
  <name>from-file</name>
  <store><database-store>
    <jdbc-connection-url>jdbc:postgresql://db/orthia</jdbc-connection-url>
    <jdbc-user>filed</jdbc-user>
    <jdbc-password>secret</jdbc-password>
    <jdbc-lock-expiration>9000</jdbc-lock-expiration>
  </database-store></store>
  <ha-policy><shared-store><backup><allow-failback>false</allow-failback></backup></shared-store>
  </ha-policy>
  <acceptors><acceptor name="a">tcp://127.0.0.1:7000</acceptor></acceptors>
  <security-enabled>false</security-enabled>
"""


def parse(*arguments: str, environment: dict[str, str] | None = None) -> StoreOptions:
    """Return what a command gets from these options."""
    got: list[StoreOptions] = []

    @click.command()
    @store_options
    def command(store: StoreOptions) -> None:
        got.append(store)

    result = CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return got[0]


def settings_of(
    role: Role,
    directory: Path,
    *arguments: str,
    host: str | None = None,
    port: int | None = None,
    allow_anonymous: bool = False,
) -> Settings:
    """Return the settings of a node started with these options."""
    return node_settings(
        role,
        store=parse(*arguments),
        policy={},
        name=None,
        host=host,
        port=port,
        data_dir=directory,
        health=None,
        console_users=None,
        allow_anonymous=allow_anonymous,
    )


@pytest.mark.parametrize("command", [live, backup])
def test_every_setting_of_the_store_and_the_policy_is_an_option(command: click.Command) -> None:
    """An element of broker.xml is an option of the same name, without exception."""
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    own_names = {
        "jdbc_connection_url": "--url",
        "data_source_properties": "--data-source-property",
    }
    for one in fields(DatabaseStoreSettings):
        if one.name in ("locker", "journal_retention"):  # of attributes: only a broker.xml has one
            assert f"--{one.name.replace('_', '-')}" not in options
            continue
        assert own_names.get(one.name, f"--{one.name.replace('_', '-')}") in options
    for policy in fields(HaPolicy):
        if policy.name != "role":  # the command is the role
            element = policy.name.replace("_", "-")
            assert {f"--{element}", f"--no-{element}"} <= options


def test_options_win_over_the_file(tmp_path: Path) -> None:
    """With --config the file is the base and options change it."""
    file = broker_xml(tmp_path, CONFIGURATION)
    store = parse("--config", str(file), "--jdbc-lock-renew-period", "700").resolve()
    assert (store.jdbc_lock_renew_period, store.jdbc_lock_expiration) == (700, 9_000)
    assert store.jdbc_user == "filed"


def test_another_database_does_not_get_the_files_password(tmp_path: Path) -> None:
    """--url beside --config names another database; the file's credentials stay at home."""
    file = broker_xml(tmp_path, CONFIGURATION)
    store = parse("--config", str(file), "--url", "postgresql://elsewhere/orthia").resolve()
    assert (store.jdbc_user, store.jdbc_password) == (None, None)
    assert store.jdbc_lock_expiration == 9_000


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Give the settings of all nodes that commands would have run."""
    found: list[Settings] = []
    for module in ("run", "node_options"):
        monkeypatch.setattr(
            f"orthia.broker.cli.{module}.run_node",
            lambda settings, *_, **__: found.append(settings),
        )
    return found


@pytest.mark.parametrize(
    ("of_file", "environment"),
    [
        ("<jdbc-password>of-the-file</jdbc-password>", "hunter2"),
        ("", mask("hunter2")),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["run", "--config"], ["live", "--config"]])
def test_a_node_takes_its_password_from_the_environment(
    run: Run,
    tmp_path: Path,
    ran: list[Settings],
    command: list[str],
    of_file: str,
    environment: str,
) -> None:
    """``run`` too, not only the commands that an operator tries first; it wins over the file."""
    file = broker_xml(tmp_path, database_store(of_file, "postgresql://h/d"))
    result = run(*command, file, environment={"ORTHIA_JDBC_PASSWORD": environment})
    assert result.exit_code == 0, result.output
    password = ran[0].database_store.jdbc_password
    assert password is not None
    assert password.reveal() == "hunter2"


@pytest.mark.parametrize("command", [["run"], ["live", "--config"], ["backup", "--config"]])
def test_a_file_journals_password_is_that_of_its_locks(
    run: Run, tmp_path: Path, ran: list[Settings], command: list[str]
) -> None:
    """A database that has only the locks gets it; without one it is nobody's, and harmless."""
    locker = (
        '<store><file-store><locker xmlns="urn:orthia">'
        '<lease-database-locker lockKeepAlivePeriod="2000" jdbcConnectionUrl="postgresql://h/d"/>'
        "</locker></file-store></store>"
    )
    for text in ("", locker):
        file = broker_xml(tmp_path, f"{text}<journal-directory>{tmp_path}</journal-directory>")
        result = run(*command, file, environment={"ORTHIA_JDBC_PASSWORD": "hunter2"})
        assert result.exit_code == 0, result.output
    without, with_locks = (one.store.locker for one in ran)
    assert without is None
    assert isinstance(with_locks, InDatabaseLockerSettings)
    assert with_locks.jdbc_password is not None
    assert with_locks.jdbc_password.reveal() == "hunter2"


def test_run_wants_one_file(run: Run, tmp_path: Path) -> None:
    """As an argument, as ``check`` takes it, or as an option."""
    for arguments in ([], ["a.xml", "--config", "b.xml"]):
        result = run("run", *arguments)
        assert result.exit_code == 64
        assert "orthia run FILE" in result.stderr


def test_a_relative_sqlite_path_starts_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means the same file whatever the node does with its directory."""
    monkeypatch.chdir(tmp_path)
    store = parse("--url", "sqlite:///sub/x.db").resolve()
    assert store.jdbc_connection_url.sqlite_path == tmp_path / "sub" / "x.db"


def test_a_live_node_needs_no_options(tmp_path: Path) -> None:
    """Without a file the store is SQLite in the data directory and only this host gets in."""
    settings = settings_of(Role.LIVE, tmp_path / "new")
    assert settings.database_store.jdbc_connection_url.sqlite_path == tmp_path / "new/orthia.db"
    assert [(one.host, one.port) for one in settings.acceptors] == [("127.0.0.1", 61_613)]
    assert settings.ha_policy.role is Role.LIVE
    assert settings.warnings == ()
    assert settings.failover_log_directory == tmp_path / "new" / "log"


def test_a_node_from_a_file_takes_its_role_from_the_command(tmp_path: Path) -> None:
    """``live --config`` runs a backup's file as live, everything else as the file says."""
    file = broker_xml(tmp_path, CONFIGURATION)
    settings = settings_of(Role.LIVE, tmp_path, "--config", str(file))
    assert (settings.name, settings.ha_policy.role) == ("from-file", Role.LIVE)
    assert settings.ha_policy.allow_failback is False
    assert [one.port for one in settings.acceptors] == [7_000]
    assert settings_of(Role.LIVE, tmp_path, "--config", str(file), port=0).acceptors[0].port == 0


def test_wrong_timers_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Options keep the same rules as a file."""
    with pytest.raises(ConfigurationError, match="jdbc-lock-renew-period"):
        settings_of(Role.LIVE, tmp_path, "--jdbc-lock-renew-period", "30000")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "node-a"])  # noqa: S104 - not opened
def test_an_open_port_without_security_is_asked_for_and_warned_of(
    tmp_path: Path, host: str
) -> None:
    """Listening to the network without a login must be meant, and is said out loud."""
    with pytest.raises(click.UsageError, match=f"create DIRECTORY --host {host}`, or add --allow"):
        settings_of(Role.LIVE, tmp_path, host=host)
    settings = settings_of(Role.LIVE, tmp_path, host=host, allow_anonymous=True)
    assert "security is off" in " ".join(settings.warnings)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_port_of_this_host_alone_needs_no_word(tmp_path: Path, host: str) -> None:
    """Nobody else reaches it."""
    settings = settings_of(Role.LIVE, tmp_path, host=host)
    assert [one.host for one in settings.acceptors] == [host]
    assert settings.warnings == ()


def test_options_do_not_take_the_place_of_an_acceptor_with_tls(tmp_path: Path) -> None:
    """Clients would send their passcodes in the clear."""
    file = tmp_path / "broker.xml"
    tls = "tcp://localhost:7000?sslEnabled=true;keyStorePath=broker.pem"
    acceptor = f'<acceptors><acceptor name="secure">{tls}</acceptor></acceptors>'
    broker_xml(tmp_path, database_store() + acceptor)
    settings = settings_of(Role.LIVE, tmp_path, "--config", str(file))
    assert settings.acceptors[0].tls is not None
    with pytest.raises(click.UsageError, match="in place of 'secure' of the --config file"):
        settings_of(Role.LIVE, tmp_path, "--config", str(file), port=7_001)


@pytest.mark.parametrize(
    ("url", "environment", "told"),
    [
        ("postgresql://db/orthia", {}, "as 'SYSTEM', the user of the operating system"),
        ("postgresql://db/orthia", {"PGUSER": "ann"}, "as 'ann', PGUSER of its environment"),
        ("jdbc:mariadb://db/orthia", {}, "as 'SYSTEM', the user of the operating system"),
        ("postgresql://bob@db/orthia", {}, ""),
        ("postgresql://db/orthia?user=bob", {}, ""),
        ("postgresql://db/orthia?service=s", {}, ""),
        ("postgresql://db/orthia", {"PGSERVICE": "s"}, ""),
        ("jdbc:mysql://db/orthia?user=bob", {}, ""),
        ("sqlite:////tmp/x.db", {}, ""),
    ],
)
def test_a_database_user_whom_nobody_named_is_warned_of(
    url: str, environment: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver takes one in silence; ``jdbc-user`` is what the warning asks for."""
    monkeypatch.setattr("orthia.config.exposure._system_user", lambda **_: "SYSTEM")
    store = DatabaseStoreSettings(DatabaseUrl.parse(url))
    settings = Settings("a", None, store)
    found = [one for one in exposure_warnings(settings, environment) if "names a user" in one]
    assert len(found) == bool(told)
    assert told in "".join(found)
    named = replace(settings, store=replace(store, jdbc_user="orthia"))
    assert not any("names a user" in one for one in exposure_warnings(named, environment))
    in_memory = replace(settings, persistence_enabled=False)
    assert not any("names a user" in one for one in exposure_warnings(in_memory, environment))


def test_policy_options_leave_out_what_was_not_given() -> None:
    """Only what the user said changes the policy of the file."""
    got: list[object] = []

    @click.command()
    @policy_options
    def command(policy: object) -> None:
        got.append(policy)

    CliRunner().invoke(command, ["--no-allow-failback"], catch_exceptions=False)
    assert got == [{"allow_failback": False}]


SECRETS_OF_OTHERS = """\
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<store><database-store><jdbc-connection-url>{url}</jdbc-connection-url>{more}</database-store></store>
<acceptors><acceptor name="tls">tcp://127.0.0.1:61613?sslEnabled=true;keyStorePath=keys.pem;\
keyStorePassword=${{KEY_STORE_PASSWORD}}</acceptor></acceptors>
<global-max-size>${{SIZE}}</global-max-size>
<users xmlns="urn:orthia"><user name="a" password="${{PASSWORD_OF_A}}" roles="amq"/></users>
<health xmlns="urn:orthia"><token>${{TOKEN}}</token></health>
</core></configuration>"""


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        ("status", 3),
        *((words, 0) for words in ("failover-log", "queue history", "db current")),
        ("queue list --store --json", 0),
    ],
)
def test_a_look_at_a_store_needs_no_secrets_of_others(
    run: Run, sqlite_url: str, tmp_path: Path, words: str, exit_code: int
) -> None:
    """Of all that comes from outside only what the database asks for has to be set."""
    file = tmp_path / "broker.xml"
    file.write_text(SECRETS_OF_OTHERS.format(url=sqlite_url, more=""))
    result = run(*words.split(), "--config", file)
    assert (result.exit_code, result.stderr) == (exit_code, "")
    file.write_text(
        SECRETS_OF_OTHERS.format(url=sqlite_url, more="<jdbc-password>${DB}</jdbc-password>")
    )
    result = run(*words.split(), "--config", file)
    assert result.exit_code == 78
    assert re.findall(r"\$\{(\w+)\} is not set", result.stderr) == ["DB"]
    # A node needs them all.
    whole = run("check", file)
    assert whole.exit_code == 78
    named = {*re.findall(r"\$\{(\w+)\} is not set", whole.stderr)}
    assert named == {"DB", "KEY_STORE_PASSWORD", "SIZE", "PASSWORD_OF_A", "TOKEN"}


def test_an_unknown_element_is_told_by_whoever_looks(run: Run, tmp_path: Path) -> None:
    """A slip in the name of the store must not have a command look at another store."""
    file = broker_xml(tmp_path, "<stor/>")
    result = run("status", "--config", file)
    assert result.exit_code == 78
    assert "did you mean <store>?" in result.stderr
