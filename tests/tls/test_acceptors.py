"""Acceptors with ``sslEnabled``: real certificates, Python's ssl and stomp.py as clients."""

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import stomp
from cryptography.hazmat.primitives.serialization import Encoding

from orthia.broker.tls.certificates import REMIND_SECONDS, Certificates
from orthia.broker.tls.errors import TlsUnusable
from orthia.config.acceptors import parse_acceptor
from orthia.config.settings import Settings
from tests.core.support import SETTINGS
from tests.core.test_server import (
    CONNECT,
    ServerUnderTest,
    read_to_the_end,
    read_until,
    serving,
)
from tests.support.certificates import Authority
from tests.support.stomp_py import Listener
from tests.support.waiting import wait_until


def with_tls(parameters: str) -> Settings:
    """Return settings with one acceptor on a free port of this machine."""
    url = f"tcp://127.0.0.1:0?sslEnabled=true;{parameters}"
    return replace(SETTINGS, acceptors=(parse_acceptor("tls", url).settings,))


def trusting(authority: Authority) -> ssl.SSLContext:
    """Return what a client of the authority speaks TLS with."""
    pem = authority.certificate.public_bytes(Encoding.PEM).decode()
    return ssl.create_default_context(cadata=pem)


@contextmanager
def secured(
    server: ServerUnderTest, context: ssl.SSLContext, name: str = "localhost"
) -> Iterator[ssl.SSLSocket]:
    """Connect by TLS."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=120) as plain,
        context.wrap_socket(plain, server_hostname=name) as client,
    ):
        yield client


def test_an_ordinary_client_sends_and_receives(authority: Authority, tmp_path: Path) -> None:
    """stomp.py by TLS, verifying who it speaks to; a large message, too."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        client = stomp.Connection12([("localhost", server.port)])
        client.set_ssl(for_hosts=[("localhost", server.port)], ca_certs=str(tmp_path / "ca.pem"))
        listener = Listener()
        client.set_listener("", listener)
        client.connect(wait=True)
        client.subscribe("/queue/q", "1")
        bodies = ["short", 1_000_000 * "x"]
        for number, body in enumerate(bodies):
            client.send("/queue/q", body, receipt=str(number))
        expected = [*(("MESSAGE", body) for body in bodies), ("RECEIPT", "0"), ("RECEIPT", "1")]
        wait_until(
            lambda: sorted(listener.seen) == sorted(expected), what="both came, and are confirmed"
        )
        client.disconnect()
        wait_until(lambda: server.connections == 0, what="the connection is forgotten")


def test_an_error_is_read_whole_before_the_connection_closes(
    authority: Authority, tmp_path: Path
) -> None:
    """The client learns why, then sees the orderly end of TLS, and of the connection."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with (
        serving(with_tls(f"keyStorePath={store}")) as server,
        secured(server, trusting(authority)) as client,
    ):
        client.sendall(CONNECT)
        read_until(client, b"\0")
        client.sendall(b"NONSENSE\n\n\0" + 50_000 * b"more")
        assert b"unknown command 'NONSENSE'" in read_to_the_end(client)


def test_who_speaks_no_tls_is_told_in_the_clear(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """STOMP by an ERROR, HTTP by its own answer; one line in the log."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        for sent, answer in ((CONNECT, b"ERROR\n"), (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400")):
            with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
                client.sendall(sent)
                told = read_to_the_end(client)
                assert told.startswith(answer)
                assert b"sslEnabled=true: connect by TLS" in told
        wait_until(lambda: server.connections == 0, what="both are forgotten")
        assert server.refused == ["tls", "tls"]
    assert [one for one in caplog.messages if "not of TLS" in one] == [
        "a client at 127.0.0.1 was refused: the first bytes are not of TLS, and this acceptor has"
        " sslEnabled=true: connect by TLS (acceptor 'tls')"
    ]


def test_a_client_that_does_not_trust_the_certificate_is_told_of(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what it says OpenSSL has a name; the log has what it means."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        with (
            pytest.raises(ssl.SSLCertVerificationError),
            secured(server, ssl.create_default_context()),
        ):
            pass
        wait_until(lambda: server.refused == ["tls"], what="it is refused")
    (line,) = [one for one in caplog.messages if "its TLS handshake failed" in one]
    assert "alert unknown ca; the client does not trust who signed" in line


