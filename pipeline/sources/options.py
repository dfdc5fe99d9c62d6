"""Checks of options that all data sources share."""

from collections.abc import Iterable, Mapping

from orthia.pipeline.errors import BadOption


def positive(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number of at least 1; raises BadOption."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadOption(f"option {name}: {text!r} is not a number of at least 1")
    return int(text)


def check_options(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise BadOption for an unknown option; Spark's own ``path`` is ignored."""
    unknown = {name.lower() for name in options} - {*known, "path"}
    if unknown:
        raise BadOption(
            f"unknown option {', '.join(sorted(unknown))}; expected one of"
            f" {', '.join(sorted(known))}"
        )
