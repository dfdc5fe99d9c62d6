"""Rules of addresses, of their queues and of what is set of them."""

from collections.abc import Callable, Iterator
from typing import Final

from orthia.config.queue_rules import conflicts, conflicts_of_defaults, problems_of_names
from orthia.config.settings import Settings
from orthia.config.violations import Violation, repeated


def _wildcards(settings: Settings) -> Iterator[Violation]:
    words = settings.wildcard_addresses
    given = {
        "delimiter": words.delimiter,
        "any-words": words.any_words,
        "single-word": words.single_word,
    }
    for name, value in given.items():
        if list(given.values()).count(value) > 1:
            yield Violation(
                f"core/wildcard-addresses/{name}",
                f"is {value!r}, and so is another of them; expected three that differ",
            )


def _addresses(settings: Settings) -> Iterator[Violation]:
    yield from repeated("core/addresses/address", (address.name for address in settings.addresses))
    owners: dict[str, str] = {}
    for address in settings.addresses:
        for queue in address.queues:
            element = f"core/addresses/address[{address.name}]/queue[{queue.name}]"
            if queue.name in owners:
                yield Violation(
                    element,
                    f"the queue {queue.name!r} is also declared under address"
                    f" {owners[queue.name]!r}; expected a name of its own",
                )
            owners.setdefault(queue.name, address.name)
            if queue.routing_type not in address.routing_types:
                yield Violation(
                    element,
                    f"is {queue.routing_type.value} under an address that is not;"
                    f" expected it under <{queue.routing_type.value.lower()}>",
                )
            if queue.max_consumers < -1:
                yield Violation(
                    element, f"max-consumers is {queue.max_consumers}; expected -1 (any) or more"
                )

    for name, queue, conflict in conflicts(settings):
        yield Violation(f"core/addresses/address[{name}]/queue[{queue.name}]", conflict)


def _address_settings(settings: Settings) -> Iterator[Violation]:
    for match, conflict in conflicts_of_defaults(settings):
        element = f"core/address-settings/address-setting[{match}]"
        yield Violation(element, f"a queue that is created there {conflict}")
    yield from repeated(
        "core/address-settings/address-setting", (one.match for one in settings.address_settings)
    )
    for one in settings.address_settings:
        element = f"core/address-settings/address-setting[{one.match}]"
        numbers: tuple[tuple[str, float | None, float, str], ...] = (
            ("max-delivery-attempts", one.max_delivery_attempts, -1, "-1 or 0 (no limit) or more"),
            ("redelivery-delay", one.redelivery_delay, 0, "0 or more"),
            ("redelivery-delay-multiplier", one.redelivery_delay_multiplier, 0, "0 or more"),
            (
                "redelivery-collision-avoidance-factor",
                one.redelivery_collision_avoidance_factor,
                0,
                "0 to 1",
            ),
            ("max-redelivery-delay", one.max_redelivery_delay, -1, "-1 or more"),
            ("expiry-delay", one.expiry_delay, -1, "-1 or more"),
            ("min-expiry-delay", one.min_expiry_delay, -1, "-1 or more"),
            ("max-expiry-delay", one.max_expiry_delay, -1, "-1 or more"),
            ("max-size-bytes", one.max_size_bytes, -1, "-1 (no limit) or more"),
            ("max-size-messages", one.max_size_messages, -1, "-1 (no limit) or more"),
            ("page-size-bytes", one.page_size_bytes, 1, "1 or more"),
            ("page-limit-bytes", one.page_limit_bytes, -1, "-1 (no limit) or more"),
            ("page-limit-messages", one.page_limit_messages, -1, "-1 (no limit) or more"),
            ("id-cache-size", one.id_cache_size, 0, "0 or more"),
        )
        for name, value, least, expected in numbers:
            if value is not None and value < least:
                yield Violation(f"{element}/{name}", f"is {value}; expected {expected}")
        if (one.redelivery_collision_avoidance_factor or 0) > 1:
            yield Violation(
                f"{element}/redelivery-collision-avoidance-factor",
                f"is {one.redelivery_collision_avoidance_factor}; expected 0 to 1",
            )
        if one.slow_consumer_check_period is not None and one.slow_consumer_check_period < 1:
            yield Violation(
                f"{element}/slow-consumer-check-period",
                f"is {one.slow_consumer_check_period} s; expected 1 or more",
            )
        for name, target in (
            ("dead-letter-address", one.dead_letter_address),
            ("expiry-address", one.expiry_address),
        ):
            if target is not None and any(sign in target for sign in "*#"):
                yield Violation(
                    f"{element}/{name}",
                    f"{target!r} has a wildcard; expected the name of one address",
                )
    for match, name, problem in problems_of_names(settings.address_settings):
        yield Violation(f"core/address-settings/address-setting[{match}]/{name}", problem)


ADDRESS_RULES: Final[tuple[Callable[[Settings], Iterator[Violation]], ...]] = (
    _wildcards,
    _addresses,
    _address_settings,
)
