"""What the facade refuses beside what the core does; the text goes to whoever asked.

| error              | what is the case                                                    |
|--------------------|---------------------------------------------------------------------|
| ``NotFound``       | there is no such queue, address, message, job, connection, consumer |
| ``AlreadyThere``   | there is one of that name already                                   |
| ``WrongArgument``  | what was asked for makes no sense, whatever the node's state is     |
| ``NotPossible``    | it makes sense, and this node cannot do it as it is                 |
"""

from orthia.broker.core.errors import BrokerError
from orthia.broker.quoting import quoted


class NotFound(BrokerError):  # noqa: N818 - named for what is the case
    """There is nothing of that name or id."""

    def __init__(self, what: str, name: str, hint: str = "") -> None:
        """``what`` is the kind of thing: "queue"."""
        super().__init__(f"there is no {what} {quoted(name)}{hint}")
        self.what = what
        self.name = name


class AlreadyThere(BrokerError):  # noqa: N818 - named for what is the case
    """There is one of that name."""


class WrongArgument(BrokerError):  # noqa: N818 - named for what is the case
    """An argument has a value it cannot have."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(problem)
        self.argument = argument
        """Its name in the call."""


class NotPossible(BrokerError):  # noqa: N818 - named for what is the case
    """This node cannot do it as it is; the text says what would have to be otherwise."""
