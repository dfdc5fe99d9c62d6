"""Names that a package offers and loads only when somebody asks for one.

A command that needs one module of a package would otherwise load all that the package offers: half
a second of processor time for ``orthia --version``.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of ``package``.

    ``homes`` has, by the name of a module inside the package, the names it offers there, separated
    by blanks.
    """
    found = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{found[name]}"), name)

    return load
