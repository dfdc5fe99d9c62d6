"""Orthia's own small STOMP 1.2 client, which the command line sends and receives with.

It shares no code with the broker's STOMP, so that it tests the broker as any other client would. It
uses one thread, and its socket never blocks: ``exchange`` writes what it can and returns the frames
that have come.
"""

import select
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orthia.broker.client.frames import encode, parse_head
from orthia.broker.client.tls import (
    SCHEMES,
    ClientTls,
    NotTrusted,
    SecureSocket,
    asks_for_tls,
)
from orthia.config.errors import OrthiaError

_PLAIN: Final = ("tcp", "stomp")
_READ_BYTES: Final = 262_144
_WAITING_BYTES: Final = 1024 * 1024
"""Bytes of a body that may wait for the socket before its next piece is read."""
_WAIT_SECONDS: Final = 0.2
HEART_BEAT_MS: Final = 5_000
"""The interval of the heart-beats that are asked of a node."""
_SILENT_BEATS: Final = 2.5
"""A node that is silent for so many intervals is frozen, or the network to it is down."""


class ClientError(OrthiaError):
    """The broker's answer is not one that this client can handle."""


class BrokerRefused(ClientError):  # noqa: N818 - named for the state
    """The broker sent an ERROR frame; the text is the broker's."""


class BrokerUnreachable(ClientError):  # noqa: N818 - named for the state
    """No broker could be reached in the time allowed."""


class ConnectionLost(ClientError):  # noqa: N818 - named for the state
    """The connection broke; another node may have taken over."""


class EndedByBroker(ConnectionLost):
    """The broker closed the connection with an ERROR that answers no frame of ours."""


class BrokerNotTrusted(ClientError):  # noqa: N818 - named for the state
    """TLS failed: the text says why, and what to do."""


