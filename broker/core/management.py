"""What a client asks for by a message to the management address, whatever protocol it speaks.

Its protocol reads a *request*, has it done, and tells the client the *answer*, which has the form
that Artemis' management gives it. ``orthia.broker.management.requests`` does what is asked for.
"""

from collections.abc import Generator

from orthia.broker.core.api import ManagementAnswer, ManagementRequest, Manager
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Wait
from orthia.broker.security.audit import READS


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
