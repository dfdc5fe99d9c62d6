"""What a client asks for by a message to the management address, whatever protocol it speaks.

Its protocol reads a *request*, waits for it, and tells the client the *answer*, which has the form
that Artemis' management gives it. ``orthia.broker.management.requests`` does what is asked for.
"""

from collections.abc import Generator
from typing import Final

from orthia.broker.core.api import ManagementAnswer, ManagementRequest, Manager
from orthia.broker.core.destinations import MANAGEMENT_ADDRESS
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Wait
from orthia.broker.security.audit import READS

DESTINATIONS: Final = frozenset({MANAGEMENT_ADDRESS, f"/queue/{MANAGEMENT_ADDRESS}"})
RESOURCE: Final = "_AMQ_ResourceName"
OPERATION: Final = "_AMQ_OperationName"
ATTRIBUTE: Final = "_AMQ_Attribute"
SUCCEEDED: Final = "_AMQ_OperationSucceeded"
"""Of an answer: whether its body is the result, and not the reason why nothing was done."""
IN_TRANSACTION: Final = "a management request is done at once, and cannot be in a transaction"
"""Why one that is in a transaction is refused."""


def only_asks(request: ManagementRequest) -> bool:
    """Return whether a request changes nothing, and so makes no sense without an answer."""
    return request.is_attribute or request.operation.startswith(READS)


def asking(
    manager: Manager | None, principal: Principal, request: ManagementRequest
) -> Generator[Wait, None, ManagementAnswer]:
    """Return the answer to a request, in steps that wait for it; raises NotLive."""
    if manager is None:
        raise NotLive("this node is starting or stopping")
    found: list[ManagementAnswer | BrokerError] = []

    def answered(answer: ManagementAnswer | BrokerError) -> None:
        found.append(answer)
        wait()

    wait = Wait(lambda _: abandon(), lambda: f"{request.operation} of {request.resource}")
    abandon = manager.begin(principal, request, answered)
    yield wait
    answer = found[0]
    if isinstance(answer, BrokerError):
        raise answer
    return answer
