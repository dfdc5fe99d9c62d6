"""Very many logins, right and wrong ones and those of nobody, offered at a rate."""

import asyncio
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

AT_A_TIME: Final = 400
"""How many connections of a flood there are at once, unless it is told otherwise."""
_SOURCES: Final = 100
_PATIENCE_SECONDS: Final = 2.0
"""After which a client leaves that was not answered; its login is under way all the same."""


class Login(NamedTuple):
    """What a client says it is; no two say the same in place of ``{}``."""

    kind: str
    login: str
    passcode: str
    network: str = "127.0.1"
    """Of the hundred addresses it comes from."""


class LoginFlood:
    """Comes from a hundred addresses of this machine, and counts how its logins were answered."""

    def __init__(self, port: int, logins: Sequence[Login], at_a_time: int = AT_A_TIME) -> None:
        """Offer ``logins`` in turn at a node's port, on so many connections at most."""
        self._port = port
        self._at_a_time = at_a_time
        self._logins = itertools.cycle(logins)
        self._number = itertools.count()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.offered = 0
        self.answers: Counter[tuple[str, str]] = Counter()
        """By kind and answer: let in, wrong, refused for another reason, or none."""

    @property
    def answered(self) -> int:
        """How many were answered, whatever with."""
        return sum(count for (_, answer), count in self.answers.items() if answer != "none")

    def start(self, a_second: float) -> None:
        """Begin to offer so many a second, or as many as this machine makes."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(a_second)))
        self._thread.start()

    def stop(self) -> None:
        """Offer nothing more, and wait for the answers."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    async def _run(self, a_second: float) -> None:
        loop = asyncio.get_running_loop()
        places = asyncio.Semaphore(self._at_a_time)
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while not self._stopped.is_set():
                await places.acquire()
                tasks.create_task(self._log_in(next(self._logins), places))
                self.offered += 1
                await asyncio.sleep(max(0.0, began + self.offered / a_second - loop.time()))

    async def _log_in(self, one: Login, places: asyncio.Semaphore) -> None:
        number = next(self._number)
        answer = "none"
        loop = asyncio.get_running_loop()
        try:
            with socket.socket() as client:
                client.setblocking(False)
                client.bind((f"{one.network}.{1 + number % _SOURCES}", 0))
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await loop.sock_connect(client, ("127.0.0.1", self._port))
                    sent = (
                        f"CONNECT\naccept-version:1.2\nhost:h\nlogin:{one.login.format(number)}\n"
                        f"passcode:{one.passcode.format(number)}\n\n\0"
                    )
                    await loop.sock_sendall(client, sent.encode())
                    data = await loop.sock_recv(client, 4_096)
                if data:
                    answer = _judged(data)
        except OSError:
            pass
        finally:
            self.answers[one.kind, answer] += 1
            places.release()


def _judged(data: bytes) -> str:
    if data.startswith(b"CONNECTED"):
        return "let in"
    return "wrong" if b"login or passcode is wrong" in data else "refused"
