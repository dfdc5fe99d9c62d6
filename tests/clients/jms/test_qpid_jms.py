"""The tests of qpid-jms itself that need a broker; ``make test-amqp QPID_JMS=CHECKOUT`` has them.

They are written for a broker of Java in their own process. What is in ``qpid/glue`` takes the place
of their base class, and asks a node by Jolokia what the broker would say.
"""

import os
import re
from pathlib import Path
from typing import Final

import pytest

from tests.clients.jms.java import Program, missing, reason
from tests.process.file_nodes import file_cluster
from tests.support.servers import free_port

CHECKOUT: Final = os.environ.get("QPID_JMS", "")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(1_500),
    pytest.mark.skipif(missing("qpid"), reason=reason("test-amqp")),
    pytest.mark.skipif(not CHECKOUT, reason="there is no QPID_JMS, a checkout of apache/qpid-jms"),
]
SOURCES: Final = "qpid-jms-interop-tests/qpid-jms-activemq-tests/src/test/java"
LEFT_OUT: Final = re.compile(
    "/bench/|/discovery/|/failover/|WS|SSL|FlowControl|DurableSubscriber|RedeliveryPolicy"
)
"""Files that start, configure or ask a broker of Java in each test, or measure it."""
PERMISSIONS: Final = (
    *("send", "consume", "browse", "manage", "view", "edit", "createAddress", "deleteAddress"),
    *("createDurableQueue", "deleteDurableQueue", "createNonDurableQueue"),
    "deleteNonDurableQueue",
)


def core(port: int) -> str:
    """Return what a node's broker.xml says: the users of the tests, and where Jolokia is."""
    permissions = "".join(f'<permission type="{one}" roles="admins"/>' for one in PERMISSIONS)
    return f"""<health xmlns="urn:orthia"><port>{port}</port></health>
        <users xmlns="urn:orthia"><user name="system" password="manager" roles="admins"/>
        <user name="guest" password="password" roles="guests"/></users>
        <security-settings><security-setting match="#">{permissions}</security-setting>
        </security-settings>"""


def test_no_test_of_qpid_jms_fails(tmp_path: Path) -> None:
    """Those that stop the broker, or ask what a node does not tell, are skipped."""
    sources = Path(CHECKOUT) / SOURCES
    tests = [one for one in sources.rglob("*Test.java") if not LEFT_OUT.search(str(one))]
    program = Program("qpid", tmp_path, *tests, *sources.rglob("Wait.java"))
    port = free_port()
    with file_cluster(tmp_path, core(port), security="") as cluster:
        program.start(
            "org.junit.platform.console.ConsoleLauncher",
            *("execute", "--scan-classpath", str(program.classes), "--disable-ansi-colors"),
            node_url=f"amqp://127.0.0.1:{cluster.alone().port}",
            node_jolokia=f"http://127.0.0.1:{port}/console/jolokia",
        )
        told = "\n".join(program.end(1_200))
    assert re.search(r"\[ +0 tests failed", told), told
    successful = re.search(r"\[ +(\d+) tests successful", told)
    assert successful is not None
    assert int(successful[1]) >= 132, told
