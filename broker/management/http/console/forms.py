"""What a form of the console sends, and what says that it is one of the console's own."""

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from starlette.requests import Request

from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.http.call import ForeignSite, NotJson, data, media_type
from orthia.broker.quoting import quoted

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 2_000


class Form:
    """The fields of a form."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return a field without blanks around it; "" if it is not there."""
        return self._fields.get(name, [""])[0].strip()

    def numbers(self, name: str) -> list[int]:
        """Return the ticked boxes of a name; raises WrongArgument."""
        return [number(name, one) for one in self._fields.get(name, [])]


def number(name: str, text: str) -> int:
    """Return a number that is written in digits, with or without commas; raises WrongArgument."""
    digits = text.replace(",", "").strip()
    if digits.isascii() and digits.isdecimal() and len(digits) < 20:
        return int(digits)
    raise WrongArgument(name, f"{name} is {quoted(text[:100])}; expected a number")


def refuse_unnamed_site(request: Request) -> None:
    """Raise ForeignSite for a form that does not say which page it comes from.

    A browser sends forms for pages of any site, and without asking.
    """
    if "origin" not in request.headers and "sec-fetch-site" not in request.headers:
        raise ForeignSite(
            "the request does not say which page it comes from: a form of the console is sent by a"
            " browser; programs use /api/v1"
        )


async def form(request: Request) -> Form:
    """Return the form of a request of a client that has logged in; raises BrokerError."""
    kind = media_type(request)
    if kind != _FORM:
        raise NotJson(f"expected Content-Type: {_FORM}, not {quoted(kind)}")
    try:
        text = (await data(request)).decode()
        return Form(
            parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
        )
    except ValueError as error:
        raise WrongArgument("form", f"the form cannot be read: {error}") from None
