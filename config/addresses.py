"""What is configured for one address: matching, specificity and inheritance.

How matches are written ``orthia.config.wildcards`` knows. The most specific match wins: a plain
name, then matches with ``*`` (one whose ``*`` comes later first), then matches with ``#`` (the
longer first), as in Artemis. What it leaves unset is taken from the next, and at last from the
defaults below.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from orthia.config.address_settings import (
    AddressConfiguration,
    AddressFullPolicy,
    AddressSettings,
    PageFullPolicy,
    QueueSettings,
    RoutingType,
    SlowConsumerPolicy,
    SlowConsumerUnit,
)
from orthia.config.queues import LAST_VALUE_NAME, QueueOptions
from orthia.config.settings import Settings
from orthia.config.wildcards import WildcardAddresses

DEFAULT_DEAD_LETTER_ADDRESS: Final = "DLQ"
DEFAULT_EXPIRY_ADDRESS: Final = "ExpiryQueue"
DROP: Final = ""
"""An empty address: what would go there is dropped, as in Artemis."""
UNDELIVERABLE: Final = tuple(
    AddressConfiguration(
        name, frozenset({RoutingType.ANYCAST}), (QueueSettings(name, RoutingType.ANYCAST),)
    )
    for name in (DEFAULT_DEAD_LETTER_ADDRESS, DEFAULT_EXPIRY_ADDRESS)
)
"""What a node has that was started without a ``broker.xml``."""

REPLAYS: Final = "orthia.replay"
"""Where ``orthia pipeline replay`` keeps how far it is: in queues named ``orthia.replay.NAME``."""
_OF_REPLAYS: Final = AddressSettings(f"{REPLAYS}.#", max_delivery_attempts=-1)
"""A marker that became a dead letter, since its reader's connections were lost, would have the next
replay send everything once more."""


@dataclass(frozen=True)
class ResolvedAddressSettings:
    """The settings of one address, nothing left unset. The defaults are those of no match."""

    dead_letter_address: str = DEFAULT_DEAD_LETTER_ADDRESS
    """Where a message goes that was delivered too often; DROP drops it."""
    expiry_address: str = DEFAULT_EXPIRY_ADDRESS
    """Where an expired message goes; DROP drops it."""
    auto_create_dead_letter_resources: bool = False
    """Whether dead letters of the address have a queue of their own at their address."""
    dead_letter_queue_prefix: str = "DLQ."
    dead_letter_queue_suffix: str = ""
    auto_create_expiry_resources: bool = False
    """The same of what expires."""
    expiry_queue_prefix: str = "EXP."
    expiry_queue_suffix: str = ""
    max_delivery_attempts: int = 10
    redelivery_delay: int = 0
    redelivery_delay_multiplier: float = 1.0
    redelivery_collision_avoidance_factor: float = 0.0
    max_redelivery_delay: int = -1
    """-1 is ten times ``redelivery_delay``."""
    expiry_delay: int = -1
    min_expiry_delay: int = -1
    max_expiry_delay: int = -1
    no_expiry: bool = False
    enable_ingress_timestamp: bool = False
    address_full_policy: AddressFullPolicy = AddressFullPolicy.PAGE
    max_size_bytes: int = -1
    max_size_messages: int = -1
    page_limit_bytes: int = -1
    page_limit_messages: int = -1
    page_full_policy: PageFullPolicy = PageFullPolicy.FAIL
    page_size_bytes: int = 10_485_760
    id_cache_size: int = 20_000
    """Duplicate ids that are kept; by default as many as ``Settings.id_cache_size`` says."""
    auto_create_queues: bool = True
    auto_create_addresses: bool = True
    default_max_consumers: int = -1
    default_queue_routing_type: RoutingType | None = None
    """None leaves it to ``default_address_routing_type``."""
    slow_consumer_threshold: int = -1
    slow_consumer_threshold_measurement_unit: SlowConsumerUnit = (
        SlowConsumerUnit.MESSAGES_PER_SECOND
    )
    slow_consumer_policy: SlowConsumerPolicy = SlowConsumerPolicy.NOTIFY
    slow_consumer_check_period: int = 5
    """Seconds."""
    auto_delete_queues: bool = False
    """Artemis' default is true; by it a queue is gone that its producer may not create again."""
    auto_delete_queues_delay: int = 0
    auto_delete_queues_message_count: int = 0
    """-1 for any number of messages."""
    default_exclusive_queue: bool = False
    default_purge_on_no_consumers: bool = False
    default_ring_size: int = -1
    default_non_destructive: bool = False
    default_group_buckets: int = -1
    default_group_first_key: str | None = None
    default_group_rebalance: bool = False
    default_group_rebalance_pause_dispatch: bool = False
    default_consumers_before_dispatch: int = 0
    default_delay_before_dispatch: int = -1
    default_last_value_queue: bool = False
    last_value_queue: bool = False
    """The same, as it was called before."""
    default_last_value_key: str | None = None
    """One that is set makes queues last value queues."""
    default_address_routing_type: RoutingType = RoutingType.ANYCAST
    """Artemis' default is MULTICAST. A plain name that nobody configured then means a topic, and
    what is sent while nobody listens is gone; a queue keeps it, and two who disagree about the
    name lose nothing."""


