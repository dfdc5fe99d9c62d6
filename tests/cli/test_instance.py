"""``create`` and ``check``: from nothing to a configuration a node accepts."""

import json
import re
import shlex
import socket
import stat
from pathlib import Path

import pytest

from orthia.broker.node.exit_codes import ExitCode
from orthia.config import Role, load
from orthia.config.settings import HealthSettings
from orthia.config.store_settings import FileStoreSettings, JournalType
from tests.cli.conftest import Run, users_of

PASSWORD = {"ORTHIA_PASSWORD": "wonder"}


def test_a_created_instance_is_valid_and_says_what_is_next(run: Run, tmp_path: Path) -> None:
    """The file that ``create`` writes is one that ``run`` accepts, on SQLite by default."""
    result = run("create", "one")
    file = tmp_path / "one" / "etc" / "broker.xml"
    assert result.exit_code == 0
    assert f"orthia run {file}" in result.output
    settings = load(file)
    assert (
        settings.database_store.jdbc_connection_url.sqlite_path == tmp_path / "one/data/orthia.db"
    )
    assert (settings.ha_policy.role, settings.acceptors[0].port) == (Role.LIVE, 61_613)
    assert settings.failover_log_directory == tmp_path / "one" / "data" / "log"
    assert settings.audit_log_directory == tmp_path / "one" / "data" / "log"
    assert settings.health == HealthSettings("127.0.0.1", 8_161)
    assert "http://127.0.0.1:8161/metrics" in result.output
    assert [address.name for address in settings.addresses] == ["DLQ", "ExpiryQueue"]
    (match,) = settings.address_settings
    assert (match.match, match.dead_letter_address, match.expiry_address) == (
        "#",
        "DLQ",
        "ExpiryQueue",
    )


def test_a_backup_instance(run: Run, tmp_path: Path) -> None:
    """``--backup`` makes the other half of a pair."""
    arguments = (
        "--backup",
        "--allow-anonymous",
        "--name",
        "<b&>",
        "--port",
        7001,
        "--url",
        "sqlite:////tmp/shared.db",
    )
    assert run("create", "two", *arguments).exit_code == 0
    settings = load(tmp_path / "two" / "etc" / "broker.xml")
    assert (settings.ha_policy.role, settings.name) == (Role.BACKUP, "<b&>")
    assert settings.acceptors[0].port == 7_001


@pytest.mark.parametrize(
    ("option", "kind"),
    [("--aio", JournalType.ASYNCIO), ("--nio", JournalType.NIO), ("--mapped", JournalType.MAPPED)],
)
def test_an_instance_with_a_file_journal(
    run: Run, tmp_path: Path, option: str, kind: JournalType
) -> None:
    """Artemis' options put messages in files; the backup that is proposed shares them."""
    result = run("create", "one", option)
    assert result.exit_code == 0, result.output
    store = load(tmp_path / "one" / "etc" / "broker.xml").store
    assert isinstance(store, FileStoreSettings)
    data = tmp_path / "one" / "data"
    assert (store.journal_type, store.journal_directory) == (kind, data / "journal")
    assert store.bindings_directory == data / "bindings"
    assert run(*proposed(result.output), environment=PASSWORD).exit_code == 0
    backup = load(tmp_path / "one-backup" / "etc" / "broker.xml")
    assert (backup.store, backup.ha_policy.role) == (store, Role.BACKUP)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(("--nio", "--url", "sqlite:///a.db"), "not in both"), (("--data", "d"), "--aio, --nio or")],
)
def test_a_store_is_a_database_or_files(
    run: Run, tmp_path: Path, options: tuple[str, ...], complaint: str
) -> None:
    """What cannot be meant is refused, and nothing is written."""
    result = run("create", "one", *options)
    assert (result.exit_code, complaint in result.stderr) == (64, True), result.output
    assert not (tmp_path / "one").exists()


def proposed(output: str) -> list[str]:
    """Return the words of the command for the backup, as a shell reads them."""
    return shlex.split(next(line for line in output.splitlines() if "--backup" in line))[1:]


