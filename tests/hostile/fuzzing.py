"""How long to fuzz: a few new inputs in every test run, many for ``make fuzz``.

A failure prints ``@reproduce_failure(...)``: put above the test, it repeats that very input.
"""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_ASKED = os.environ.get("FUZZ_EXAMPLES")


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """Decorate a test: ``examples`` new inputs, or FUZZ_EXAMPLES if that is set."""
    return settings(
        max_examples=int(_ASKED) if _ASKED else examples,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


class Long(bytes):
    """Bytes whose repr is short enough for a report."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes: {self[:8]!r}...>"


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, tokens: tuple[bytes, ...] = ()) -> bytes:
    """Draw ``whole`` with pieces cut out, doubled, moved, flipped or replaced by a token."""
    data = whole
    junk = st.one_of(st.sampled_from(tokens), st.binary(max_size=8)) if tokens else st.binary()
    for _ in range(draw(st.integers(1, 4))):
        a, b = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        b = min(b, a + draw(st.sampled_from([1, 8, 64, 10_000])))
        match draw(st.sampled_from("cut double replace insert flip end".split())):
            case "cut":
                data = data[:a] + data[b:]
            case "double":
                data = data[:b] + data[a:]
            case "replace":
                data = data[:a] + draw(junk) + data[b:]
            case "insert":
                data = data[:a] + draw(junk) + data[a:]
            case "flip" if a < len(data):
                data = data[:a] + bytes([data[a] ^ (1 << draw(st.integers(0, 7)))]) + data[a + 1 :]
            case _:
                data = data[:b]
    return data
