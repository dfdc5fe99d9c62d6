"""Passwords are shown nowhere, files are their owner's, and what is open to all is told."""

import os
import subprocess
from pathlib import Path, PosixPath

import psycopg2
import pymysql
import pytest

from orthia.broker.cli.privacy import private_files
from orthia.config import load
from orthia.config.document import Document
from orthia.config.exposure import readable_by_others, readable_secrets
from orthia.config.rendering import EffectiveSetting, render
from orthia.config.secrets import KEY_VARIABLE, mask, unmask
from orthia.config.settings import Role
from orthia.config.substitution import Properties
from orthia.database.errors import PermanentStoreError, classify
from tests.cli.conftest import PROGRAM, Run, all_commands, finished, users_of
from tests.process.nodes import NodeProcess
from tests.support.broker_xml import broker_xml
from tests.support.servers import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

MARKER = "m4rk3r"
"""Stands wherever a secret can be."""
EVERYWHERE = f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <name>a</name>
  <cluster-password>{MARKER}</cluster-password>
  <password-codec>org.apache.activemq.artemis.utils.DefaultSensitiveStringCodec;key={MARKER}</password-codec>
  <store><database-store>
    <jdbc-connection-url>jdbc:postgresql://127.0.0.1:1/db?user=u&amp;password={MARKER}</jdbc-connection-url>
    <jdbc-user>u</jdbc-user>
    <jdbc-password>${{FROM_OUTSIDE}}</jdbc-password>
    <data-source-properties>
      <data-source-property key="password" value="{MARKER}"/>
      <data-source-property key="maxTotal" value="8"/>
    </data-source-properties>
    <locker xmlns="urn:orthia"><custom-locker name="not-installed">
      {{properties}}
    </custom-locker></locker>
  </database-store></store>
  <acceptors>
    <acceptor name="s">tcp://127.0.0.1:0?protocols=STOMP;keyStorePassword={MARKER};trustStorePassword={MARKER}</acceptor>
  </acceptors>
  <users xmlns="urn:orthia"><user name="ada" password="{MARKER}" roles="amq"/></users>
</core></configuration>
"""
SECRET_NAMES = (
    "password",
    "Passcode",
    "passphrase",
    "dbPasswd",
    "pwd",
    "secret",
    "clientSecret",
    "authToken",
    "credentials",
    "api-key",
    "accessKey",
    "private_key",
    "auth",
)


def everywhere(path: Path) -> Path:
    """Write a file with the marker in every place that can have a secret."""
    properties = "".join(f'<property key="{name}" value="{MARKER}"/>' for name in SECRET_NAMES)
    path.write_text(EVERYWHERE.replace("{properties}", properties))
    path.chmod(0o600)
    return path


NODES = {("run",), ("live",), ("backup",)}
"""Commands that take signals and their process for themselves."""
WITH_CONFIG = [
    words
    for words, command in all_commands()
    if words not in NODES and any("--config" in parameter.opts for parameter in command.params)
]


@pytest.mark.parametrize("words", WITH_CONFIG, ids=" ".join)
def test_no_command_shows_a_secret(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Neither in what it prints nor in what it says of a store that it does not reach."""
    file = everywhere(tmp_path / "broker.xml")
    environment = {"FROM_OUTSIDE": MARKER, "ORTHIA_PASSWORD": MARKER}
    for arguments in (
        ["--config", str(file)],
        ["--config", str(file), "-D", f"FROM_OUTSIDE={MARKER}"],
        ["--url", f"postgresql://u:{MARKER}@127.0.0.1:1/db?sslpassword={MARKER}"],
        ["--config", str(file), "--no-such-option"],
    ):
        result = run(*words, *arguments, environment=environment)
        assert MARKER not in result.output, arguments
        assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_check_shows_no_secret_of_a_locker(run: Run, tmp_path: Path, json: list[str]) -> None:
    """Neither where the locker is not installed nor in the list of what is in effect."""
    file = everywhere(tmp_path / "broker.xml")
    environment = {"FROM_OUTSIDE": MARKER}
    assert MARKER not in run("check", file, *json, environment=environment).output
    shown = {one.path: one.value for one in _rendered(file)}
    for name in SECRET_NAMES:
        path = f"core/store/database-store/locker/custom-locker/property[{name}]"
        assert shown[path] == "****"
    assert MARKER not in repr(shown)