def test_a_pair_on_a_server_has_two_hosts_and_one_port(run: Run, tmp_path: Path) -> None:
    """What is printed makes the other node, shows no password, and clients find both."""
    url = "postgresql://orthia:p%40ss@db.example/orthia"
    result = run("create", "one", "--url", url)
    assert "***" not in result.output
    assert "ss@" not in result.output
    assert "read -rs ORTHIA_JDBC_PASSWORD" in result.output
    words = proposed(result.output)
    assert words[1] == str(tmp_path / "one")  # on its own host
    words[1] = str(tmp_path / "two")
    environment = {"ORTHIA_JDBC_PASSWORD": "p@ss", **PASSWORD}
    assert run(*words, environment=environment).exit_code == 0
    one, two = (load(tmp_path / name / "etc" / "broker.xml") for name in ("one", "two"))
    assert one.database_store == two.database_store
    assert two.database_store.jdbc_password is not None
    assert two.database_store.jdbc_password.reveal() == "p@ss"
    assert (one.acceptors[0].port, two.acceptors[0].port) == (61_613, 61_613)
    again = run("create", "three", "--backup", "--url", url, environment=PASSWORD)
    assert again.exit_code == 0
    assert load(tmp_path / "three/etc/broker.xml").acceptors[0].port == 61_613


@pytest.mark.parametrize("options", [[], ["--aio"], ["--port", "7000"]])
def test_a_pair_on_one_host_has_two_ports(run: Run, tmp_path: Path, options: list[str]) -> None:
    """SQLite and files are on one host; a directory with a blank is quoted."""
    result = run("create", "my node", *options)
    assert run(*proposed(result.output), environment=PASSWORD).exit_code == 0
    one, two = (load(tmp_path / f"my node{end}/etc/broker.xml") for end in ("", "-backup"))
    assert one.store == two.store
    assert two.acceptors[0].port == one.acceptors[0].port + 1
    assert f"127.0.0.1:{two.acceptors[0].port}" in result.output


@pytest.mark.parametrize(
    ("options", "ports", "audited"),
    [
        ([], (8_161, 8_162), True),
        (["--health-port", "9000", "--no-audit"], (9_000, 9_001), False),
        (["--no-health"], None, True),
        (["--url", "postgresql://orthia@db.example/orthia"], (8_161, 8_161), True),
        (
            ["--url", "postgresql://orthia@db.example/orthia", "--health-port", "9000"],
            (9_000, 9_000),
            True,
        ),
    ],
)
def test_both_nodes_are_watched_as_was_asked_for(
    run: Run, tmp_path: Path, options: list[str], ports: tuple[int, int] | None, audited: bool
) -> None:
    """Probes, metrics and audit log of the proposed backup are those of its live node."""
    words = proposed(run("create", "one", *options).output)
    words[1] = "two"
    assert run(*words, environment=PASSWORD).exit_code == 0
    both = [load(tmp_path / name / "etc" / "broker.xml") for name in ("one", "two")]
    assert [one.health and one.health.port for one in both] == list(ports or (None, None))
    assert [one.audit_log_directory is not None for one in both] == [audited, audited]


def test_a_port_of_no_endpoint_is_refused(run: Run) -> None:
    """Who asks for both is told so."""
    assert run("create", "one", "--no-health", "--health-port", 9_000).exit_code == 64


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("0.0.0.0", socket.gethostname()),  # noqa: S104
        ("::", socket.gethostname()),
        ("::1", "[::1]"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_clients_are_given_what_they_can_connect_to(run: Run, host: str, name: str) -> None:
    """And not the address of everywhere."""
    result = run("create", "live", "--host", host, "--user", "app", "--password", "x")
    assert f"clients are given {name}:61613 and {name}:61614:" in result.output


@pytest.mark.parametrize("url", ["postgresql://orthia@db.example/orthia", "sqlite:///pair.db"])
@pytest.mark.parametrize("access", [["--user", "app", "--password", "x"], ["--allow-anonymous"]])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])  # noqa: S104
def test_the_backup_is_reached_as_its_live_node_is(
    run: Run, tmp_path: Path, url: str, access: list[str], host: str
) -> None:
    """What is printed does not make a backup that clients cannot reach after a takeover."""
    words = proposed(run("create", "one", "--url", url, "--host", host, *access).output)
    words[1] = "two"
    words = ["10.0.0.2" if word == "ADDRESS" else word for word in words]
    assert run(*words, environment={"ORTHIA_PASSWORD": "x"}).exit_code == 0
    one, two = (load(tmp_path / name / "etc" / "broker.xml") for name in ("one", "two"))
    own = host == "10.0.0.1" and url.startswith("postgresql")
    assert two.acceptors[0].host == ("10.0.0.2" if own else one.acceptors[0].host)
    assert two.security_enabled == one.security_enabled


