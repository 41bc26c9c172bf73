"""Writes a file of a checkpoint again and again; run by ``test_object_store.py``.

python replacing.py SETTINGS JARS FOLDER NAME WRITES
"""

import json
import sys

from floodmark.spark_jobs import local_session
from floodmark.spark_jobs.internals.files import files


def main(settings: str, jars: str, folder: str, name: str, writes: str) -> None:
    """Write numbers, and print the last as it is read."""
    spark = local_session("replacing", settings={**json.loads(settings), "spark.jars": jars})
    place = files(spark, folder)
    for number in range(int(writes)):
        place.write(name, str(number))
    sys.stdout.write(f"{place.read(name)}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
