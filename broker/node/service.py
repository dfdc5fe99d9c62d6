"""What clients see of a node, between its opening and its close: queues, sockets, disks.

They live on the event loop; whoever opens and closes them is on another thread, and waits.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from orthia.broker.connections.acceptor import Acceptors
from orthia.broker.core.broker import Broker
from orthia.broker.core.sending.relay import RelayStatus
from orthia.broker.core.slices import SLICE_SECONDS, Steps
from orthia.broker.core.upkeep.reconfiguration import NewRules
from orthia.broker.management.abc import Handover
from orthia.broker.management.attributes import ha_policy_of
from orthia.broker.management.facade import Management
from orthia.broker.management.http.resources import Managed
from orthia.broker.management.http.server import Secure
from orthia.broker.management.metrics import NodeMetrics
from orthia.broker.management.requests import Requests
from orthia.broker.management.running_node import NodeStatus, RunningNode
from orthia.broker.node.audit_file import AuditFile
from orthia.broker.node.disk_usage import DiskLimits, DiskWatch
from orthia.broker.node.log_queue import FLUSH_SECONDS
from orthia.broker.node.login_files import tokens_of
from orthia.broker.node.operator_logins import HttpLogins
from orthia.broker.node.served_clients import ServedClients
from orthia.broker.node.user_files import UserFiles
from orthia.broker.protocols.stomp.outbox import OutboxMessages
from orthia.broker.security.users import TakesTokens
from orthia.broker.tls.certificates import Certificates
from orthia.broker.tls.channel import TlsChannel
from orthia.broker.tls.watch import CertificateWatch
from orthia.config.acceptors import SERVED_PROTOCOLS
from orthia.config.certificate_users import CertificateUser, read_certificate_users
from orthia.config.clock import monotonic_seconds
from orthia.config.security_settings import PropertiesLoginModule, TokenLoginModule, User
from orthia.config.settings import HTTP_LISTENER, AcceptorSettings, Settings
from orthia.config.user_files import read_users
from orthia.journal.engine.batch import BatchReport
from orthia.journal.engine.outbox import FirstLook
from orthia.journal.journal import MessageJournal
from orthia.nodemanager import Interrupted, Lock
from orthia.nodemanager.abc import NodeManager

LOGGER = logging.getLogger("orthia.broker")
_FIRST_LOOK_SECONDS: Final = 1.0
"""How long a line of the failover log waits for the first look at the outbox."""
_Result = TypeVar("_Result")
_LOOP_CALL_SECONDS: Final = 30.0
_LAST_WORK_SECONDS: Final = 3.0
"""How long a node that stops goes on with frames it has read; the rest has no receipts."""
_LAST_WORDS_SECONDS: Final = 1.0
"""How long it goes on with telling clients what was stored last."""
_USER_CHANGED: Final = (
    "the password or the roles of this user were changed, or the user was removed; log in again"
)


class Service:
    """Everything of a node that its event loop has."""

    def __init__(
        self, settings: Settings, metrics: NodeMetrics, hangs: Callable[[str], None]
    ) -> None:
        """``hangs`` gets told, with the reason, of a loop that does not do what it is asked."""
        self._settings = settings
        self._metrics = metrics
        self._hangs = hangs
        self._certificates = Certificates(settings.tls_listeners)
        self._certificate_watch = CertificateWatch(self._certificates)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self._server: Acceptors | None = None
        self._management: Management | None = None
        self._handover: Handover | None = None
        self._managed: Managed | None = None
        self._disk_watch: DiskWatch | None = None
        self._journal: MessageJournal | None = None
        self._api_url: str | None = None
        self._progress = 0
        """Counts the turns of an opening: one that gets on is not one that hangs."""
        directory = settings.audit_log_directory
        self._audit = None if directory is None else AuditFile(directory, settings.name)
        self._user_files: UserFiles[PropertiesLoginModule, User] | None = None
        self._token_files: UserFiles[TokenLoginModule, TakesTokens] | None = None
        self._certificate_user_files: UserFiles[PropertiesLoginModule, CertificateUser] | None = (
            None
        )

    def hand_over_by(self, handover: Handover) -> None:
        """Let operators hand over to the backup."""
        self._handover = handover

    def runs_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remember the loop, once it runs."""
        self._loop = loop

    def show_in(self, metrics: NodeMetrics, status: Callable[[], NodeStatus]) -> RunningNode:
        """Update ``metrics`` to the present state, and return all of them."""
        return RunningNode(
            metrics,
            status=status,
            broker=lambda: self._broker,
            journal=lambda: self._journal,
            connections=lambda: self.connections,
            certificates=self._certificates.validities,
        )

    @property
    def connections(self) -> int:
        """How many clients are connected. Any thread."""
        server = self._server
        return 0 if server is None else server.connections

    @property
    def settings(self) -> Settings:
        """The settings in effect, which a changed ``broker.xml`` replaces. Any thread."""
        return self._settings

    @property
    def management(self) -> Management | None:
        """What operators do with this node while it serves; None while it does not. Any thread.

        Its methods are for the loop alone.
        """
        return self._management

    @property
    def managed(self) -> Managed | None:
        """What operators do over HTTP while it serves, and how they log in. Any thread."""
        return self._managed

    def publishes(self, api_url: str) -> None:
        """Remember where the API is served, which is published beside the locks."""
        self._api_url = api_url

    @property
    def api_url(self) -> str | None:
        """Where the API is served; None where it is not, or not yet. Any thread."""
        return self._api_url

    def outbox(self) -> RelayStatus | None:
        """Return what there is of the outbox; None without one, or while this node is passive."""
        broker = self._broker
        relay = None if broker is None else broker.relay
        return None if relay is None else relay.status

    def what_waits_in_outbox(self) -> str:
        """Return it as the end of a sentence; blocks for a moment, not on the loop's thread."""
        journal = self._journal
        reader = None if journal is None else journal.outbox
        return "" if reader is None else in_words(reader.first_look(_FIRST_LOOK_SECONDS))

    def refused_by(self) -> str | None:
        """Return what refuses messages for want of room; None if nothing does. Any thread."""
        broker = self._broker
        return None if broker is None else broker.store_use.refused_by

    # --- on the activation thread

    def load_certificates(self) -> None:
        """Read what acceptors with TLS show, and look after it from now on; raises TlsUnusable.

        A node that waits does so, too: it is to be told of what it could not serve with.
        """
        self._certificates.load()
        self._certificate_watch.start()

    def secure_http(self) -> Secure | None:
        """Read the key store of HTTP, and return what adds TLS to it; raises TlsUnusable.

        It is served before the node waits for its lock: on any thread.
        """
        health = self._settings.health
        if health is None or health.tls is None:
            return None
        self._certificates.load(HTTP_LISTENER)
        self._certificate_watch.start()
        context = partial(self._certificates.context, HTTP_LISTENER)
        return lambda inner, later: TlsChannel(context, inner, later)

    def has_journal(self, journal: MessageJournal) -> None:
        """Remember the journal, which is loaded."""
        self._journal = journal
        journal.register_batch_listener(self._committed)

    def open(self, manager: NodeManager) -> None:
        """Open the acceptors and watch the disks.

        Raises AcceptorError, TlsUnusable, Interrupted.
        """
        journal = self._loaded()
        self.load_certificates()
        loop, s = self._running_loop(), self._settings
        self._user_files = UserFiles(
            s.properties_login_module if s.security_enabled else None,
            read_users,
            lambda users: _post(loop, partial(self._users_are, users)),
        )
        self._certificate_user_files = UserFiles(
            s.certificate_login_module if s.security_enabled else None,
            read_certificate_users,
            lambda users: _post(loop, partial(self._certificate_users_are, users)),
        )
        self._token_files = UserFiles(
            s.token_login_module if s.security_enabled else None,
            tokens_of,
            lambda tokens: _post(loop, partial(self._tokens_are, tokens)),
        )
        users, certified = self._user_files.start(), self._certificate_user_files.start()
        tokens = self._token_files.start()
        self._on_loop(self._open(manager, journal, users, certified, tokens))
        # Sends are refused, from the first one on, while a disk of the store is nearly full.
        self._disk_watch = DiskWatch(
            s.watched_directories,
            DiskLimits(s.max_disk_usage, s.min_disk_free),
            period_ms=s.disk_scan_period,
            reusable=journal.reusable_bytes,
            told=lambda problem: _post(loop, partial(self._disk_is, problem)),
        )
        self._disk_watch.start()

    def close(self) -> None:
        """Close the acceptors, store what waits, send the last receipts, close the sockets."""
        if self._disk_watch is not None:
            self._disk_watch.stop()
        if self._user_files is not None:
            self._user_files.stop()
        if self._certificate_user_files is not None:
            self._certificate_user_files.stop()
        if self._token_files is not None:
            self._token_files.stop()
        self._on_loop(self._stop_accepting())
        if not self._loaded().close(drain=True):
            LOGGER.warning("not everything was stored in time; senders of the rest got no receipt")
        self._on_loop(self._stop())
        if self._audit is not None:
            self._audit.flush(FLUSH_SECONDS)
        self._journal = None

    # --- on any thread

    def post(self, callback: Callable[[], None]) -> None:
        """Make the loop call ``callback``; does nothing without a loop."""
        if self._loop is not None:
            _post(self._loop, callback)

    def reconfigure(self, rules: NewRules, done: Callable[[], None]) -> None:
        """Apply rules; ``done`` is called once queues and connections follow them."""
        self.post(partial(self._rules_are, rules, done))

    def cut_off(self) -> None:
        """Close sockets and journal at once."""
        self.post(self._cut_off)
        # Read once: another thread may be closing the service.
        journal = self._journal
        if journal is not None:
            journal.close(drain=False)

    def renewed(self, lock: Lock, seconds: float) -> None:
        """Record a renewal."""
        metrics = self._metrics
        histogram = (
            metrics.live_renewal_seconds if lock is Lock.LIVE else metrics.backup_renewal_seconds
        )
        histogram.observe(seconds)
        if lock is Lock.LIVE:
            self.post(self._go_on)

    # --- on the loop

    async def _open(
        self,
        manager: NodeManager,
        journal: MessageJournal,
        users: tuple[User, ...],
        certified: tuple[CertificateUser, ...],
        tokens: tuple[TakesTokens, ...],
    ) -> None:
        loop = self._running_loop()
        broker = self._broker = Broker(
            self._settings,
            journal,
            lease_valid=manager.may_deliver,
            call_later=lambda seconds, callback: loop.call_later(seconds, callback),
            time_ms=manager.message_time_ms,
            audit=None if self._audit is None else self._audit.write,
        )
        await self._in_turns(broker.open())
        broker.security.users.replace(users)
        broker.security.certificates.replace(certified)
        broker.security.users.take_tokens(*tokens)
        server = self._server = Acceptors(
            broker,
            journal,
            self._settings.stomp_limits,
            users=self._settings.resource_limit_settings,
            refused=self._metrics.client_refused,
            certificates=self._certificates,
        )
        await server.start(
            self._settings.acceptors,
            _tell_of_acceptor,
        )
        self._management = Management(
            broker,
            ServedClients(server),
            self._settings.name,
            self._handover,
            manager.log.node_id,
            ha_policy_of(self._settings),
        )
        broker.manager = Requests(self._management, broker.security)
        self._managed = Managed(self._management, HttpLogins(broker, server, self._operators()))
        broker.count_backlogs()
        broker.start_schedule()
        broker.start_relay(OutboxMessages(self._settings.stomp_limits, broker.time_ms))

    def _operators(self) -> tuple[User, ...]:
        health = self._settings.health
        return () if health is None else health.operators

    async def _in_turns(self, steps: Steps) -> None:
        """Do steps, and leave the loop to others between them."""
        until = monotonic_seconds() + SLICE_SECONDS
        for _ in steps:
            if monotonic_seconds() >= until:
                self._progress += 1
                await asyncio.sleep(0)
                until = monotonic_seconds() + SLICE_SECONDS

    async def _stop_accepting(self) -> None:
        self._end_management()
        if self._server is not None:
            self._server.stop_reading()
        if self._broker is not None:
            # What was read is still done, as far as that goes.
            await self._end_work(self._broker, _LAST_WORK_SECONDS)
            self._broker.stop()

    @staticmethod
    async def _end_work(broker: Broker, seconds: float) -> None:
        until = monotonic_seconds() + seconds
        while (  # noqa: ASYNC110 - with each turn of the loop a slice of it is done
            not broker.slices.is_idle and monotonic_seconds() < until
        ):
            await asyncio.sleep(0)

    async def _stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            await self._end_work(self._broker, _LAST_WORDS_SECONDS)
        if self._server is not None:
            await self._server.stop()
        self._broker = None
        self._server = None

    def _end_management(self) -> None:
        if self._management is not None:
            self._management.end()
            self._management = self._managed = None

    def _cut_off(self) -> None:
        self._end_management()
        if self._broker is not None:
            self._broker.stop()
        if self._server is not None:
            self._cutting = asyncio.ensure_future(self._server.stop(cut_off=True))

    def _disk_is(self, problem: str | None) -> None:
        if self._broker is not None:
            self._broker.store_use.close_or_reopen("disk", problem)

    def _rules_are(self, rules: NewRules, done: Callable[[], None]) -> None:
        """Apply rules to the broker; a node that waits uses them when it opens."""
        self._settings = rules.settings
        broker, server = self._broker, self._server
        if broker is None or server is None:
            done()
            return
        changed = broker.security.users.configure(rules.settings.users)
        if changed:
            ended = server.clients.end_users(changed, _USER_CHANGED)
            broker.security.audit.users_changed(changed, ended)
            if ended:
                LOGGER.info("ended %d connections of changed users", ended)
        broker.reconfigure(rules, done)

    def _users_are(self, users: tuple[User, ...]) -> None:
        """Apply changed users, and disconnect those affected."""
        if self._broker is not None:
            self._tell_changed(len(users), self._broker.security.users.replace(users))

    def _tokens_are(self, tokens: tuple[TakesTokens, ...]) -> None:
        """Accept tokens by changed keys; who is logged in stays until the token expires."""
        if self._broker is not None:
            self._broker.security.users.take_tokens(*tokens)
            LOGGER.info("reloaded the keys of tokens")

    def _certificate_users_are(self, users: tuple[CertificateUser, ...]) -> None:
        """Apply changed users known by certificates, and disconnect those affected."""
        if self._broker is not None:
            self._tell_changed(len(users), self._broker.security.certificates.replace(users))

    def _tell_changed(self, count: int, changed: frozenset[str]) -> None:
        """Close the connections of changed users, and log how many."""
        if self._broker is None or self._server is None:
            return
        ended = self._server.clients.end_users(changed, _USER_CHANGED)
        if changed:
            self._broker.security.audit.users_changed(changed, ended)
        LOGGER.info(
            "reloaded the files of users: %d users; %d changed or removed, and %d connections of"
            " theirs ended",
            count,
            len(changed),
            ended,
        )

    def _committed(self, report: BatchReport) -> None:
        _, rows, deletes, _, commit_seconds, attempts = report
        self._metrics.batch_committed(rows + deletes, commit_seconds, attempts)

    def _go_on(self) -> None:
        """Resume deliveries that a late renewal held back."""
        if self._broker is not None:
            self._broker.go_on()

    # --- helpers

    def _loaded(self) -> MessageJournal:
        if self._journal is None:
            raise RuntimeError("the journal is not open")
        return self._journal

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the node is not running")
        return self._loop

    def _on_loop(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run ``work`` on the loop and return its result; a loop that hangs is an IO error.

        Work that makes progress is waited for, however long it takes.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        progress = -1
        try:
            while True:
                try:
                    return future.result(_LOOP_CALL_SECONDS)
                except TimeoutError:
                    if progress == self._progress:
                        raise
                    progress = self._progress
        except TimeoutError:
            reason = f"the event loop has not done what it was asked for {_LOOP_CALL_SECONDS:g} s"
            self._hangs(reason)
            raise Interrupted(reason) from None


def in_words(found: FirstLook | None) -> str:
    """Return what waited in the outbox, as the end of a sentence."""
    if found is None:
        return "; the outbox has not been read yet"
    if not found.waiting:
        return "; no row of the outbox waits"
    since = ""
    if found.oldest_ms is not None:
        oldest = datetime.fromtimestamp(found.oldest_ms / 1000, UTC)
        since = f", the oldest since {oldest:%Y-%m-%d %H:%M:%S} UTC"
    rows = (
        "1 row of the outbox waits"
        if found.waiting == 1
        else (f"{found.waiting} rows of the outbox wait")
    )
    return f"; {rows}{since}"


def _tell_of_acceptor(acceptor: AcceptorSettings, host: str, port: int) -> None:
    served = [one for one in acceptor.protocols if one in SERVED_PROTOCOLS]
    by = " by TLS" if acceptor.tls is not None else ""
    LOGGER.info("acceptor open on %s:%d for %s%s", host, port, " and ".join(served), by)


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Run ``callback`` on the loop; does nothing once the loop is closed."""
    try:  # noqa: SIM105 - for each batch: ``suppress`` would be three calls more
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass
