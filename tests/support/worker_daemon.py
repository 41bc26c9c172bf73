"""Spark's daemon of Python workers, without Spark's zips on its path: Python 3.11 reads them again for each task.

That takes 46 ms of each task, and pip has installed the same modules.  Python 3.12 does it only when it imports.
"""

import sys

for entry in [name for name in sys.path_importer_cache if name.endswith(".zip")]:
    sys.path_importer_cache.pop(entry)
sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip")]

from pyspark.daemon import manager  # noqa: E402  # from what pip has installed

if __name__ == "__main__":
    manager()