def _rendered(file: Path) -> list[EffectiveSetting]:

    settings = load(file, system_properties={"FROM_OUTSIDE": MARKER})
    assert MARKER not in repr(settings)
    return render(settings)


@pytest.mark.parametrize("words", sorted(NODES), ids=" ".join)
def test_no_node_logs_a_secret(tmp_path: Path, words: tuple[str, ...]) -> None:
    """One that has to wait for its database says why, and nothing that it should keep to itself."""
    file = everywhere(tmp_path / "broker.xml")
    log = tmp_path / "log"
    with log.open("wb") as output:
        node = subprocess.Popen(
            [*PROGRAM, *words, "--config", str(file), "--verbose"],
            env={**os.environ, "FROM_OUTSIDE": MARKER},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        )
    try:
        wait_until(
            lambda: "Connection refused" in log.read_text() or node.poll() is not None,
            what="the node says that there is no database",
        )
        assert "Connection refused" in log.read_text()
    finally:
        node.kill()
        node.wait(120)
    assert MARKER not in log.read_text()


# --- passwords that are given


def test_a_password_can_be_piped_into_mask() -> None:
    """Without a terminal its first line is the password, spaces and all; nothing else is read."""
    result = finished("mask", given=b" hunter2 \r\nmore\n")
    assert unmask(result.stdout.decode().strip()).reveal() == " hunter2 "
    assert b"warning" not in result.stderr.lower()


def test_mask_without_a_terminal_and_without_input_says_so() -> None:
    """It does not wait, and does not mask nothing."""
    result = finished("mask")
    assert result.returncode == 78
    assert b"no password was given" in result.stderr
    assert not result.stdout


def test_create_takes_a_password_from_its_input(tmp_path: Path) -> None:
    """As mask does: in a script no argument is needed."""
    done = finished("create", "one", "--user", "ada", given=b"hunter2\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert users_of(tmp_path / "one" / "etc" / "broker.xml")["ada"].password.matches("hunter2")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mask", "hunter2"], "the argument shows a password"),
        (["create", "one", "--user", "a", "--password", "hunter2"], "set ORTHIA_PASSWORD"),
        (["create", "one", "--url", "postgresql://u:hunter2@h/d"], "set ORTHIA_JDBC_PASSWORD"),
        (
            ["db", "ddl", "--url", "postgresql://h/d", "--jdbc-password", "hunter2"],
            "--jdbc-pass",
        ),
    ],
)
def test_a_password_on_the_command_line_is_warned_of(
    run: Run, arguments: list[str], told: str
) -> None:
    """Other users see it there; the warning says what to do instead, and not the password."""
    result = run(*arguments)
    assert result.exit_code == 0
    assert "shows a password to everybody on this machine" in result.stderr
    assert told in result.stderr
    assert "hunter2" not in result.output


def test_a_password_in_the_environment_is_not_warned_of(run: Run, tmp_path: Path) -> None:
    """That is where it belongs."""
    environment = {"ORTHIA_PASSWORD": "hunter2", "ORTHIA_JDBC_PASSWORD": "hunter3"}
    url = "postgresql://u@h/d"
    result = run("create", "one", "--user", "ada", "--url", url, environment=environment)
    assert result.exit_code == 0
    assert "warning" not in result.stderr
    settings = load(tmp_path / "one" / "etc" / "broker.xml")
    assert users_of(tmp_path / "one" / "etc" / "broker.xml")["ada"].password.matches("hunter2")
    assert settings.database_store.jdbc_password is not None
    assert settings.database_store.jdbc_password.reveal() == "hunter3"


def test_create_masks_with_the_key_that_is_configured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the public one: without the key the file cannot be read."""
    masked = mask("hunter2", "a key of our own")
    environment = {KEY_VARIABLE: "a key of our own", "ORTHIA_PASSWORD": masked}
    url = "postgresql://u@h/d"
    environment["ORTHIA_JDBC_PASSWORD"] = "hunter3"
    result = run("create", "one", "--user", "ada", "--url", url, environment=environment)
    assert result.exit_code == 0, result.output
    text = (tmp_path / "one" / "etc" / "broker.xml").read_text()
    assert mask("hunter3", "a key of our own") in text
    assert mask("hunter3") not in text
    monkeypatch.setenv(KEY_VARIABLE, "a key of our own")
    assert users_of(tmp_path / "one" / "etc" / "broker.xml")["ada"].password.matches("hunter2")


@pytest.mark.parametrize(
    "text",
    [
        'connection to server at "h", port 5432 failed: fe_sendauth: no password supplied',
        "Access denied for user 'u'@'h' (using password: NO)",
    ],
)
def test_a_missing_password_names_where_to_give_it(text: str) -> None:
    """The server's words alone do not say how Orthia gets one."""
    error: Exception = psycopg2.OperationalError(text)
    if "using password" in text:
        error = pymysql.OperationalError(1045, text)
    found = classify(error)
    assert isinstance(found, PermanentStoreError)
    assert "ORTHIA_JDBC_PASSWORD" in str(found)


# --- files


def others_may(path: Path) -> list[str]:
    """Return what below ``path`` others than its owner can use."""
    return [str(one) for one in [path, *path.rglob("*")] if one.lstat().st_mode & 0o077]


OPEN = ("/bin/sh", "-c", 'umask 022; exec "$@"', "sh")
"""Runs a command as most shells do."""


def test_who_runs_a_command_within_another_program_keeps_its_own_umask() -> None:
    """Files are private while the command runs, and no longer."""

    @private_files
    def command() -> int:
        return _umask()

    before = _umask()
    assert command() == 0o077
    assert _umask() == before


def _umask() -> int:
    """Return the umask, which can only be asked by setting it."""
    found = os.umask(0o077)
    os.umask(found)
    return found


@pytest.mark.parametrize("journal", [[], ["--nio"]])
def test_what_create_and_a_node_make_is_their_owners(tmp_path: Path, journal: list[str]) -> None:
    """Directories, store, locks and logs, whatever the umask of who starts them."""
    created = subprocess.run(
        [
            *(*OPEN, *PROGRAM, "create", "one", "--port", str(free_port())),
            *("--health-port", str(free_port()), *journal),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert created.stdout.startswith("created")
    assert others_may(tmp_path / "one") == []
    file = tmp_path / "one" / "etc" / "broker.xml"
    node = _RunNode(Role.LIVE, "", tmp_path, "live", prefix=OPEN, port=load(file).acceptors[0].port)
    try:
        node.start().wait_serving().wait_log("AMQ221007")
        assert any((tmp_path / "one" / "data").iterdir())
        assert others_may(tmp_path / "one") == []
        assert node.terminate() == 0
    finally:
        node.end()


class _RunNode(NodeProcess):
    """``orthia run`` on a file."""

    def command(self) -> list[str]:
        """Return how it is started."""
        return [*self.prefix, *PROGRAM, "run", str(self.directory / "one" / "etc" / "broker.xml")]


def _warnings(file: Path) -> list[str]:
    return [one for one in load(file).warnings if "can read it" in one]


PLAIN = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<security-enabled>{enabled}</security-enabled>
<acceptors><acceptor name="s">tcp://{host}:0?protocols=STOMP</acceptor></acceptors>
<users xmlns="urn:orthia"><user name="ada" password="{password}" roles="amq"/></users>
<health xmlns="urn:orthia"><host>{host}</host><port>0</port></health>
</core></configuration>"""


def _plain(
    path: Path, given: str = "${HOME}", host: str = "127.0.0.1", enabled: str = "true"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PLAIN.format(password=given, host=host, enabled=enabled))
    return path


@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o644, True), (0o604, True)])
def test_a_file_with_passwords_that_all_can_read_is_told_of(
    tmp_path: Path, mode: int, told: bool
) -> None:
    """By name, with the command that ends it."""
    file = _plain(tmp_path / "broker.xml", mask("hunter2"))
    file.chmod(mode)
    found = _warnings(file)
    assert bool(found) is told
    for one in found:
        assert f"everybody on this machine can read it: chmod 600 {file}" in one


def test_a_file_whose_passwords_come_from_outside_may_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none of them; a default in the file would be one."""
    monkeypatch.setenv("ADA", "hunter2")
    file = _plain(tmp_path / "broker.xml", "${ADA}")
    file.chmod(0o644)
    assert _warnings(file) == []
    _plain(file, "${ADA:hunter2}")
    assert len(_warnings(file)) == 1


@pytest.mark.parametrize(
    "url", ["jdbc:postgresql://u:hunter2@db/x", "jdbc:mysql://db/x?password=h"]
)
@pytest.mark.parametrize(
    "where",
    [
        "<store><database-store><jdbc-connection-url>{}</jdbc-connection-url></database-store></store>",
        '<store><file-store><locker xmlns="urn:orthia">'
        '<lease-database-locker jdbcConnectionUrl="{}"/></locker></file-store></store>',
    ],
)
def test_a_password_in_a_url_is_one(tmp_path: Path, url: str, where: str) -> None:
    """Wherever in the file the URL is."""
    file = broker_xml(tmp_path, where.format(url))
    file.chmod(0o644)
    assert len(readable_secrets(Document(file, Properties({}, {})))) == 1
    file.write_text(file.read_text().replace("u:hunter2@", "").replace("password=h", "x=y"))
    assert readable_secrets(Document(file, Properties({}, {}))) == []


def test_an_environment_file_that_all_can_read_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the systemd unit gives an instance of this name."""
    monkeypatch.setattr("orthia.config.exposure.ENVIRONMENT_DIRECTORY", tmp_path)
    monkeypatch.setenv("ADA", "hunter2")
    file = _plain(tmp_path / "orthia" / "etc" / "broker.xml", "${ADA}")
    environment = tmp_path / "orthia.env"
    environment.write_text("# of ada\nADA_PASSWORD=hunter2\n")
    environment.chmod(0o640 if os.geteuid() else 0o644)
    (told,) = _warnings(file)
    assert str(environment) in told
    assert "chmod 600" in told
    environment.chmod(0o600)
    assert _warnings(file) == []
    environment.chmod(0o644)
    environment.write_text("TZ=UTC\n")
    assert _warnings(file) == []


def test_a_group_that_has_to_read_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody else owns the file its group is how the node reads it."""
    file = _plain(tmp_path / "broker.xml", "hunter2")
    file.chmod(0o640)
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert _warnings(file) == []


@pytest.mark.parametrize(
    ("owner", "node", "told"), [(1_000, 1_000, True), (0, 0, False), (0, 1_000, False)]
)
def test_a_group_is_told_of_where_the_node_owns_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, node: int, told: bool
) -> None:
    """It need not read what its owner reads; of root's files others than root have to read some."""

    class Owned(PosixPath):
        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
            return os.stat_result((0o100640, 0, 0, 1, owner, owner, 0, 0, 0, 0))

    monkeypatch.setattr(os, "geteuid", lambda: node)
    found = list(readable_by_others(Owned(tmp_path / "broker.xml")))
    assert [f"its group can read it: chmod 600 {tmp_path}" in one for one in found] == [True] * told


# --- ports


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.7"])  # noqa: S104 - never opened
def test_what_is_open_to_all_is_told_by_check(run: Run, tmp_path: Path, host: str) -> None:
    """An acceptor without security, and the health endpoint."""
    file = _plain(tmp_path / "broker.xml", host=host, enabled="false")
    text = run("check", file).stderr
    assert "acceptor 's' listens on" in text
    assert "security is off: anybody" in text
    assert "the health endpoint listens on" in text
    secured = run("check", _plain(file, host=host)).stderr
    assert "security is off" not in secured
    assert "the health endpoint listens on" in secured
    assert "without TLS: whoever is on the way reads tokens and the passwords of" in secured
    local = run("check", _plain(file, host="127.0.0.1", enabled="false")).stderr
    assert "listens on" not in local


def test_what_is_open_to_every_page_is_told_by_check(run: Run, tmp_path: Path) -> None:
    """Where nobody logs in: a page reaches what its visitor's browser reaches."""
    file = _plain(tmp_path / "broker.xml", host="127.0.0.1", enabled="false")
    assert "webSocketAllowedOrigins" not in run("check", file).stderr
    file.write_text(file.read_text().replace("protocols=STOMP", "webSocketAllowedOrigins=*"))
    assert "acceptor 's' has webSocketAllowedOrigins=* and security is off" in (
        run("check", file).stderr
    )


def test_what_is_open_to_all_is_told_by_run(tmp_path: Path) -> None:
    """In the log, at every start."""
    port = free_port()
    file = tmp_path / "one" / "etc" / "broker.xml"
    _plain(file, host="0.0.0.0", enabled="false")  # noqa: S104 - that is what is warned of
    file.write_text(file.read_text().replace("0.0.0.0:0?", f"0.0.0.0:{port}?"))
    node = _RunNode(Role.LIVE, "", tmp_path, "live", port=port)
    try:
        node.start().wait_serving()
        node.wait_log("acceptor 's' listens on 0.0.0.0 and security is off: anybody")
        node.wait_log("the health endpoint listens on 0.0.0.0 without a <token>")
    finally:
        node.end()
