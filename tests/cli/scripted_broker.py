"""A broker that keeps to a script: what the client must bear, at the moment the test wants it."""

import socket
import socketserver
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from orthia.broker.client.connection import BrokerAddress


@dataclass
class Script:
    """What the broker does; shared by all its connections."""

    refuse: str | None = None
    """Answer CONNECT with this ERROR."""
    drop_after_sends: deque[int] = field(default_factory=deque)
    """For each connection in turn: break it after so many SENDs."""
    receipts_lost: int = 0
    """Of the SENDs before a break, so many last ones are stored but get no receipt."""
    drop_after_acks: deque[int] = field(default_factory=deque)
    """For each connection in turn: break it instead of the receipt after so many ACKs."""
    acks_stored_at_drop: bool = True
    acks_undone: int = 0
    """How many ACKs a break has undone so far."""
    error_at_send: deque[str] = field(default_factory=deque)
    """For each connection in turn: answer its first SEND with this ERROR."""
    freeze_first: bool = False
    """Promise heart-beats on the first connection, and then say nothing on it."""
    byte_by_byte: bool = False
    stored: list[bytes] = field(default_factory=list)
    """Bodies of the queue, oldest first; an ACK removes one."""
    connections: int = 0


class _Handler(socketserver.StreamRequestHandler):
    server: "_Server"

    def handle(self) -> None:
        script = self.server.script
        script.connections += 1
        sends_left = script.drop_after_sends.popleft() if script.drop_after_sends else -1
        acks_left = script.drop_after_acks.popleft() if script.drop_after_acks else -1
        acked: list[str] = []
        while (frame := self._read()) is not None:
            command, headers, body = frame
            if command == "CONNECT":
                if script.refuse is not None:
                    self._write(f"ERROR\nmessage:{script.refuse}\n\n\0".encode())
                    return
                frozen = script.freeze_first and script.connections == 1
                beat = b"100,0" if frozen else b"0,0"
                self._write(b"CONNECTED\nversion:1.2\nheart-beat:" + beat + b"\n\n\0")
                if frozen:
                    self.rfile.read()  # until the client goes away
                    return
            elif command == "SEND":
                if script.error_at_send:
                    self._end_with_error(script.error_at_send.popleft())
                    return
                script.stored.append(body)
                sends_left -= 1
                if sends_left == 0:
                    return
                if 0 < sends_left <= script.receipts_lost:
                    continue
            elif command == "SUBSCRIBE":
                self._deliver()
            elif command == "ACK":
                acked.append(headers["id"])
                acks_left -= 1
                if acks_left == 0:
                    if script.acks_stored_at_drop:
                        self._remove(acked)
                    script.acks_undone += len(acked)
                    return
            if "receipt" in headers:
                self._remove(acked)
                self._write(f"RECEIPT\nreceipt-id:{headers['receipt']}\n\n\0".encode())

    def _deliver(self) -> None:
        for body in self.server.script.stored:
            name = body.hex()
            head = f"MESSAGE\nmessage-id:{name}\nack:{name}\ncontent-length:{len(body)}\n\n"
            self._write(head.encode() + body + b"\0\n")

    def _end_with_error(self, headers: str) -> None:
        """Send ERROR and wait for the client to go: closing over unread bytes would lose it."""
        self._write(f"ERROR\n{headers}\n\n\0".encode())
        self.connection.shutdown(socket.SHUT_WR)
        self.rfile.read()

    def _remove(self, acked: list[str]) -> None:
        for name in acked:
            self.server.script.stored.remove(bytes.fromhex(name))
        acked.clear()

    def _read(self) -> tuple[str, dict[str, str], bytes] | None:
        data = bytearray()
        while not data.endswith(b"\n\n"):
            byte = self.rfile.read(1)
            if not byte:
                return None
            data += byte
        command, *lines = data.decode().strip("\n").split("\n")
        headers = dict(line.split(":", 1) for line in lines)
        body = bytearray(self.rfile.read(int(headers.get("content-length", "0"))))
        while (byte := self.rfile.read(1)) != b"\0":
            assert byte, "the client went away amid a body"
            assert "content-length" not in headers, "the body is longer than its content-length"
            body += byte
        return command, headers, bytes(body)

    def _write(self, data: bytes) -> None:
        if self.server.script.byte_by_byte:
            for at in range(len(data)):
                self.wfile.write(data[at : at + 1])
                self.wfile.flush()
        else:
            self.wfile.write(data)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    script: Script


@contextmanager
def scripted_broker(script: Script) -> Iterator[BrokerAddress]:
    """Serve ``script`` while the block lasts."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.script = script
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield BrokerAddress("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
