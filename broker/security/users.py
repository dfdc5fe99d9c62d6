"""The users, and the check of their passcodes.

A password stored as a hash is checked on another thread, since that takes a while. The outcome is
cached for a short time, so that many clients can reconnect at once. The cache's key is a keyed hash
of login, passcode and stored hash: no passcode is kept, and a changed password is checked again.
"""

import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.core.identity import Principal, Verification
from orthia.config.passwords import HashedPassword
from orthia.config.security_settings import User

WRONG = "login or passcode is wrong"
"""It does not say which of them."""


class TakesTokens(Protocol):
    """Checks tokens."""

    def takes(self, passcode: str) -> bool:
        """Return whether a passcode looks like a token."""

    def check(self, login: str, token: str) -> Verification:
        """Return the check to run to know whose a token is."""


class UserDirectory:
    """Users by name; on the loop's thread."""

    def __init__(
        self,
        configured: Iterable[User],
        clock: Callable[[], float],
        *,
        cache_size: int,
        cache_seconds: float,
    ) -> None:
        """``configured`` are those of ``broker.xml``; ``clock`` is in seconds."""
        self._configured = {user.name: user for user in configured}
        self._users = dict(self._configured)
        self._of_files: dict[str, User] = {}
        self._tokens: TakesTokens | None = None
        """Checks tokens, if they are accepted."""
        self._hashed: list[HashedPassword] = []
        self._key = os.urandom(32)
        self._clock = clock
        self._verdicts: OrderedDict[bytes, tuple[bool, float]] = OrderedDict()
        self._cache_size = cache_size
        self._cache_seconds = cache_seconds

    def replace(self, users: Iterable[User]) -> frozenset[str]:
        """Replace the users of files; return the names of those that changed or were removed.

        A user of ``broker.xml`` counts before one of a file with the same name.
        """
        self._of_files = {user.name: user for user in users}
        return self._merge()

    def configure(self, configured: Iterable[User]) -> frozenset[str]:
        """Replace the users of ``broker.xml``; return the names of those that changed."""
        self._configured = {user.name: user for user in configured}
        return self._merge()

    def _merge(self) -> frozenset[str]:
        before = self._users
        self._users = self._of_files | self._configured
        passwords = [one.password for one in self._users.values()]
        self._hashed = [one for one in passwords if isinstance(one, HashedPassword)]
        return frozenset(name for name, user in before.items() if self._users.get(name) != user)

    def take_tokens(self, tokens: TakesTokens | None = None) -> None:
        """Accept ``tokens`` as passcodes from now on; None accepts none."""
        self._tokens = tokens

    def knows(self, name: str) -> bool:
        """Return whether there is a user of this name."""
        return name in self._users

    def roles_of(self, name: str) -> frozenset[str] | None:
        """Return the roles of a user; None if there is none of this name."""
        user = self._users.get(name)
        return None if user is None else user.roles

    def authenticate(self, login: str, passcode: str) -> Principal | Verification:
        """Return who this is, or the check to run to know; raises AuthenticationFailed."""
        if self._tokens is not None and self._tokens.takes(passcode):
            return self._tokens.check(login, passcode)
        user = self._users.get(login)
        stored = user.password if user is not None else self._decoy(login)
        if not isinstance(stored, HashedPassword):
            expected = stored.reveal() if stored is not None else ""
            # Compared even for an unknown user, so that the time does not tell which exist.
            matches = hmac.compare_digest(expected.encode(), passcode.encode())
            # An empty password would accept clients that give none: no user has one.
            if user is not None and expected and matches:
                return Principal(user.name, user.roles)
            decoy = self._decoy(login)
            if decoy is None:
                raise AuthenticationFailed(WRONG)
            user, stored = None, decoy
        key = self._key_of(login, passcode, stored)
        verdict = self._remembered(key)
        if verdict is None:
            return _Check(self, login, passcode, user, stored, key)
        return self._principal(user, is_right=verdict)

    def _decoy(self, login: str) -> HashedPassword | None:
        """Return the hash that the passcode of an unknown user is checked against.

        So the time does not tell which users exist. Hashes differ in cost, so unknown names are
        spread over all hashes; a name always gets the same one.
        """
        if not self._hashed:
            return None
        digest = hashlib.blake2b(login.encode(), key=self._key, digest_size=8).digest()
        return self._hashed[int.from_bytes(digest, "big") % len(self._hashed)]

    def decide(self, login: str, user: User | None, key: bytes, *, is_right: bool) -> Principal:
        """Return who this is, and cache the outcome; raises AuthenticationFailed."""
        self._remember(key, is_right=is_right)
        # The users may have been replaced meanwhile.
        return self._principal(user, is_right=is_right and self._users.get(login) == user)

    @staticmethod
    def _principal(user: User | None, *, is_right: bool) -> Principal:
        if user is None or not is_right:
            raise AuthenticationFailed(WRONG)
        return Principal(user.name, user.roles)

    def _key_of(self, login: str, passcode: str, stored: HashedPassword) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (login, passcode, stored.reveal()):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.digest()

    def _remembered(self, key: bytes) -> bool | None:
        found = self._verdicts.get(key)
        if found is None or self._clock() - found[1] >= self._cache_seconds:
            return None
        return found[0]

    def _remember(self, key: bytes, *, is_right: bool) -> None:
        if not self._cache_size or not self._cache_seconds:
            return
        self._verdicts[key] = is_right, self._clock()
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > self._cache_size:
            self._verdicts.popitem(last=False)


class _Check(Verification):
    """Checks a passcode against a stored hash."""

    def __init__(
        self,
        directory: UserDirectory,
        login: str,
        passcode: str,
        user: User | None,
        stored: HashedPassword,
        key: bytes,
    ) -> None:
        self._directory = directory
        self._login = login
        self._passcode = passcode
        self._user = user
        self._stored = stored
        self._key = key
        self._is_right = False

    def run(self) -> None:
        self._is_right = self._stored.matches(self._passcode)

    def principal(self) -> Principal:
        return self._directory.decide(self._login, self._user, self._key, is_right=self._is_right)
