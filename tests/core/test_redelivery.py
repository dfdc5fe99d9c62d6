"""When messages are delivered again that were delivered in vain, over takeovers too."""

import pytest

from orthia.broker.core.queue.redelivery import redelivery_delay_ms
from orthia.config.addresses import ResolvedAddressSettings


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({}, [0, 0, 0]),
        ({"redelivery_delay": 100}, [100, 100, 100]),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 2.0}, [100, 200, 400]),
        (
            {
                "redelivery_delay": 100,
                "redelivery_delay_multiplier": 2.0,
                "max_redelivery_delay": 300,
            },
            [100, 200, 300],
        ),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 11.0}, [100, 1_000, 1_000]),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 1.5}, [100, 150, 225]),
        ({"redelivery_delay": 100, "max_redelivery_delay": 0}, [0, 0, 0]),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 0.0}, [100, 0, 0]),
    ],
)
def test_the_delay_is_artemis(options: dict[str, float], delays: list[int]) -> None:
    """It grows by its multiplier, and by no more than ten times if nothing else is said."""
    resolved = ResolvedAddressSettings(**options)  # type: ignore[arg-type]
    found = [redelivery_delay_ms(resolved, attempts, lambda: 0.5) for attempts in (1, 2, 3)]
    assert found == delays


def test_chance_makes_a_delay_longer_or_shorter() -> None:
    """Up to its factor, in both directions; a delay of very many attempts is the longest."""
    resolved = ResolvedAddressSettings(
        redelivery_delay=1_000,
        redelivery_collision_avoidance_factor=0.25,
        redelivery_delay_multiplier=3.0,
    )
    chances = iter((0.0, 0.5, 0.75))
    found = [redelivery_delay_ms(resolved, 1, lambda: next(chances)) for _ in range(3)]
    assert found == [750, 1_000, 1_125]
    assert redelivery_delay_ms(resolved, 10_000, lambda: 0.0) == 10_000
