"""The certificates of a node's acceptors: read on other threads, used on the loop.

With ``sslAutoReload`` a file that has changed, and did not change since the last look, is read
again, for new clients; connected clients stay. A file that cannot be used is logged once, and read
again at each look, while the node keeps the previous certificate.
"""

import logging
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from orthia.broker.tls.contexts import load_acceptor
from orthia.broker.tls.errors import TlsUnusable
from orthia.broker.tls.expiry import Validity, in_utc, listener
from orthia.broker.tls.stores import files_of
from orthia.config.acceptor_tls import AcceptorTls
from orthia.config.file_states import FileState, state_of
from orthia.config.settings import AcceptorSettings

LOGGER = logging.getLogger("orthia.broker")
REMIND_SECONDS: Final = 86_400.0
"""How often a warning of a certificate that expires soon is repeated."""
_State: TypeAlias = tuple[tuple[Path, FileState | None], ...]
"""The state of each file; None for one that is missing."""


@dataclass
class _Shown:
    """The certificate of one acceptor."""

    name: str
    tls: AcceptorTls
    context: ssl.SSLContext | None = None
    validity: Validity | None = None
    state: _State = ()
    """The state of the files when they were read last, usable or not."""
    refused: str | None = None
    """Why they could not be used then; None if they could."""
    seen: _State = ()
    """The state of the files at the last look."""
    warned_at: float | None = None


class Certificates:
    """The certificates of all acceptors with TLS; reading them blocks."""

    def __init__(self, acceptors: Iterable[AcceptorSettings]) -> None:
        self._shown = {
            one.name: _Shown(one.name, one.tls) for one in acceptors if one.tls is not None
        }

    def __bool__(self) -> bool:
        """Whether there is an acceptor with TLS."""
        return bool(self._shown)

    def load(self, *acceptors: str) -> None:
        """Read new and changed files, of some acceptors or of all.

        Raises TlsUnusable for those never read before.
        """
        for one in [self._shown[name] for name in acceptors or self._shown]:
            state = _state(one.tls)
            if one.context is None:
                self._read(one, state)
            elif state != one.state or one.refused is not None:
                self._read_again(one, state)

    def context(self, acceptor: str) -> ssl.SSLContext:
        """Return the context for the next client of an acceptor, which has been loaded."""
        context = self._shown[acceptor].context
        if context is None:
            raise RuntimeError(f"the certificate of {listener(acceptor)} is not loaded")
        return context

    def validities(self) -> Mapping[str, Validity]:
        """Return the validity of the loaded certificates, by acceptor."""
        return {one.name: one.validity for one in self._shown.values() if one.validity is not None}

    def look(self, now: datetime, seconds: float) -> None:
        """Read changed files, and warn of certificates that expire soon.

        ``now`` is the clock of this machine, ``seconds`` a monotonic clock.
        """
        for one in self._shown.values():
            if one.tls.auto_reload:
                state = _state(one.tls)
                # The obstacle, as a lack of descriptors, may have passed without a changed file.
                if state == one.seen and (state != one.state or one.refused is not None):
                    self._read_again(one, state)
                one.seen = state
            self._remind(one, now, seconds)

    def _read(self, one: _Shown, state: _State) -> None:
        try:
            loaded = load_acceptor(one.name, one.tls)
        except TlsUnusable as error:
            raise TlsUnusable(f"{listener(one.name)}: {error}") from None
        one.state = state
        one.refused = None
        one.validity = loaded.validity
        one.context = loaded.context
        one.warned_at = None
        LOGGER.info(
            "%s uses the certificate of %s, valid until %s",
            listener(one.name),
            loaded.validity.subject,
            in_utc(loaded.validity.not_valid_after),
        )

    def _read_again(self, one: _Shown, state: _State) -> None:
        try:
            self._read(one, state)
        except MemoryError:
            raise  # the node exits
        except TlsUnusable as error:
            self._refuse(one, state, str(error))
        except Exception as error:  # noqa: BLE001 - the node has a usable certificate
            self._refuse(
                one, state, f"{listener(one.name)}: {type(error).__name__}: {error}", error
            )

    @staticmethod
    def _refuse(
        one: _Shown, state: _State, reason: str, unforeseen: Exception | None = None
    ) -> None:
        if state != one.state or reason != one.refused:
            LOGGER.error("%s; keeping the previous certificate", reason, exc_info=unforeseen)
        one.state = state
        one.refused = reason

    def _remind(self, one: _Shown, now: datetime, seconds: float) -> None:
        if one.validity is None:
            return
        if one.warned_at is not None and seconds - one.warned_at < REMIND_SECONDS:
            return
        warning = one.validity.warning(now)
        if warning is not None:
            one.warned_at = seconds
            LOGGER.log(warning[0], "%s", warning[1])


def _state(tls: AcceptorTls) -> _State:
    stores = [tls.key_store, *([] if tls.trust_store is None else [tls.trust_store])]
    paths = [path for store in stores for path in files_of(store)]
    if tls.crl_path is not None:
        paths.append(tls.crl_path)
    return tuple((path, state_of(path)) for path in paths)
