"""What a server says that takes nobody in at present, in whatever encoding it speaks then."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import psycopg2
import pytest
from sqlalchemy import Engine

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, StoreUnavailable, translate_errors
from orthia.database.connecting import NOT_UTF_8

_ENCRYPTION_REQUESTS = (80877103, 80877104)
"""Of TLS and of GSSAPI, which libpq may ask for before it says who it is."""

SHUTTING_DOWN = "das Datenbanksystem fährt herunter"
UNREADABLE = SHUTTING_DOWN.replace("ä", "\ufffd")


class RefusingServer:
    """Speaks PostgreSQL's protocol as far as to refuse whoever connects."""

    def __init__(self, message: bytes) -> None:
        fields = (b"SFATAL", b"VFATAL", b"C57P03", b"M" + message, b"")
        body = b"\0".join(fields) + b"\0"
        self._answer = b"E" + struct.pack(">i", len(body) + 4) + body
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="refusing-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse nobody any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError, struct.error), client:
                self._refuse(client)

    def _refuse(self, client: socket.socket) -> None:
        with client.makefile("rb") as stream:
            while True:
                size, code = struct.unpack(">ii", stream.read(8))
                stream.read(size - 8)
                if code not in _ENCRYPTION_REQUESTS:
                    break
                client.sendall(b"N")
            client.sendall(self._answer)


@pytest.fixture
def refused(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Give the database of a server that is shutting down and says so in an encoding."""
    server = RefusingServer(SHUTTING_DOWN.encode(request.param))
    url = DatabaseUrl.parse(f"jdbc:postgresql://127.0.0.1:{server.port}/db")
    database = Database.from_settings(DatabaseStoreSettings(url, jdbc_user="orthia"))
    yield database
    database.dispose()
    server.close()


ENGINES: dict[str, Callable[[Database], Engine]] = {
    "shared": lambda database: database.engine,
    "dedicated": lambda database: database.dedicated_engine("test", query_timeout_ms=20_000),
    "reading": lambda database: database.reading_engine("test", query_timeout_ms=20_000),
}


@pytest.mark.parametrize("which", list(ENGINES))
@pytest.mark.parametrize(
    ("refused", "told"),
    [
        pytest.param("utf-8", (f"FATAL: {SHUTTING_DOWN}",), id="utf-8"),
        pytest.param("latin-1", (f"FATAL: {UNREADABLE}", NOT_UTF_8), id="latin-1"),
    ],
    indirect=["refused"],
)
def test_a_server_that_shuts_down_is_unavailable_whatever_its_encoding(
    refused: Database, told: tuple[str, ...], which: str
) -> None:
    """It knows nothing yet of the encoding that its client asks for, and will be back."""
    engine = ENGINES[which](refused)
    with pytest.raises(StoreUnavailable) as caught, translate_errors("connect"):
        engine.connect()
    assert type(caught.value) is StoreUnavailable
    assert str(caught.value).endswith(told)


@pytest.mark.parametrize("refused", ["latin-1"], indirect=True)
def test_a_connection_without_sqlalchemy_is_refused_alike(refused: Database) -> None:
    """The journal's writer takes the driver's own."""
    told = f"herunter$|{NOT_UTF_8}$"
    with pytest.raises(StoreUnavailable, match=told), translate_errors("connect"):
        refused.engine.raw_connection()


@pytest.mark.parametrize("refused", ["utf-8"], indirect=True)
def test_an_error_that_says_nothing_is_told_in_words(
    refused: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver gives such where Python has not let it decode what the server says."""

    def connect(*_: object, **__: object) -> object:
        raise psycopg2.OperationalError

    monkeypatch.setattr(psycopg2, "connect", connect)
    with pytest.raises(StoreUnavailable, match=f"{NOT_UTF_8}$"), translate_errors("connect"):
        refused.engine.connect()
