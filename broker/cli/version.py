"""The version of what is installed, read without ``importlib.metadata``.

That module loads the parser of e-mails, which takes as long as all else that ``orthia --version``
does. The name of the directory ``orthia-1.2.3.dist-info`` says the same.
"""

import sys
from pathlib import Path
from typing import Final

_PREFIX: Final = "orthia-"
_SUFFIX: Final = ".dist-info"


def installed_version() -> str:
    """Return the version, of the first folder of ``sys.path`` that has one, as an import finds it.

    Raises PackageNotFoundError where nothing is installed.
    """
    for folder in sys.path:
        try:
            names = [path.name for path in Path(folder).iterdir()]
        except OSError:  # a folder that is not there, or an archive
            continue
        for name in names:
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                return name[len(_PREFIX) : -len(_SUFFIX)]
    from importlib.metadata import version

    return version("orthia")
