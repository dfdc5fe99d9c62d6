"""What setup.cfg cannot say: with ORTHIA_COMPILED set, mypyc compiles the modules that decide.

Without it, which is the default, nothing is compiled and no compiler is needed. The version of what
is compiled ends in ``+compiled``: ``orthia --version`` and the line a node starts with say so.
"""

import os
from pathlib import Path

from setuptools import setup

COMPILED = {
    "orthia/broker/core": "addresses backlog broker consumers memory queue quota topic"
    " undeliverable",
    "orthia/broker/protocols/stomp": "attempts committing connection consuming encoding frames"
    " headers heartbeats holdings inbox options outbox parser prefixes receipts sending silence"
    " states streaming subscribing subscriptions transactions uploads",
    "orthia/journal": "codec encodings fields message unit",
    "orthia/journal/engine": "batch intake",
}
"""By room. Not ``core/api``: somebody has weak references to a ``Principal``, and a compiled class
takes none."""


def _modules() -> list[str]:
    """Return the files to compile; one that was renamed is left as it is, and named."""
    files = [Path(room, f"{name}.py") for room, names in COMPILED.items() for name in names.split()]
    for missing in (file for file in files if not file.exists()):
        print(f"not compiled, because it is not there any more: {missing}")  # noqa: T201
    return [str(file) for file in files if file.exists()]


if os.environ.get("ORTHIA_COMPILED"):
    from mypyc.build import mypycify

    setup(
        ext_modules=mypycify(_modules(), opt_level="2", group_name="orthia"),
        options={"egg_info": {"tag_build": "+compiled"}},
    )
else:
    setup()
