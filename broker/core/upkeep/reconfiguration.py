"""Having the core of a live node be as a changed ``broker.xml`` says, while clients use it."""

from collections.abc import Callable
from typing import NamedTuple

from orthia.broker.core.errors import NotLive
from orthia.broker.core.failures import by_itself
from orthia.broker.core.routing.address_rules import AddressRules
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.routing.declared import DeclaredAddresses
from orthia.broker.core.routing.sources import Sources
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.core.upkeep.expiry import AddressExpiry, says_when
from orthia.broker.core.upkeep.housekeeping import Housekeeping
from orthia.broker.security.permissions import PermissionRules, Security
from orthia.config.settings import Settings


class NewRules(NamedTuple):
    """What a core is to be like, ready to be asked."""

    settings: Settings
    addresses: AddressRules
    permissions: PermissionRules

    @classmethod
    def of(cls, settings: Settings) -> "NewRules":
        """Make them, on any thread; raises ConfigurationError for a filter that is none."""
        return cls(settings, AddressRules(settings), PermissionRules(settings))


class Reconfiguration:
    """Does it in short steps, which others' work goes between; on the loop's thread.

    New rules count at once for whatever is asked from then on; addresses that are known follow one
    by one, and then what is declared. Consumers are judged by changed permissions last.
    """

    def __init__(
        self,
        book: AddressBook,
        creation: AutoCreation,
        security: Security,
        sources: Sources,
        housekeeping: Housekeeping,
        expire_as: Callable[[Settings], None],
    ) -> None:
        self._book = book
        self._creation = creation
        self._security = security
        self._sources = sources
        self._housekeeping = housekeeping
        self._expire_as = expire_as
        self._declared = DeclaredAddresses(book)

    def beginning(self, settings: Settings) -> Steps:
        """Apply the first settings to a new core; raises NotLive."""
        self._expire_as(settings)
        yield from self._declared.creating()

    def steps(self, rules: NewRules, done: Callable[[], None]) -> Steps:
        """Apply changed rules; call ``done`` after the last step, whatever failed."""
        try:
            with by_itself("a part of the changed broker.xml cannot be applied"):
                yield from self._applying(rules)
        finally:
            done()

    def _applying(self, rules: NewRules) -> Steps:
        others_may = not rules.permissions.says_the_same(self._security.rules)
        self._security.rules = rules.permissions
        self._book.said = rules.addresses
        self._creation.configure(rules.settings)
        self._housekeeping.configure(rules.settings)
        self._expire_as(rules.settings)
        yield GO_ON
        for name in list(self._book.known):
            yield from self._book.refreshing(name)
            yield GO_ON
        # Whatever fails of it keeps nobody who lost a permission.
        with by_itself("a part of what the changed broker.xml declares cannot be created"):
            try:
                yield from self._declared.creating()
            except NotLive:
                return  # this node is ending: the next reads the file itself
        if others_may:
            yield from self._sources.ending_unpermitted()


def expiry_of(
    book: AddressBook, context: SendContext, time_ms: Callable[[], int]
) -> Callable[[Settings], None]:
    """Return what has messages expire as settings say; where none says so, nobody is asked."""
    expiry = AddressExpiry(book.settings_of, time_ms)

    def expire_as(settings: Settings) -> None:
        is_said = any(says_when(one) for one in settings.address_settings)
        context.expiry = book.expiry = expiry if is_said else None

    return expire_as
