"""A locker for Orthia that holds a TCP port: of all nodes on a machine one is live."""

import socket

from orthia.nodemanager import ExclusiveLock, LockerContext


class PortLocker(ExclusiveLock):
    """Whoever listens on a port has the lock; it ends with the process."""

    def __init__(self, context: LockerContext) -> None:
        """Take the port of the configuration, and the next one for the backup lock."""
        self._address = ("127.0.0.1", int(context.properties["port"]) + context.lock)
        self._socket: socket.socket | None = None

    def try_acquire(self) -> bool:
        """Listen on the port, if nobody does."""
        listening = socket.socket()
        try:
            listening.bind(self._address)
            listening.listen()
        except OSError:
            listening.close()
            return False
        self._socket = listening
        return True

    def keep_alive(self) -> None:
        """Nobody can take a port away."""

    def release(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
