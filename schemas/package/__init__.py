"""In-band watermarks for Kafka and Spark: the public names of all packages, imported when they are first used.

with floodmark.WatermarkedProducer(config, topic="clicks", source="web", strategy=floodmark.ascending()) as web:
    ...
events = floodmark.read(spark, topics="clicks", value=floodmark.json("at TIMESTAMP"), event_time="at", ...)

The names that need Spark raise `ImportError` without it; a star import then leaves them out.
"""

from importlib import import_module
from importlib.util import find_spec

__version__ = "0.1.0"
_PACKAGES = ("floodmark.producers", "floodmark.spark_jobs", "floodmark.schemas")


def __getattr__(name: str) -> object:
    if f"{__name__}.{name}" in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name == "__all__":  # of a star import, which then imports all, and of help()
        packages = (one for one in _PACKAGES if one != "floodmark.spark_jobs" or find_spec("pyspark") is not None)
        return [public for package in map(import_module, packages) for public in package.__all__]
    for package in map(import_module, _PACKAGES):
        if name in package.__all__:
            return globals().setdefault(name, getattr(package, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
