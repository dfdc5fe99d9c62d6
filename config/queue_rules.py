"""Rules of queues that are made for messages, or keep them otherwise than others."""

from collections.abc import Iterator, Sequence

from orthia.config.address_settings import AddressSettings, QueueSettings
from orthia.config.addresses import AddressResolver, options_of
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings

_MADE_FOR_UNDELIVERABLE = (
    ("dead-letter", "dead_letter_queue_prefix", "dead_letter_queue_suffix"),
    ("expiry", "expiry_queue_prefix", "expiry_queue_suffix"),
)


def problems_of_names(settings: Sequence[AddressSettings]) -> Iterator[tuple[str, str, str]]:
    """Yield a match, an element and what is wrong with it.

    Between a prefix and a suffix that are both empty is the name of the address, whose own queue is
    called so.
    """
    for what, prefix, suffix in _MADE_FOR_UNDELIVERABLE:
        without_prefix = any(getattr(one, prefix) == "" for one in settings)
        for one in settings:
            has_prefix, has_suffix = getattr(one, prefix), getattr(one, suffix)
            if has_prefix == "" and not has_suffix:
                yield (
                    one.match,
                    f"{what}-queue-prefix",
                    f"is empty, and {what}-queue-suffix is not set beside it: such a queue would be"
                    " called as its address; expected one of the two not empty",
                )
            elif has_suffix == "" and has_prefix is None and without_prefix:
                yield (
                    one.match,
                    f"{what}-queue-suffix",
                    f"is empty, and {what}-queue-prefix is empty in another address-setting: such a"
                    f" queue might be called as its address; expected a {what}-queue-prefix beside"
                    " it",
                )


def conflicts(settings: Settings) -> Iterator[tuple[str, QueueSettings, str]]:
    """Yield an address, a queue of it that is declared, and what cannot be said of one queue."""
    resolver = AddressResolver(settings)
    for address in settings.addresses:
        of_address = resolver.resolve(address.name)
        for queue in address.queues:
            conflict = _conflict(settings, options_of(of_address, queue.options))
            if conflict is not None:
                yield address.name, queue, conflict


def conflicts_of_defaults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield a match and what cannot be said of the queues that are created for clients there."""
    resolver = AddressResolver(settings)
    for one in settings.address_settings:
        # The match as an address: what else matches it has all that it matches itself.
        conflict = _conflict(settings, options_of(resolver.resolve(one.match), {}))
        if conflict is not None:
            yield one.match, conflict


def _conflict(settings: Settings, options: QueueOptions) -> str | None:
    if options.non_destructive and not settings.persistence_enabled:
        return (
            "is non-destructive, and persistence-enabled is false: its consumers read it from the"
            " store; expected persistence-enabled true, or non-destructive false"
        )
    return options.conflict
