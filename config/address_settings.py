"""Addresses, their queues and what is set of them, as ``broker.xml`` says it.

What is in effect for one address ``orthia.config.addresses`` works out of it. Names, units and
defaults are as ``orthia.config.settings`` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class RoutingType(Enum):
    """Artemis' routing types: to one queue of the address, or to every one."""

    ANYCAST = "ANYCAST"
    MULTICAST = "MULTICAST"


@dataclass(frozen=True)
class QueueSettings:
    """A ``queue`` declared under an address."""

    name: str
    routing_type: RoutingType
    max_consumers: int = -1
    durable: bool = True
    """False: it and its messages end with the node."""
    user: str | None = None
    """Whose it counts as."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``QueueOptions`` that it sets itself; the others its address' defaults say."""


class SlowConsumerPolicy(Enum):
    """What happens to a slow consumer."""

    KILL = "KILL"
    NOTIFY = "NOTIFY"


class SlowConsumerUnit(Enum):
    """What ``slow-consumer-threshold`` counts."""

    MESSAGES_PER_SECOND = "MESSAGES_PER_SECOND"
    MESSAGES_PER_MINUTE = "MESSAGES_PER_MINUTE"
    MESSAGES_PER_HOUR = "MESSAGES_PER_HOUR"
    MESSAGES_PER_DAY = "MESSAGES_PER_DAY"


class DivertRoutingType(Enum):
    """What a diverted message is routed as at its new address."""

    STRIP = "STRIP"
    """As that address is, to each type that it has."""
    PASS = "PASS"  # noqa: S105 - passes the type on
    """As it was sent."""
    ANYCAST = "ANYCAST"
    MULTICAST = "MULTICAST"


@dataclass(frozen=True)
class DivertSettings:
    """A ``divert``: what is sent to one address goes to another, too or instead."""

    name: str
    address: str
    """May have wildcards."""
    forwarding_address: str
    filter: str | None = None
    """A selector; None for every message."""
    exclusive: bool = False
    """Whether it goes to the other address instead."""
    routing_type: DivertRoutingType = DivertRoutingType.STRIP


@dataclass(frozen=True)
class AddressConfiguration:
    """An ``address`` declared under ``addresses``."""

    name: str
    routing_types: frozenset[RoutingType]
    queues: tuple[QueueSettings, ...] = ()


class AddressFullPolicy(Enum):
    """What happens to a SEND when an address has ``max-size-bytes`` or ``max-size-messages``."""

    PAGE = "PAGE"
    FAIL = "FAIL"
    BLOCK = "BLOCK"
    """Artemis' own: its sender waits until there is room."""
    DROP = "DROP"


class PageFullPolicy(Enum):
    """What happens to a SEND beyond ``page-limit-bytes`` or ``page-limit-messages``."""

    FAIL = "FAIL"
    DROP = "DROP"


@dataclass(frozen=True)
class AddressSettings:
    """One ``address-setting``; ``match`` uses ``.`` between words, ``*`` a word, ``#`` any words.

    A value of None is not set here and is inherited from a less specific match.
    """

    match: str
    dead_letter_address: str | None = None
    expiry_address: str | None = None
    auto_create_dead_letter_resources: bool | None = None
    dead_letter_queue_prefix: str | None = None
    dead_letter_queue_suffix: str | None = None
    auto_create_expiry_resources: bool | None = None
    expiry_queue_prefix: str | None = None
    expiry_queue_suffix: str | None = None
    max_delivery_attempts: int | None = None
    redelivery_delay: int | None = None
    redelivery_delay_multiplier: float | None = None
    redelivery_collision_avoidance_factor: float | None = None
    max_redelivery_delay: int | None = None
    expiry_delay: int | None = None
    min_expiry_delay: int | None = None
    max_expiry_delay: int | None = None
    no_expiry: bool | None = None
    enable_ingress_timestamp: bool | None = None
    address_full_policy: AddressFullPolicy | None = None
    max_size_bytes: int | None = None
    max_size_messages: int | None = None
    page_limit_bytes: int | None = None
    page_limit_messages: int | None = None
    page_full_policy: PageFullPolicy | None = None
    page_size_bytes: int | None = None
    auto_create_queues: bool | None = None
    auto_create_addresses: bool | None = None
    default_address_routing_type: RoutingType | None = None
    default_max_consumers: int | None = None
    id_cache_size: int | None = None
    default_queue_routing_type: RoutingType | None = None
    slow_consumer_threshold: int | None = None
    slow_consumer_threshold_measurement_unit: SlowConsumerUnit | None = None
    slow_consumer_policy: SlowConsumerPolicy | None = None
    slow_consumer_check_period: int | None = None
    auto_delete_queues: bool | None = None
    auto_delete_queues_delay: int | None = None
    auto_delete_queues_message_count: int | None = None
    default_exclusive_queue: bool | None = None
    default_purge_on_no_consumers: bool | None = None
    default_non_destructive: bool | None = None
    default_ring_size: int | None = None
    default_group_buckets: int | None = None
    default_group_first_key: str | None = None
    default_group_rebalance: bool | None = None
    default_group_rebalance_pause_dispatch: bool | None = None
    default_consumers_before_dispatch: int | None = None
    default_delay_before_dispatch: int | None = None
    default_last_value_queue: bool | None = None
    last_value_queue: bool | None = None
    default_last_value_key: str | None = None
