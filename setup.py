"""What setup.cfg cannot say: mypyc compiles the modules that decide, where it is to.

tools/build_backend.py, which calls this, decides that, and how far the C compiler optimizes.
The version of what is compiled ends in ``+compiled``: ``orthia --version`` and the line a node
starts with say so.
"""

import os
from configparser import ConfigParser

from setuptools import setup

COMPILED = {
    "orthia/broker/core": "address addresses auto_creation backlog broker browsing commit counters"
    " cursor dispatcher expiry gate last_value left_over leveled levels memory non_destructive"
    " optioned publisher queue queue_factory quota redelivery relocation schedule schedule_queues"
    " selective settlement showing sources subscriptions targets topic topic_memory turns"
    " undeliverable volatile window",
    "orthia/broker/protocols/stomp": "attempts client_frame committing connecting connection"
    " consuming encoding frames headers heartbeats holdings inbox options outbox parser parts"
    " prefixes receipts sending several states streaming subscribing subscriptions"
    " timeouts transactions uploads",
    "orthia/journal": "changes codec document encodings fields message moments unit xid",
    "orthia/journal/engine": "batch intake",
}
"""By room. Not ``core/identity``: somebody has weak references to a ``Principal``, and a compiled
class takes none. Nor ``core/publication``: the base of one of its classes is not compiled."""


def _modules() -> list[str]:
    """Return the files to compile; mypyc names one that is not there."""
    return [f"{room}/{name}.py" for room, names in COMPILED.items() for name in names.split()]


_LEVEL = os.environ.get("_ORTHIA_MYPYC_LEVEL")

if _LEVEL is not None:
    from mypyc.build import mypycify

    config = ConfigParser()
    config.read("setup.cfg", encoding="utf-8")
    setup(
        # Not by egg_info's tag_build, which setuptools writes into a source archive as it is there.
        version=f"{config['metadata']['version']}+compiled",
        ext_modules=mypycify(
            _modules(),
            opt_level=_LEVEL,
            debug_level="0",
            group_name="orthia",
        ),
    )
else:
    setup()
