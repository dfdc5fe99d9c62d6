"""Database URLs: Artemis' and SQLAlchemy's, and what they never show."""

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.config import ConfigurationError, DatabaseUrl, Dialect
from orthia.config.tls import TlsMode, mysql_tls

_PASSWORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8, max_size=20)


@pytest.mark.parametrize(
    ("text", "dialect", "rendered"),
    [
        (
            "jdbc:postgresql://h:5433/db?user=u&password=p%26w;x",
            Dialect.POSTGRESQL,
            "postgresql+psycopg2://u:p%26w%3Bx@h:5433/db",
        ),
        ("jdbc:postgresql:///db", Dialect.POSTGRESQL, "postgresql+psycopg2://localhost:5432/db"),
        (
            "jdbc:postgresql://[::1]:5433/db",
            Dialect.POSTGRESQL,
            "postgresql+psycopg2://[::1]:5433/db",
        ),
        (
            "jdbc:postgresql://a:1,b/db",
            Dialect.POSTGRESQL,
            "postgresql+psycopg2:///db?host=a%3A1&host=b%3A5432",
        ),
        (
            "jdbc:postgresql://h/db?ssl=true&currentSchema=a, b",
            Dialect.POSTGRESQL,
            "postgresql+psycopg2://h:5432/db?options=-csearch_path%3Da%2Cb&sslmode=verify-full",
        ),
        (
            "jdbc:postgresql://h/db?options=-cx%3D1&currentSchema=a&targetServerType=primary",
            Dialect.POSTGRESQL,
            "postgresql+psycopg2://h:5432/db"
            "?options=-cx%3D1+-csearch_path%3Da&target_session_attrs=read-write",
        ),
        ("postgresql://u:p@h/db", Dialect.POSTGRESQL, "postgresql+psycopg2://u:p@h/db"),
        ("jdbc:mysql://h/db", Dialect.MYSQL, "mysql+pymysql://h:3306/db?charset=utf8mb4"),
        ("jdbc:mariadb://u:p@h/db", Dialect.MYSQL, "mysql+pymysql://u:p@h:3306/db?charset=utf8mb4"),
        (
            "jdbc:mysql://h/db?useSSL=true",
            Dialect.MYSQL,
            "mysql+pymysql://h:3306/db"
            "?charset=utf8mb4&ssl_check_hostname=false&ssl_verify_cert=false",
        ),
        (
            "mariadb+pymysql://h/db?charset=latin1",
            Dialect.MYSQL,
            "mysql+pymysql://h/db?charset=latin1",
        ),
        ("jdbc:sqlite:/var/x.db", Dialect.SQLITE, "sqlite:////var/x.db"),
        ("jdbc:sqlite:file:x.db?journal_mode=WAL", Dialect.SQLITE, "sqlite:///x.db"),
        ("sqlite:///x.db", Dialect.SQLITE, "sqlite:///x.db"),
    ],
)
def test_a_url_is_read_into_sqlalchemys_form(text: str, dialect: Dialect, rendered: str) -> None:
    """Each spelling becomes the URL of the Python driver, translated properties included."""
    url = DatabaseUrl.parse(text)
    assert url.dialect is dialect
    assert url.sqlalchemy_url.render_as_string(hide_password=False) == rendered


def test_properties_of_the_java_driver_are_listed() -> None:
    """What only tunes the Java driver is ignored, and told."""
    url = DatabaseUrl.parse("jdbc:mysql://h/db?cachePrepStmts=true&user=u&characterEncoding=utf8")
    assert url.ignored_properties == ("cachePrepStmts", "characterEncoding")
    assert url.sqlalchemy_url.username == "u"


