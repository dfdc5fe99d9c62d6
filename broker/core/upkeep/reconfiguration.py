"""Applying a changed ``broker.xml`` to the core of a live node, while clients use it."""

from collections.abc import Callable
from typing import NamedTuple

from orthia.broker.core.errors import NotLive
from orthia.broker.core.failures import by_itself
from orthia.broker.core.routing.address_rules import AddressRules
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.routing.declared import DeclaredAddresses
from orthia.broker.core.routing.sources import Sources
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.core.upkeep.housekeeping import Housekeeping
from orthia.broker.security.permissions import PermissionRules, Security
from orthia.config.settings import Settings


class NewRules(NamedTuple):
    """The rules of a ``broker.xml`` for the core, ready to be applied."""

    settings: Settings
    addresses: AddressRules
    permissions: PermissionRules

    @classmethod
    def of(cls, settings: Settings) -> "NewRules":
        """Make them, on any thread; raises ConfigurationError for a bad filter."""
        return cls(settings, AddressRules(settings), PermissionRules(settings))


class Reconfiguration:
    """Applies rules in short steps; on the loop's thread.

    New rules apply at once to what is asked from then on. Known addresses follow one by one, then
    what is declared. Existing consumers are checked by changed permissions last.
    """

    def __init__(
        self,
        book: AddressBook,
        creation: AutoCreation,
        security: Security,
        sources: Sources,
        housekeeping: Housekeeping,
    ) -> None:
        self._book = book
        self._creation = creation
        self._security = security
        self._sources = sources
        self._housekeeping = housekeeping
        self._declared = DeclaredAddresses(book)

    def beginning(self) -> Steps:
        """Create what the first settings declare, in a new core; raises NotLive."""
        yield from self._declared.creating()

    def steps(self, rules: NewRules, done: Callable[[], None]) -> Steps:
        """Apply changed rules; call ``done`` after the last step, even if something failed."""
        try:
            with by_itself("applying a part of the changed broker.xml failed"):
                yield from self._applying(rules)
        finally:
            done()

    def _applying(self, rules: NewRules) -> Steps:
        others_may = not rules.permissions.says_the_same(self._security.rules)
        self._security.rules = rules.permissions
        self._book.rules = rules.addresses
        self._creation.configure(rules.settings)
        self._housekeeping.configure(rules.settings)
        yield GO_ON
        for name in list(self._book.known):
            yield from self._book.refreshing(name)
            yield GO_ON
        # If this fails, clients that lost a permission are ended all the same.
        with by_itself("creating what the changed broker.xml declares failed"):
            try:
                yield from self._declared.creating()
            except NotLive:
                return  # this node is ending: the next reads the file itself
        if others_may:
            yield from self._sources.ending_unpermitted()
