"""Packages that import their public names on first use.

The stub ``__init__.pyi`` is the only list of names, one line ``from place import name as name`` each.
"""

import re
from collections.abc import Callable
from importlib import import_module
from operator import itemgetter
from pkgutil import get_data


def lazy_names(
    package: str, needs: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, str], Callable[[str], object]]:
    """Return where a package's names are defined, by its stub, and its ``__getattr__``.

    ``needs`` is called with a name before its first import; it may raise why the name cannot be imported.

    >>> places, of = lazy_names("floodmark.producers")
    >>> places["ascending"], of("ascending").__name__
    ('floodmark.producers.strategies.basic', 'ascending')
    """
    stub = (get_data(package, "__init__.pyi") or b"").decode()
    found = re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)
    places = {name: place for place, name in sorted(found, key=itemgetter(1))}

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        needs(name)
        return vars(import_module(package)).setdefault(name, getattr(import_module(places[name]), name))

    return places, get