@pytest.mark.parametrize(
    ("query", "mode", "ca"),
    [
        ("", TlsMode.PREFERRED, None),
        ("sslMode=PREFERRED", TlsMode.PREFERRED, None),
        ("useSSL=false", TlsMode.DISABLED, None),
        ("useSSL=false&requireSSL=true", TlsMode.DISABLED, None),
        ("sslMode=DISABLED", TlsMode.DISABLED, None),
        ("sslMode=disable", TlsMode.DISABLED, None),
        ("ssl_disabled=true", TlsMode.DISABLED, None),
        ("ssl_disabled=false", TlsMode.PREFERRED, None),
        ("useSSL=true&requireSSL=true", TlsMode.REQUIRED, None),
        ("requireSSL=false", TlsMode.PREFERRED, None),
        ("useSSL=true&serverSslCert=/ca.pem", TlsMode.VERIFY_IDENTITY, "/ca.pem"),
        ("requireSSL=true&ssl_ca=/ca.pem", TlsMode.VERIFY_IDENTITY, "/ca.pem"),
        (
            "useSSL=true&trustServerCertificate=true&serverSslCert=/ca.pem",
            TlsMode.REQUIRED,
            "/ca.pem",
        ),
        ("sslMode=REQUIRED&serverSslCert=/ca.pem", TlsMode.REQUIRED, "/ca.pem"),
        ("sslMode=trust", TlsMode.REQUIRED, None),
        ("useSSL=true&verifyServerCertificate=true", TlsMode.VERIFY_CA, None),
        ("sslMode=VERIFY_CA&serverSslCert=/ca.pem", TlsMode.VERIFY_CA, "/ca.pem"),
        ("ssl_ca=/ca.pem&ssl_check_hostname=false", TlsMode.VERIFY_CA, "/ca.pem"),
        ("sslMode=VERIFY_IDENTITY", TlsMode.VERIFY_IDENTITY, None),
        ("sslMode=verify-full&serverSslCert=/ca.pem", TlsMode.VERIFY_IDENTITY, "/ca.pem"),
        ("ssl_ca=/ca.pem", TlsMode.VERIFY_IDENTITY, "/ca.pem"),
        ("ssl_ca=/ca.pem&ssl_verify_identity=true", TlsMode.VERIFY_IDENTITY, "/ca.pem"),
    ],
)
@pytest.mark.parametrize("scheme", ["jdbc:mysql", "jdbc:mariadb", "mysql", "mysql+pymysql"])
def test_a_url_asks_for_tls(scheme: str, query: str, mode: TlsMode, ca: str | None) -> None:
    """Connector/J's words, MariaDB's and PyMySQL's mean the same in every form of a URL."""
    url = DatabaseUrl.parse(f"{scheme}://h/db?{query}")
    tls = mysql_tls(url.sqlalchemy_url.query)
    assert (tls.mode, tls.ca) == (mode, ca)
    assert mysql_tls(DatabaseUrl.parse(url.display).sqlalchemy_url.query) == tls
    assert bool(url.warnings) == (mode is TlsMode.REQUIRED)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("useSSL=yes", "useSSL of the URL is neither true nor false"),
        ("sslMode=SOMETIMES", "sslMode of the URL is not known.*VERIFY_IDENTITY"),
        ("sslMode=DISABLED&serverSslCert=/ca.pem", "turns TLS off.*and gives a certificate"),
        ("ssl_verify_cert=perhaps", "ssl_verify_cert of the URL is neither true nor false"),
        ("ssl_key=/key.pem", "ssl_key of the URL goes with ssl_cert"),
        ("useSLL=false", "'useSLL' of the URL is not known; did you mean 'useSSL'"),
        ("trustCertificateKeyStoreUrl=file:/x", "a Java key store, .*serverSslCert=FILE"),
        ("password=x&useSLL=false", "property 2 of the URL is not known"),
    ],
)
@pytest.mark.parametrize("scheme", ["jdbc:mysql", "mysql"])
def test_a_url_that_asks_for_strange_tls_is_refused(scheme: str, query: str, said: str) -> None:
    """What cannot be meant, or is not known, is named."""
    with pytest.raises(ConfigurationError, match=said):
        DatabaseUrl.parse(f"{scheme}://h/db?{query}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jdbc:postgresql://h/db?sslmode=full", "sslmode of the URL is not known.*verify-full"),
        ("postgresql://h/db?sslmode=VERIFY-FULL", "sslmode of the URL is not known.*verify-full"),
        ("jdbc:postgresql://h/db?ssl=yes", "ssl of the URL is neither true nor false"),
    ],
)
def test_a_url_of_postgresql_with_strange_tls_is_refused(text: str, said: str) -> None:
    """A node would wait for a server that answers, or go on without what was meant."""
    with pytest.raises(ConfigurationError, match=said):
        DatabaseUrl.parse(text)


def test_a_relative_sqlite_path_starts_where_it_is_told() -> None:
    """The file does not depend on the directory a node is started in."""
    relative = DatabaseUrl.parse("jdbc:sqlite:data/x.db")
    assert relative.relative_to(Path("/srv/a")).sqlite_path == Path("/srv/a/data/x.db")
    absolute = DatabaseUrl.parse("jdbc:sqlite:/x.db")
    assert absolute.relative_to(Path("/srv/a")) == absolute
    assert DatabaseUrl.parse("jdbc:mysql://h/db").sqlite_path is None


@pytest.mark.parametrize(
    "template",
    [
        "jdbc:postgresql://h/db?user=u&password={}",
        "jdbc:postgresql://u:{}@h/db",
        "jdbc:postgresql://h/db?sslpassword={}",
        "jdbc:mysql://h/db?password={}",
        "postgresql://u:{}@h/db",
        "postgresql://u@h/db?password={}",
        "mysql+pymysql://u:{}@h/db?ssl_key_password={}",
    ],
)
@given(password=_PASSWORDS)
def test_a_url_never_shows_its_password(template: str, password: str) -> None:
    """str, repr and display of a URL hide the password wherever it stands."""
    password = f"Zz9{password}"
    url = DatabaseUrl.parse(template.format(quote(password), quote(password)))
    for shown in (str(url), repr(url), url.display, f"{url}"):
        assert password not in shown


