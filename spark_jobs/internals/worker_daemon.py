"""Spark's daemon of Python workers; before Python 3.13, each task of a Python function takes some 50 ms less with it.

Spark puts its own modules on the path of its workers as zips, and before each task lets Python look at the path anew.
Python before 3.13 then reads the whole list of a zip once for each package that has been imported from it.  This daemon
leaves the zips out if pip has installed the same modules.
"""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def without_zips(path: list[str], home: str) -> list[str]:
    """Return a path without Spark's zips, if the rest of it has the modules of the Spark in ``home``."""
    rest = [entry for entry in path if not (entry.endswith(".zip") and Path(home) in Path(entry).parents)]
    found, py4j = (PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j"))
    if found is None or found.origin is None or py4j is None:
        return path
    return rest if Path(found.origin).resolve() == Path(home, "__init__.py").resolve() else path


if __name__ == "__main__":
    sys.path[:] = without_zips(sys.path, os.environ.get("SPARK_HOME", ""))
    for entry in [one for one in sys.path_importer_cache if one.endswith(".zip")]:
        del sys.path_importer_cache[entry]
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