@dataclass(frozen=True)
class BrokerAddress:
    """The address of an acceptor."""

    host: str
    port: int
    tls: ClientTls | None = None
    """The parameters of TLS; None for a connection without TLS."""

    @classmethod
    def parse(cls, text: str) -> "BrokerAddress":
        """Read ``HOST:PORT``, ``[IPV6]:PORT`` or ``ssl://HOST:PORT?NAME=VALUE``.

        Or Artemis' ``tcp://HOST:PORT?sslEnabled=true``. Raises ValueError.
        """
        scheme, is_url, rest = text.partition("://")
        if not is_url:
            scheme, rest = _PLAIN[0], text
        place, _, query = rest.partition("?")
        host, colon, port = place.removesuffix("/").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        if scheme in SCHEMES or (scheme in _PLAIN and asks_for_tls(query)):
            return cls(host, int(port), ClientTls.parse(query))
        if scheme not in _PLAIN or query:
            raise ValueError(
                f"{text!r} is neither HOST:PORT nor ssl://HOST:PORT, which may have parameters"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return place if self.tls is None else f"{SCHEMES[0]}://{place}"


@dataclass(frozen=True)
class Login:
    """The user and passcode of a CONNECT frame."""

    user: str
    passcode: str


@dataclass(frozen=True)
class ServerFrame:
    """A frame from the broker with unescaped headers; the first of repeated ones counts."""

    command: str
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """One STOMP connection to one node."""

    def __init__(self, channel: socket.socket | SecureSocket, address: BrokerAddress) -> None:
        channel.setblocking(False)  # noqa: FBT003 - the name of the socket's method says it
        self._channel = channel
        self.address = address
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._silence_allowed_seconds: float | None = None
        self._last_heard = time.monotonic()
        self._is_greeted = False

    @classmethod
    def open(
        cls,
        address: BrokerAddress,
        login: Login | None = None,
        *,
        client_id: str | None = None,
        timeout_seconds: float = 10.0,
        heart_beat_ms: int = HEART_BEAT_MS,
    ) -> "Connection":
        """Connect and wait for CONNECTED; ``client_id`` owns the durable subscriptions.

        Raises ConnectionLost if no broker answers, BrokerRefused if it refuses the login,
        BrokerNotTrusted if TLS fails, TlsUnusable if a file of TLS cannot be used.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            plain = socket.create_connection((address.host, address.port), timeout_seconds)
        except OSError as error:
            raise ConnectionLost(f"{address}: {error.strerror or error}") from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = cls(_secured(plain, address), address)
        try:
            connection._greet(login, client_id, deadline, heart_beat_ms)
        except BaseException:
            connection.close()
            raise
        return connection

    def _greet(
        self, login: Login | None, client_id: str | None, deadline: float, heart_beat_ms: int
    ) -> None:
        headers = {"accept-version": "1.2", "host": self.address.host}
        headers["heart-beat"] = f"0,{heart_beat_ms}"
        if login is not None:
            headers |= {"login": login.user, "passcode": login.passcode}
        if client_id is not None:
            headers["client-id"] = client_id
        # STOMP 1.2 does not escape CONNECT.
        self.write(encode("CONNECT", headers, escape=False))
        while time.monotonic() < deadline:
            for frame in self.exchange(deadline - time.monotonic()):
                if frame.command == "CONNECTED":
                    offered_ms = int(frame.headers.get("heart-beat", "0,0").split(",")[0])
                    if offered_ms:
                        beat_seconds = max(offered_ms, heart_beat_ms) / 1000
                        self._silence_allowed_seconds = beat_seconds * _SILENT_BEATS
                    self._is_greeted = True
                    return
                raise ClientError(f"{self.address}: sent {frame.command} instead of CONNECTED")
        raise ConnectionLost(f"{self.address}: did not answer CONNECT in time")

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the socket; a caller that writes much waits until they are few."""
        return len(self._outgoing)

    def write(self, data: bytes) -> None:
        """Queue ``data`` for the next calls of ``exchange``."""
        self._outgoing += data

    def send(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Queue a frame for the next calls of ``exchange``."""
        self.write(encode(command, headers, body))

    def send_pieces(
        self, command: str, headers: Mapping[str, str], pieces: Iterable[bytes]
    ) -> None:
        """Send a frame whose body is too large for memory.

        ``headers`` include its content-length. Frames that come meanwhile are dropped, except for
        an ERROR; raises what ``exchange`` does.
        """
        self.write(encode(command, headers).removesuffix(b"\0"))
        for piece in pieces:
            self.write(piece)
            while self.unsent_bytes > _WAITING_BYTES:
                self.exchange(_WAIT_SECONDS)
        self.write(b"\0")

    def exchange(self, timeout_seconds: float) -> list[ServerFrame]:
        """Write what is queued, wait up to ``timeout_seconds`` for bytes, and return whole frames.

        Raises ConnectionLost, EndedByBroker, or BrokerRefused when the broker answers with ERROR.
        """
        try:
            self._flush()
            writable = [self._channel] if self._outgoing else []
            has_pending = isinstance(self._channel, SecureSocket) and self._channel.has_pending
            wait_seconds = 0.0 if has_pending else max(0.0, timeout_seconds)
            ready, _, _ = select.select([self._channel], writable, [], wait_seconds)
            self._flush()
            if ready or has_pending:
                self._read()
                self._last_heard = time.monotonic()
        except NotTrusted as error:
            raise BrokerNotTrusted(f"{self.address}: {error}") from error
        except OSError as error:
            raise ConnectionLost(f"{self.address}: {error.strerror or error}") from error
        self._check_silence()
        frames = self._frames()
        for frame in frames:
            if frame.command == "ERROR":
                text = f"{self.address}: {_error_text(frame)}"
                if self._is_greeted and "receipt-id" not in frame.headers:
                    raise EndedByBroker(text)
                raise BrokerRefused(text)
        return frames

    def _check_silence(self) -> None:
        if self._silence_allowed_seconds is None:
            return
        silent_seconds = time.monotonic() - self._last_heard
        if silent_seconds > self._silence_allowed_seconds:
            raise ConnectionLost(f"{self.address}: silent for {silent_seconds:.1f} s")

    def _flush(self) -> None:
        if self._outgoing:
            try:
                del self._outgoing[: self._channel.send(self._outgoing)]
            except BlockingIOError:
                return  # the socket is full; select tells when it is not

    def _read(self) -> None:
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            if self._incoming.strip(b"\r\n"):
                raise ConnectionLost(f"{self.address}: closed in the middle of a frame")
            raise ConnectionLost(f"{self.address}: closed by the broker")
        self._incoming += data

    def _frames(self) -> list[ServerFrame]:
        """Remove every whole frame from what has come, and return them."""
        frames: list[ServerFrame] = []
        data, start = self._incoming, 0
        while True:
            while start < len(data) and data[start] in b"\r\n":
                start += 1
            head_end = data.find(b"\n\n", start)
            if head_end < 0:
                break
            command, headers = parse_head(bytes(data[start:head_end]))
            body_start = head_end + 2
            length = headers.get("content-length")
            if length is None:
                body_end = data.find(b"\0", body_start)
            else:
                body_end = body_start + int(length)
            if not 0 <= body_end < len(data):
                break
            frames.append(ServerFrame(command, headers, bytes(data[body_start:body_end])))
            start = body_end + 1
        del data[:start]
        return frames

    def close(self) -> None:
        """Close the socket without a DISCONNECT."""
        self._channel.close()


def _secured(plain: socket.socket, address: BrokerAddress) -> socket.socket | SecureSocket:
    """Return the socket, with TLS if asked for.

    Raises ConnectionLost, BrokerNotTrusted, TlsUnusable.
    """
    if address.tls is None:
        return plain
    try:
        return SecureSocket.over(plain, address.tls, address.host)
    except NotTrusted as error:
        plain.close()
        raise BrokerNotTrusted(f"{address}: {error}") from error
    except OSError as error:
        plain.close()
        raise ConnectionLost(f"{address}: TLS: {error.strerror or error}") from error
    except BaseException:
        plain.close()
        raise


def _error_text(frame: ServerFrame) -> str:
    message = frame.headers.get("message", "ERROR")
    body = " ".join(frame.body.decode(errors="replace").split())
    if body.startswith(message):
        return body  # the header has the beginning of it
    return f"{message}: {body}" if body else message
