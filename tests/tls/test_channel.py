"""What TLS does with bytes that come, step by step, with no socket and no clock."""

import asyncio
import ssl
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from orthia.broker.tls.channel import TlsChannel
from orthia.broker.tls.contexts import load_acceptor
from orthia.broker.tls.records import MOST_HELLO_BYTES
from orthia.config.acceptors import parse_acceptor
from tests.support.certificates import Authority
from tests.tls.test_acceptors import trusting

AT_ONCE = 64
"""Records that are handled before others have their turn: docs/limits.md."""


class Socket(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.is_over = self.is_cut_off = False

    @override
    def write(self, data: "bytes | bytearray | memoryview") -> None:
        self.written += data

    @override
    def pause_reading(self) -> None:
        self.reads = False

    @override
    def resume_reading(self) -> None:
        self.reads = True

    @override
    def is_closing(self) -> bool:
        return self.is_over

    @override
    def close(self) -> None:
        self.is_over = True

    @override
    def write_eof(self) -> None:
        """Not looked at."""

    @override
    def abort(self) -> None:
        self.is_over = self.is_cut_off = True

    def take(self) -> bytes:
        """Return what was written since the last time."""
        taken, self.written = self.written, b""
        return taken


class Protocol(asyncio.Protocol):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.failures: list[str] = []
        self.ends = 0
        self.heard: Callable[[], None] = lambda: None

    @override
    def eof_received(self) -> None:
        self.ends += 1

    @override
    def data_received(self, data: bytes) -> None:
        self.came.append(data)
        self.heard()

    def has_no_tls(self, reason: str, first: bytes) -> None:
        """Not in these tests."""
        raise AssertionError(reason, first)

    def handshake_failed(self, reason: str) -> None:
        """Note why."""
        self.failures.append(reason)

    def misuses_tls(self, reason: str) -> None:
        """Not in these tests."""
        raise AssertionError(reason)


class End:
    """One end of a connection, with a socket, a protocol, and turns that come when they are had."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.turns: list[Iterator[bool]] = []
        self.protocol = Protocol()
        self.socket = Socket()
        self.channel = TlsChannel(lambda: context, self.protocol, self.turns.append)
        self.channel.connection_made(self.socket)

    def have_turns(self) -> None:
        """Have every turn there is, to the end."""
        while self.turns:
            for _ in self.turns.pop(0):
                pass

    def secured(self, context: ssl.SSLContext) -> ssl.SSLObject:
        """Shake hands with a client; return it."""
        incoming, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, self.sent, server_hostname="localhost")
        while True:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                self.give()
                incoming.write(self.socket.take())
            else:
                self.give()
                return client

    def give(self) -> None:
        """Have what the client wrote come, and be handled."""
        self.channel.data_received(self.sent.read())
        self.have_turns()


@pytest.fixture(name="end")
def _end(authority: Authority, tmp_path: Path) -> End:
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    acceptor = parse_acceptor("tls", f"tcp://127.0.0.1:0?sslEnabled=true;keyStorePath={store}")
    tls = acceptor.settings.tls
    assert tls is not None
    return End(load_acceptor("tls", tls).context)


def test_of_what_comes_at_once_a_few_records_are_handled_in_a_turn(
    end: End, authority: Authority
) -> None:
    """And nothing is read meanwhile: who sends records of one byte holds nobody up."""
    client = end.secured(trusting(authority))
    for _ in range(10 * AT_ONCE):
        client.write(b"x")
    end.channel.data_received(end.sent.read())
    assert end.protocol.came == [AT_ONCE * b"x"]
    assert not end.socket.reads
    (turns,) = end.turns
    for number in range(2, 11):
        next(turns)
        assert end.protocol.came == number * [AT_ONCE * b"x"]
        assert not end.socket.reads
    assert next(turns, None) is None
    assert end.socket.reads


def test_each_step_of_a_handshake_waits_for_its_turn(end: End, authority: Authority) -> None:
    """It computes for long: a thousand who come at once are not all done before anybody else."""
    sent = ssl.MemoryBIO()
    client = trusting(authority).wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    end.channel.data_received(sent.read())
    assert end.socket.written == b""
    assert not end.socket.reads
    end.have_turns()
    assert end.socket.written[:1] == b"\x16"
    assert end.socket.reads


def test_a_hello_that_was_asked_for_may_be_no_longer_than_the_first(end: End) -> None:
    """Whoever shows no key it would take is asked for another hello (RFC 8446, 4.1.4)."""
    end.channel.data_received(hello_without_keys())
    end.have_turns()
    assert end.socket.take()[:1] == b"\x16"
    assert end.protocol.failures == []
    end.channel.data_received(b"\x16\x03\x03\x00\x04\x01\x02\x00\x00")
    end.have_turns()
    assert end.protocol.failures == [f"its hello has more than {MOST_HELLO_BYTES} bytes"]


@pytest.mark.parametrize("how", ["of the socket", "of tls", "no tls any more"])
def test_the_protocol_learns_that_nothing_more_comes(
    end: End, authority: Authority, how: str
) -> None:
    """However it ends; and the socket is closed."""
    client = end.secured(trusting(authority))
    if how == "of the socket":
        end.channel.eof_received()  # whoever has the socket closes it
    elif how == "of tls":
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        end.give()
        assert end.socket.is_over
    else:
        end.channel.data_received(b"nonsense" * 10)
        assert end.socket.is_over
    assert end.protocol.ends == 1


def test_what_came_before_no_tls_is_taken_and_nothing_is_asked_of_what_failed(
    end: End, authority: Authority
) -> None:
    """In one piece: a login, for which a certificate may be wanted, and nonsense behind it."""
    client = end.secured(trusting(authority))
    assert end.channel.get_extra_info("ssl_object") is not None
    client.write(b"CONNECT")
    asked: list[object] = []
    end.protocol.heard = lambda: asked.append(end.channel.get_extra_info("ssl_object"))
    end.channel.data_received(end.sent.read() + b"nonsense" * 10)
    assert (end.protocol.came, asked) == ([b"CONNECT"], [None])
    assert end.socket.is_over


@pytest.mark.parametrize("is_secure", [True, False])
def test_what_openssl_holds_of_a_connection_goes_with_it(
    end: End, authority: Authority, is_secure: bool
) -> None:
    """No collection of garbage is waited for, and whatever is still asked for does nothing."""
    if is_secure:
        end.secured(trusting(authority))
        held = weakref.ref(end.channel.get_extra_info("ssl_object"))
    else:
        held = weakref.ref(end.channel._tls)  # nobody is given it before
        end.channel.data_received(hello_without_keys())  # whose turn has yet to come
    end.socket.take()
    end.channel.connection_lost(None)
    end.have_turns()
    end.channel.data_received(b"more")
    end.channel.write(b"x")
    end.channel.write_eof()
    end.channel.close()
    assert end.channel.get_extra_info("ssl_object") is None
    assert end.socket.written == b""
    assert held() is None


def test_what_is_answered_once_tls_has_failed_is_dropped(end: End, authority: Authority) -> None:
    """OpenSSL takes nothing more; the alert is the last that is sent."""
    client = end.secured(trusting(authority))
    end.socket.take()

    def answer() -> None:
        end.channel.write(b"answer")
        end.channel.write_eof()

    end.protocol.heard = answer
    client.write(b"CONNECT")
    end.channel.data_received(end.sent.read() + b"nonsense" * 10)
    assert end.protocol.came == [b"CONNECT"]
    assert len(end.socket.take()) < 50  # a record with an alert
    assert (end.protocol.ends, end.socket.is_over) == (1, True)


def test_who_raises_in_a_turn_loses_its_connection(end: End, authority: Authority) -> None:
    """As outside of one, where the loop sees to it: it would be read from never again."""
    client = end.secured(trusting(authority))

    def fail() -> None:
        if len(end.protocol.came) == 2:  # in the turn after what is handled at once
            raise RuntimeError

    end.protocol.heard = fail
    for _ in range(2 * AT_ONCE):
        client.write(b"x")
    with pytest.raises(RuntimeError):
        end.give()
    assert end.socket.is_cut_off


def hello_without_keys() -> bytes:
    """Return a hello of TLS 1.3 that names a group, and shows no key of it."""
    extensions = b"".join(
        struct.pack(">HH", number, len(body)) + body
        for number, body in (
            (43, b"\x02\x03\x04"),  # supported_versions: TLS 1.3
            (10, b"\x00\x02\x00\x1d"),  # supported_groups: x25519
            (13, b"\x00\x04\x04\x03\x08\x04"),  # signature_algorithms
            (51, b"\x00\x00"),  # key_share: none
        )
    )
    hello = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    hello += struct.pack(">H", len(extensions)) + extensions
    message = b"\x01" + len(hello).to_bytes(3, "big") + hello
    return b"\x16\x03\x01" + struct.pack(">H", len(message)) + message
