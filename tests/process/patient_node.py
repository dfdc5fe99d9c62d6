"""The command line of a node that waits longer for a port: python -m tests.process.patient_node."""

from typing import Any

from orthia.broker.cli import main
from orthia.broker.connections import listening

if __name__ == "__main__":
    module: Any = listening
    module.LONGEST_WAIT_SECONDS = 120.0
    main()
