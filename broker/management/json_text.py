"""JSON that operators write, read so that every text in it can be stored, sent and logged."""

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Return what a JSON text says; raises ValueError, RecursionError.

    Python reads ``NaN`` and the like too, which no client reads in what it is answered; and half of
    a surrogate pair, as ``\\ud83d`` alone, which is no character.
    """
    found = json.loads(text, parse_constant=_refuse_constant)
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise ValueError(f"{half} is half of a surrogate pair, and no character") from None
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number in JSON")
