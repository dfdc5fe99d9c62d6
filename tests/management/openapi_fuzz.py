"""Holds the API against its OpenAPI document with schemathesis: run by ``make test-api``.

    python -m tests.management.openapi_fuzz SCHEMATHESIS [OPTION ...]

A core behind a real HTTP server, with a login, is asked what the document allows and what it does
not. Values that no schema can tell from good ones, such as a selector's text, are refused with 400:
so that a request of the right form is refused is no failure here.
"""

import asyncio
import base64
import sys
from collections.abc import Sequence

from tests.management.support import OPERATOR
from tests.management.test_api import Api

_LOGIN = base64.b64encode("op:päss:word".encode()).decode()


def main(schemathesis: str, options: Sequence[str]) -> int:
    """Return the exit code of schemathesis."""
    api = Api()
    node = api.node
    node.run(node.management.create_queue(OPERATOR, "orders"))
    node.core.send("/queue/orders", "a", "b", "c")

    async def run() -> int:
        async with api.serving() as port:
            url = f"http://127.0.0.1:{port}/api/v1"
            process = await asyncio.create_subprocess_exec(
                *(schemathesis, "run", f"{url}/openapi.json", "--url", url),
                *("--header", f"Authorization: Basic {_LOGIN}"),
                *("--exclude-checks", "positive_data_acceptance", "--continue-on-failure"),
                *options,
            )
            return await process.wait()

    return node.run(run(), forever=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