def test_passwords_are_masked_and_the_file_is_private(run: Run, tmp_path: Path) -> None:
    """Neither the database's password nor the user's can be read over a shoulder."""
    url = "postgresql://orthia:hunter2@db/orthia"
    result = run("create", "one", "--url", url, "--user", "alice", "--password", "wonder")
    file = tmp_path / "one" / "etc" / "broker.xml"
    assert result.exit_code == 0, result.output
    assert not {"hunter2", "wonder"} & set(result.output.split())
    assert "hunter2" not in file.read_text() + result.output
    assert "wonder" not in file.read_text() + result.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    settings = load(file)
    assert settings.database_store.jdbc_password is not None
    assert settings.database_store.jdbc_password.reveal() == "hunter2"
    assert settings.security_enabled
    alice = users_of(file)["alice"]
    assert (alice.password.matches("wonder"), set(alice.roles)) == (True, {"amq"})
    for name in ("artemis-users.properties", "artemis-roles.properties"):
        made = file.with_name(name)
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
        assert "wonder" not in made.read_text()


def test_an_existing_instance_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    """Only ``--force`` overwrites what an operator may have changed."""
    run("create", "one")
    file = tmp_path / "one" / "etc" / "broker.xml"
    file.write_text("mine")
    result = run("create", "one")
    assert (result.exit_code, file.read_text()) == (78, "mine")
    assert "--force" in result.stderr
    assert run("create", "one", "--force").exit_code == 0
    assert file.read_text() != "mine"


def test_without_a_word_a_login_is_required_and_its_password_shown_once(
    run: Run, tmp_path: Path
) -> None:
    """Another one each time, and nowhere but in what is printed."""
    result = run("create", "one", "--host", "10.0.0.1")
    assert result.exit_code == 0
    (password,) = re.findall(
        "log in as admin, with the password ([A-Za-z0-9_-]{24})\n", result.stdout
    )
    file = tmp_path / "one" / "etc" / "broker.xml"
    admin = users_of(file)["admin"]
    assert (admin.password.matches(password), set(admin.roles)) == (True, {"amq"})
    assert load(file).security_enabled
    assert not any(password in one.read_text() for one in file.parent.iterdir())
    assert password not in run("create", "two").stdout
    assert run("check", file).exit_code == 0
    assert "permission" not in run("check", file).stderr


def test_no_login_must_be_meant(run: Run, tmp_path: Path) -> None:
    """By a word of its own, which no user can stand beside."""
    assert run("create", "one", "--host", "10.0.0.1", "--allow-anonymous").exit_code == 0
    assert not load(tmp_path / "one" / "etc" / "broker.xml").security_enabled
    assert run("create", "two", "--allow-anonymous", "--user", "ada").exit_code == 64


def test_a_backup_lets_in_whom_its_live_node_does(run: Run, tmp_path: Path) -> None:
    """It draws no password of its own."""
    refused = run("create", "one", "--backup")
    assert refused.exit_code == 64
    assert "give --user NAME, and the password that was shown" in " ".join(refused.stderr.split())
    made = run("create", "one", "--backup", environment=PASSWORD)
    assert made.exit_code == 0
    assert "password" not in made.stdout
    admin = users_of(tmp_path / "one" / "etc" / "broker.xml")["admin"]
    assert admin.password.matches("wonder")