def shown(server: ServerUnderTest, context: ssl.SSLContext) -> int:
    """Return the number of the certificate that a new client is shown."""
    with secured(server, context) as client:
        found = client.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def test_a_new_certificate_is_shown_and_clients_stay(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be used is told of once, and what was shown is shown on."""
    now = datetime.now(UTC)
    old, new = authority.sign(), authority.sign()
    store = old.write_pem(tmp_path / "broker.pem")
    with (
        serving(with_tls(f"keyStorePath={store};sslAutoReload=true")) as server,
        secured(server, trusting(authority)) as client,
    ):
        client.sendall(CONNECT)
        read_until(client, b"\0")
        store.write_text("nothing of the kind")
        for _ in range(4):
            server.certificates.look(now, 0.0)
        assert [one for one in caplog.messages if "cannot be used: it is not" in one] == [
            f"acceptor 'tls': keyStorePath={store} cannot be used: it is not PEM or PKCS12;"
            " keeping the previous certificate"
        ]
        assert shown(server, trusting(authority)) == old.certificate.serial_number
        new.write_pem(store)
        server.certificates.look(now, 0.0)
        assert shown(server, trusting(authority)) == old.certificate.serial_number
        server.certificates.look(now, 0.0)
        assert shown(server, trusting(authority)) == new.certificate.serial_number
        client.sendall(b"SEND\ndestination:/queue/q\nreceipt:r\n\n\0")
        assert b"receipt-id:r\n" in read_until(client, b"\0")


def test_no_file_ends_the_thread_that_looks(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever reading it raises; without memory alone the node is to end."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    certificates = Certificates(with_tls(f"keyStorePath={store};sslAutoReload=true").acceptors)
    certificates.load()
    shown_before = certificates.context("tls")
    error: list[Exception] = [RuntimeError("unforeseen")]

    def fail(_name: str, _tls: object) -> None:
        raise error[0]

    monkeypatch.setattr("orthia.broker.tls.certificates.load_acceptor", fail)
    store.write_text("another")
    for _ in range(2):
        certificates.look(datetime.now(UTC), 0.0)
    assert caplog.messages[-1] == (
        "acceptor 'tls': RuntimeError: unforeseen; keeping the previous certificate"
    )
    assert certificates.context("tls") is shown_before
    error[0] = MemoryError()
    store.write_text("yet another")
    certificates.look(datetime.now(UTC), 0.0)
    with pytest.raises(MemoryError):
        certificates.look(datetime.now(UTC), 0.0)


def test_what_could_not_be_read_is_read_again_until_it_can(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although the file is as it was; each reason is told once."""
    now = datetime.now(UTC)
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    certificates = Certificates(with_tls(f"keyStorePath={store};sslAutoReload=true").acceptors)
    certificates.load()
    shown_before = certificates.context("tls")
    # Of another length: the times may be as they were.
    authority.sign(subject=(("CN", "another server"),)).write_pem(store)
    reason = "Too many open files"

    def fail(_name: str, _tls: object) -> None:
        raise TlsUnusable(f"keyStorePath={store} cannot be used: {reason}")

    with monkeypatch.context() as patched:
        patched.setattr("orthia.broker.tls.certificates.load_acceptor", fail)
        for _ in range(4):
            certificates.look(now, 0.0)
        reason = "Input/output error"
        for _ in range(2):
            certificates.look(now, 0.0)
        certificates.load()  # as a backup that takes over does
    assert [one for one in caplog.messages if "cannot be used" in one] == [
        f"acceptor 'tls': keyStorePath={store} cannot be used: {why}; keeping the previous"
        " certificate"
        for why in ("Too many open files", "Input/output error")
    ]
    assert certificates.context("tls") is shown_before
    for _ in range(2):
        certificates.look(now, 0.0)
    shown_now = certificates.context("tls")
    assert shown_now is not shown_before
    certificates.look(now, 0.0)
    assert certificates.context("tls") is shown_now


def test_rights_that_are_given_are_a_change(authority: Authority, tmp_path: Path) -> None:
    """What is in the file, its size and the time it was written are as they were."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    certificates = Certificates(with_tls(f"keyStorePath={store};sslAutoReload=true").acceptors)
    certificates.load()
    shown_before, before = certificates.context("tls"), store.stat().st_ctime_ns

    def changed_at() -> int:
        store.chmod(0o600)
        return store.stat().st_ctime_ns

    # The clock that files have goes in steps: the time is another one once a step is over.
    wait_until(lambda: changed_at() > before, what="the time is another")
    for _ in range(2):
        certificates.look(datetime.now(UTC), 0.0)
    assert certificates.context("tls") is not shown_before


def test_a_pemcfg_may_name_what_no_file_is_called(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be used, and the certificate there was is shown on."""
    certificate, key = authority.sign().write_apart(tmp_path / "broker.crt")
    store = tmp_path / "broker.pemcfg"
    store.write_text(f"source.cert={certificate}\nsource.key={key}\n")
    certificates = Certificates(
        with_tls(f"keyStorePath={store};keyStoreType=PEMCFG;sslAutoReload=true").acceptors
    )
    certificates.load()
    store.write_text("source.cert=a\0b\n")
    for _ in range(2):
        certificates.look(datetime.now(UTC), 0.0)
    assert f"keyStorePath={store} cannot be used" in caplog.messages[-1]


def test_without_sslautoreload_files_are_left_alone(authority: Authority, tmp_path: Path) -> None:
    """Until the node starts, or takes over, again."""
    old, new = authority.sign(), authority.sign()
    store = old.write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        new.write_pem(store)
        for _ in range(3):
            server.certificates.look(datetime.now(UTC), 0.0)
        assert shown(server, trusting(authority)) == old.certificate.serial_number
        server.certificates.load()
        assert shown(server, trusting(authority)) == new.certificate.serial_number


@pytest.mark.parametrize(
    ("days", "level", "text"),
    [
        (31.0, None, ""),
        (29.5, logging.WARNING, "expires in 29 days, on "),
        (0.5, logging.WARNING, "expires within two days, on "),
        (-0.5, logging.ERROR, "has expired on "),
        (201.0, logging.ERROR, "is not valid before "),
    ],
)
def test_the_end_of_a_certificate_is_told_once_a_day(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    days: float,
    level: int | None,
    text: str,
) -> None:
    """From thirty days before, by which acceptor shows it."""
    store = authority.sign(days=days).write_pem(tmp_path / "broker.pem")
    certificates = Certificates(with_tls(f"keyStorePath={store}").acceptors)
    certificates.load()
    for seconds in (0.0, 3_600.0, REMIND_SECONDS + 1):
        certificates.look(datetime.now(UTC), seconds)
    told = [one for one in caplog.records if one.levelno > logging.INFO]
    assert [one.levelno for one in told] == ([] if level is None else [level, level])
    for one in told:
        assert f"acceptor 'tls', CN=server, {text}" in one.getMessage()
