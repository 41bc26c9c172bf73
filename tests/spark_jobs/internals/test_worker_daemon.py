"""The daemon of Python workers, which leaves out Spark's zips where they are not needed."""

import sys
from pathlib import Path

import pyspark
import pytest
from floodmark.spark_jobs.internals.worker_daemon import without_zips
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

HOME = Path(pyspark.__file__).parent
INSTALLED = [str(HOME.parent), *(entry for entry in sys.path if entry.endswith("site-packages"))]
ZIPS = [str(HOME / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]


@pytest.mark.parametrize(
    ("path", "home", "kept"),
    [
        ([*ZIPS, *INSTALLED, "/own/code.zip"], HOME, [*INSTALLED, "/own/code.zip"]),
        ([*ZIPS, *INSTALLED], Path("/opt/spark"), [*ZIPS, *INSTALLED]),
        (ZIPS, HOME, ZIPS),
        ([*ZIPS, str(HOME.parent / "nothing")], HOME, [*ZIPS, str(HOME.parent / "nothing")]),
    ],
    ids=["installed by pip", "another Spark than that of pip", "no other", "not in the rest"],
)
def test_the_zips_stay_unless_pip_has_installed_the_same(path, home, kept):
    assert without_zips(path, str(home)) == kept


@pytest.mark.spark
@pytest.mark.every_spark
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python reads a zip once")
def test_a_worker_imports_what_pip_has_installed(spark):
    def seen(_):
        return str([pyspark.__file__, *(one for one in sys.path_importer_cache if str(HOME) in one and ".zip" in one)])

    (row,) = spark.range(1).select(F.udf(seen)("id")).collect()
    assert row[0] == str([str(HOME / "__init__.py")])