def options_of(settings: ResolvedAddressSettings, given: Mapping[str, Any]) -> QueueOptions:
    """Return the options of a queue that sets those ``given`` itself, at an address."""
    defaults = QueueOptions(
        exclusive=settings.default_exclusive_queue,
        purge_on_no_consumers=settings.default_purge_on_no_consumers,
        ring_size=settings.default_ring_size,
        non_destructive=settings.default_non_destructive,
        group_buckets=settings.default_group_buckets,
        group_first_key=settings.default_group_first_key,
        group_rebalance=settings.default_group_rebalance,
        group_rebalance_pause_dispatch=settings.default_group_rebalance_pause_dispatch,
        consumers_before_dispatch=settings.default_consumers_before_dispatch,
        delay_before_dispatch=settings.default_delay_before_dispatch,
    )
    own = dict(given)
    key = own.pop("last_value_key", None) or settings.default_last_value_key
    is_last_value = own.pop("last_value", None)
    if is_last_value is None:
        is_last_value = (
            key is not None or settings.default_last_value_queue or settings.last_value_queue
        )
    return replace(
        defaults, **own, last_value_key=(key or LAST_VALUE_NAME) if is_last_value else None
    )


class _Matching(Protocol):
    @property
    def match(self) -> str: ...


M = TypeVar("M", bound=_Matching)

_ARTEMIS: Final = WildcardAddresses()
_DEFAULTS: Final = ResolvedAddressSettings()


class MatchIndex(Generic[M]):
    """Settings by their match.

    There may be as many as there are addresses, each by its name, and all are asked for when a node
    opens: a plain name is looked up, and only matches with ``*`` or ``#`` are tried.
    """

    def __init__(self, candidates: Iterable[M], wildcards: WildcardAddresses = _ARTEMIS) -> None:
        self._plain: dict[str, list[M]] = {}
        wild: list[M] = []
        for one in candidates:
            if wildcards.is_pattern(one.match):
                wild.append(one)
            else:
                self._plain.setdefault(one.match, []).append(one)
        wild.sort(key=lambda one: wildcards.specificity(one.match))
        self._wild = [(wildcards.matcher(one.match), one) for one in wild]

    def most_specific_first(self, address: str) -> list[M]:
        """Return those that match ``address``, the most specific first."""
        found = [one for matches_it, one in self._wild if matches_it(address)]
        plain = self._plain.get(address)
        return found if plain is None else plain + found


class AddressResolver:
    """The settings of each address."""

    def __init__(self, settings: Settings) -> None:
        # What is configured for the same match comes first, and wins.
        self._defaults = replace(_DEFAULTS, id_cache_size=settings.id_cache_size)
        wildcards = settings.wildcard_addresses
        of_replays = replace(
            _OF_REPLAYS, match=wildcards.delimiter.join((REPLAYS, wildcards.any_words))
        )
        self._matching = MatchIndex((*settings.address_settings, of_replays), wildcards)
        self._resolved: dict[tuple[int, ...], ResolvedAddressSettings] = {}
        """By the ids of what matches: most addresses share theirs with many others."""

    def resolve(self, address: str) -> ResolvedAddressSettings:
        """Return the settings of ``address``; not meant for a hot path."""
        matching = self._matching.most_specific_first(address)
        key = tuple(map(id, matching))
        resolved = self._resolved.get(key)
        if resolved is None:
            values = {
                setting.name: _first_set(
                    matching, setting.name, getattr(self._defaults, setting.name)
                )
                for setting in fields(ResolvedAddressSettings)
            }
            resolved = self._resolved[key] = ResolvedAddressSettings(**values)
        return resolved


def _first_set(matching: Iterable[AddressSettings], name: str, default: object) -> Any:
    values = (getattr(setting, name) for setting in matching)
    return next((value for value in values if value is not None), default)