@pytest.mark.parametrize(
    "template",
    [
        "{}",
        "jdbc:{}",
        "jdbc:postgresql:{}",
        "jdbc:postgresql://u:{}@h:port/db",
        "jdbc:postgresql://u:{}@h",
        "jdbc:postgresql://h/db?passwort={}",
        "jdbc:postgresql://h/db?password=x&{}",
        "jdbc:mysql://u:{}@a,b/db",
        "jdbc:mysql://h/db?password={}&sslMode=SOMETIMES",
        "mysql://h/db?password={}&sslMode=SOMETIMES",
        "mysql://h/db?password=x&{}=y",
        "jdbc:derby:x;password={}",
        "postgresql://u:{}@h:port/db",
        "postgresql://u:{}@[::1/db",
        "postgresql://u:{}@h:99999/db",
        "postgresql+asyncpg://u:{}@h/db",
        "oracle://u:{}@h/db",
        "u:{}@h/db",
    ],
)
@given(password=_PASSWORDS)
def test_an_error_never_shows_the_password(template: str, password: str) -> None:
    """A URL that cannot be used is refused without a word of its password."""
    password = f"Zz9{password}"
    with pytest.raises(ConfigurationError) as caught:
        DatabaseUrl.parse(template.format(password))
    told: BaseException | None = caught.value
    while told is not None:
        assert password.lower() not in str(told).lower()
        told = None if told.__suppress_context__ else told.__context__


@pytest.mark.parametrize("mode", ["replication", "loadbalance"])
def test_several_servers_of_mysql_are_refused_by_name(mode: str) -> None:
    """The driver chooses none, so the primary's URL is asked for; a password is not shown."""
    with pytest.raises(ConfigurationError, match="write the primary's URL") as refused:
        DatabaseUrl.parse(f"jdbc:mysql:{mode}://db1,db2/orders?user=u&password=hunter2")
    assert f"jdbc:mysql:{mode}://" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_derby_is_told_about_sqlite() -> None:
    """The embedded database of Artemis is answered with ours."""
    with pytest.raises(ConfigurationError, match="SQLite"):
        DatabaseUrl.parse("jdbc:derby:data/derby;create=true")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:{}@h/db",
        "mysql://u:{}@h/db",
        "postgresql://u:12/{}@h/db",
        "jdbc:postgresql://u:12/{}@h/db",
    ],
)
def test_a_password_that_ends_too_early_is_refused_with_the_remedy(url: str) -> None:
    """Half of it was taken for the host, and shown wherever the URL is."""
    with pytest.raises(ConfigurationError, match="%40") as raised:
        DatabaseUrl.parse(url.format("left@right"))
    assert "left" not in str(raised.value)
    assert "right" not in str(raised.value)


def test_an_encoded_password_and_a_jdbc_one_with_an_at_are_read() -> None:
    """As the message advises; JDBC's credentials end at the last one."""
    for url in ("postgresql://u:p%40ss@h/db", "jdbc:postgresql://u:p@ss@h/db"):
        parsed = DatabaseUrl.parse(url)
        assert parsed.sqlalchemy_url.password == "p@ss"
        assert "ss@" not in str(parsed)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("foo://h/x", "'foo' is not a database Orthia can use;"),
        ("jdbc:informix:x", "'informix' is not a database"),
        ("postgres://h/x", "did you mean 'postgresql'"),
        ("postgresql+asyncpg://h/x", "write postgresql://"),
        ("/srv/orthia.db", "names no database"),
        ("hunter2:x@h/db", "names no database"),
        ("jdbc:hunter2", "names no database"),
    ],
)
def test_a_scheme_that_is_not_known_is_named(url: str, named: str) -> None:
    """A typing error in it is seen at once; what may be a password is not shown."""
    with pytest.raises(ConfigurationError) as raised:
        DatabaseUrl.parse(url)
    assert named in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "jdbc:postgresql://h/db?user=u&password=",
        "jdbc:postgresql://h/db?password&user=u",
        "jdbc:mysql://u:@h/db",
        "postgresql://u:@h/db",
        "mysql://h/db?user=u&password=",
    ],
)
def test_an_empty_password_is_refused(text: str) -> None:
    """It was to come from a variable; a database that asks for none needs no word of it."""
    with pytest.raises(ConfigurationError, match="in the URL the password is empty"):
        DatabaseUrl.parse(text)
