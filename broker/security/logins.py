"""Failed logins: each delays the next attempt from the same address, or as the same user.

The delay comes before the passcode is checked, so that giving up early tells a guesser nothing. It
is bounded, so that nobody is locked out: a right passcode is accepted whatever others did before.
Few logins may wait at a time for each pair of address and user, and for each address, so that a
guesser with many connections is no faster, whether it tries one name or many. A user that has
logged in from an address before is delayed and refused there for guesses at its own name only. This
module has no clock and no connections: the caller gives the time, and waits.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.quoting import quoted
from orthia.broker.security.sources import source_of

LOGGER = logging.getLogger("orthia.broker")
FREE_FAILURES = 3
"""Failures without a delay: people mistype."""
FIRST_DELAY_MS = 250
"""The delay after one more; each further failure doubles it, up to ``max-login-delay``."""
FORGET_SECONDS = 300.0
"""After so long without a failure, the failures of an address or a user are forgotten."""
MAX_WAITING = 8
"""Logins that wait for one user from one address."""
MAX_WAITING_AT_ADDRESS = 32
"""Logins that wait from one address, for all users that have not logged in there before."""
MAX_WAITING_OPERATORS = 4
"""The same of logins over HTTP."""
MAX_WAITING_OPERATORS_AT_ADDRESS = 8
MAX_KNOWN = 10_000
"""Pairs of address and user that are remembered because the user has logged in from there; the
oldest is forgotten first."""
MAX_KNOWN_OF_ONE = 1_000
"""Pairs of one user, so that one with very many addresses displaces no other."""
MAX_ADDRESSES = 10_000
"""Addresses whose failures are remembered; the oldest failure is forgotten first."""
USER_PLACES = 1_024
"""Size of the table of users by a hash of the name, unknown ones too: it is bounded, and the time
of an answer does not tell which users exist."""
BURST_SECONDS = 60.0
"""How often failures are logged."""


@dataclass
class _Record:
    failures: int = 0
    failed_at: float = 0.0

    def count(self, now: float) -> int:
        """Return the failures that still count."""
        return self.failures if now - self.failed_at < FORGET_SECONDS else 0

    def fail(self, now: float) -> None:
        """Count one more."""
        self.failures = self.count(now) + 1
        self.failed_at = now


@dataclass(frozen=True)
class LoginWait:
    """A login that is delayed; ``LoginGuard.end`` ends the delay."""

    seconds: float
    source: str
    place: int
    is_known: bool
    """Whether its user has logged in from there before."""


class LoginGuard:
    """Remembers failed logins, in bounded memory."""

    def __init__(
        self,
        max_delay_ms: int,
        max_waiting: int = MAX_WAITING,
        max_waiting_at_address: int = MAX_WAITING_AT_ADDRESS,
    ) -> None:
        """Let so many logins wait for one user from one address, and so many from one address."""
        self._max_delay_ms = max_delay_ms
        self._max_waiting = max_waiting
        self._max_waiting_at_address = max_waiting_at_address
        self._addresses: OrderedDict[str, _Record] = OrderedDict()
        self._users = [_Record() for _ in range(USER_PLACES)]
        self._known: OrderedDict[tuple[str, str], _Record] = OrderedDict()
        self._known_at: dict[str, OrderedDict[str, None]] = {}
        """The addresses each user has logged in from, in the order of its last logins."""
        self._waiting: Counter[tuple[str, int]] = Counter()
        self._waiting_at: Counter[str] = Counter()
        """Without users known there: guesses at them keep no other out."""
        self._burst = _Burst()

    @property
    def remembered(self) -> int:
        """How many addresses are remembered."""
        return len(self._addresses)

    def known_as(self, address: str, login: str | None) -> str | None:
        """Return the user's name if it is remembered to have logged in from there; else None."""
        name = login or ""
        return name if (source_of(address), name) in self._known else None

    def begin(self, address: str, login: str | None, now: float) -> LoginWait | None:
        """Return the delay before the passcode is checked; None if there is none.

        Raises LimitExceeded when too many logins of the kind wait already.
        """
        source, place = source_of(address), _place(login)
        known = self._known.get((source, login or ""))
        record = self._addresses.get(source) if known is None else known
        by_address = self._delay_ms(record.count(now) if record else 0, self._max_delay_ms)
        # Anybody can fail as a user from anywhere: that must not delay the user itself for long.
        by_user = self._delay_ms(self._users[place].count(now), self._max_delay_ms // 5)
        delay_ms = max(by_address, by_user)
        if not delay_ms:
            return None
        if self._waiting[source, place] >= self._max_waiting:
            raise LimitExceeded(
                "logins failed from this address or as this user, and"
                f" {self._max_waiting} more wait;"
                f" try again in {-(-delay_ms // 1000)} s"
            )
        if known is None and self._waiting_at[source] >= self._max_waiting_at_address:
            raise LimitExceeded(
                f"logins failed from this address, and {self._max_waiting_at_address} more wait;"
                f" try again in {-(-delay_ms // 1000)} s"
            )
        wait = LoginWait(delay_ms / 1000, source, place, is_known=known is not None)
        self._waiting[source, place] += 1
        if not wait.is_known:
            self._waiting_at[source] += 1
        return wait

    def end(self, wait: LoginWait) -> None:
        """Note the end of a delay: the login is checked now, or its client is gone."""
        place = wait.source, wait.place
        self._waiting[place] -= 1
        if not self._waiting[place]:
            del self._waiting[place]
        if wait.is_known:
            return
        self._waiting_at[wait.source] -= 1
        if not self._waiting_at[wait.source]:
            del self._waiting_at[wait.source]

    def failed(self, address: str, login: str | None, now: float, *, is_user: bool = False) -> None:
        """Note a wrong login or passcode; log it, unless one was logged a moment ago.

        The log names the login only if it is a user's: people type passcodes there.
        """
        source = source_of(address)
        known = self._known.get((source, login or ""))
        if known is not None:
            known.fail(now)
        record = self._addresses.pop(source, None) or _Record()
        record.fail(now)
        self._addresses[source] = record
        if len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        self._users[_place(login)].fail(now)
        self._burst.add(address, _said(login, is_user=is_user), now)

    def succeeded(self, address: str, login: str | None) -> None:
        """Note a right passcode: the user's failures are forgotten, and it is known there.

        The failures of the address are kept: a guesser with an account of its own may share it.
        """
        self._users[_place(login)].failures = 0
        source, name = source_of(address), login or ""
        self._known.setdefault((source, name), _Record())
        self._known.move_to_end((source, name))
        known_at = self._known_at.setdefault(name, OrderedDict())
        known_at[source] = None
        known_at.move_to_end(source)
        if len(known_at) > MAX_KNOWN_OF_ONE:
            self._forget(next(iter(known_at)), name)
        if len(self._known) > MAX_KNOWN:
            self._forget(*next(iter(self._known)))

    def forget(self, names: Iterable[str]) -> None:
        """Forget where these users have logged in: they changed, or were removed."""
        for name in names:
            for source in [*self._known_at.get(name, ())]:
                self._forget(source, name)

    def _forget(self, source: str, name: str) -> None:
        del self._known[source, name]
        del self._known_at[name][source]
        if not self._known_at[name]:
            del self._known_at[name]

    def tick(self, now: float) -> None:
        """Log the failures held back, once it is time."""
        self._burst.tick(now)

    def _delay_ms(self, failures: int, most_ms: int) -> int:
        if failures < FREE_FAILURES:
            return 0
        return int(min(most_ms, FIRST_DELAY_MS * 2 ** min(failures - FREE_FAILURES, 20)))


class _Burst:
    """Logs the first failure, and then once a minute how many followed."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._more: Counter[str] = Counter()
        self._count = 0

    def add(self, address: str, who: str, now: float) -> None:
        if self._since is None:
            self._since = now
            LOGGER.warning(
                "a login from %s %s; further failures are logged once in %d s",
                address,
                who,
                BURST_SECONDS,
            )
            return
        self._count += 1
        if address in self._more or len(self._more) < MAX_ADDRESSES:
            self._more[address] += 1

    def tick(self, now: float) -> None:
        if self._since is None or now - self._since < BURST_SECONDS:
            return
        if not self._count:
            self._since = None
            return
        (address, most), *_ = self._more.most_common(1)
        LOGGER.warning(
            "%d more logins failed within %d s, from %d addresses; %d of them from %s",
            self._count,
            BURST_SECONDS,
            len(self._more),
            most,
            address,
        )
        self._since = now
        self._count = 0
        self._more.clear()


def _said(login: str | None, *, is_user: bool) -> str:
    """Return what the log says of a failed login; it names a user only if there is one."""
    if not login:
        return "without a user name failed: only known users are let in"
    who = f"user {quoted(login)}" if is_user else "an unknown user"
    return f"as {who} failed: login or passcode is wrong"


def _place(login: str | None) -> int:
    # Python's hash of a text is keyed per process, so nobody can choose the place.
    return hash(login or "") % USER_PLACES