def test_check_shows_the_settings_in_effect(run: Run) -> None:
    """``check`` prints every setting with its unit, and no password."""
    run("create", "one", "--url", "postgresql://orthia:hunter2@db/orthia")
    result = run("check", "one/etc/broker.xml")
    assert result.exit_code == 0
    assert "hunter2" not in result.output
    line = next(one for one in result.stdout.splitlines() if "jdbc-lock-expiration" in one)
    assert line.split() == ["store/database-store/jdbc-lock-expiration", "20000", "ms", "default"]


def test_check_as_json(run: Run) -> None:
    """Programs get the same settings as a list."""
    run("create", "one")
    shown = json.loads(run("check", "one/etc/broker.xml", "--json").stdout)
    assert shown["valid"] is True
    assert {"path", "value", "unit", "is_default"} == shown["settings"][0].keys()


def test_check_of_a_broken_file(run: Run, tmp_path: Path) -> None:
    """A broken file is exit code 78 with the line of each problem, as text and as JSON."""
    run("create", "one")
    file = tmp_path / "one" / "etc" / "broker.xml"
    file.write_text(file.read_text().replace("<name>", "<nmae>").replace("</name>", "</nmae>"))
    result = run("check", file)
    assert (result.exit_code, result.stdout) == (78, "")
    assert f"{file}:" in result.stderr
    assert "nmae" in result.stderr
    shown = json.loads(run("check", file, "--json").stdout)
    assert shown["valid"] is False
    assert "nmae" in " ".join(shown["problems"])


def test_mask_is_readable_by_the_configuration(run: Run, tmp_path: Path) -> None:
    """What ``mask`` prints can stand in a broker.xml."""
    masked = run("mask", "hunter2").stdout.strip()
    file = tmp_path / "broker.xml"
    run("create", "one", "--url", "postgresql://orthia:other@db/orthia")
    text = (tmp_path / "one" / "etc" / "broker.xml").read_text()
    before, _, rest = text.partition("<jdbc-password>")
    file.write_text(f"{before}<jdbc-password>{masked}</{rest.partition('</')[2]}")
    password = load(file).database_store.jdbc_password
    assert password is not None
    assert password.reveal() == "hunter2"


@pytest.mark.parametrize("name", ["KEY=VALUE", "x"])
def test_properties_fill_in_the_file(run: Run, tmp_path: Path, name: str) -> None:
    """-D takes KEY=VALUE and nothing else."""
    run("create", "one")
    file = tmp_path / "one" / "etc" / "broker.xml"
    file.write_text(file.read_text().replace("<name>live</name>", "<name>${KEY:none}</name>"))
    result = run("check", file, "-D", name)
    if "=" in name:
        assert "VALUE" in result.stdout
    else:
        assert result.exit_code == 64


def test_check_refuses_a_locker_that_is_not_installed(run: Run, tmp_path: Path) -> None:
    """It says where the file asks for it, and which lockers there are."""
    run("create", "one")
    file = tmp_path / "one" / "etc" / "broker.xml"
    locker = '<locker xmlns="urn:orthia">\n<custom-locker name="absent"/></locker>'
    file.write_text(file.read_text().replace("</database-store>", f"{locker}</database-store>"))
    line = (
        file.read_text()
        .splitlines()
        .index('<custom-locker name="absent"/></locker></database-store>')
    )
    result = run("check", file)
    assert result.exit_code == 78
    assert f"{file}:{line + 1}: <custom-locker>: no package" in result.stderr
    assert "orthia.lockers; expected one that is installed: " in result.stderr
    assert load(file).name == "live", "tools elsewhere need not have it"


@pytest.mark.parametrize(("user", "password"), [("alice", ""), ("alice", " "), ("", "wonder")])
def test_a_login_without_a_name_or_password_is_not_created(
    run: Run, tmp_path: Path, user: str, password: str
) -> None:
    """Everybody would have it; no file is written."""
    result = run("create", "one", "--user", user, "--password", password)
    assert result.exit_code == ExitCode.USAGE
    assert "--user needs a name and a password that are not empty" in result.output
    assert not (tmp_path / "one").exists()
