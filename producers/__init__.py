"""From events to watermark records: who promises what, when, and how it gets into Kafka beside the data.

`strategies` decide and are pure; `producer` is the shell a user writes with, `readers` are what a user reads with.
`embedded` holds a real broker for first steps and tests; `testing` is for tests without one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from floodmark.producers.clients.admin import create_topics
    from floodmark.producers.clients.framed import FramedValues
    from floodmark.producers.clients.registry import Registry
    from floodmark.producers.embedded.broker import EmbeddedKafka
    from floodmark.producers.event_times.time_policy import TimePolicy
    from floodmark.producers.log_folder import LogFolder
    from floodmark.producers.pool import SourcePool
    from floodmark.producers.pooled_source import PooledSource
    from floodmark.producers.producer import WatermarkedProducer
    from floodmark.producers.readers.consumer import WatermarkedConsumer
    from floodmark.producers.readers.observer import Observer
    from floodmark.producers.strategies.basic import ascending, bounded_out_of_orderness, explicit, ingress, punctuated
    from floodmark.producers.strategies.generator import Generator, Strategy
    from floodmark.producers.strategies.idleness import with_idleness
    from floodmark.producers.strategies.learned import adaptive, percentile
    from floodmark.schemas.classify import Data, Mark, Unreadable
    from floodmark.schemas.completeness.complete_rows import Handout, Window
    from floodmark.schemas.completeness.position import Position

__all__ = [
    "Data",
    "EmbeddedKafka",
    "FramedValues",
    "Generator",
    "Handout",
    "LogFolder",
    "Mark",
    "Observer",
    "PooledSource",
    "Position",
    "Registry",
    "SourcePool",
    "Strategy",
    "TimePolicy",
    "Unreadable",
    "WatermarkedConsumer",
    "WatermarkedProducer",
    "Window",
    "adaptive",
    "ascending",
    "bounded_out_of_orderness",
    "create_topics",
    "explicit",
    "ingress",
    "percentile",
    "punctuated",
    "with_idleness",
]

_PLACES: Final = {
    "Data": "floodmark.schemas.classify",
    "EmbeddedKafka": "floodmark.producers.embedded.broker",
    "FramedValues": "floodmark.producers.clients.framed",
    "Generator": "floodmark.producers.strategies.generator",
    "Handout": "floodmark.schemas.completeness.complete_rows",
    "LogFolder": "floodmark.producers.log_folder",
    "Mark": "floodmark.schemas.classify",
    "Observer": "floodmark.producers.readers.observer",
    "PooledSource": "floodmark.producers.pooled_source",
    "Position": "floodmark.schemas.completeness.position",
    "Registry": "floodmark.producers.clients.registry",
    "SourcePool": "floodmark.producers.pool",
    "Strategy": "floodmark.producers.strategies.generator",
    "TimePolicy": "floodmark.producers.event_times.time_policy",
    "Unreadable": "floodmark.schemas.classify",
    "WatermarkedConsumer": "floodmark.producers.readers.consumer",
    "WatermarkedProducer": "floodmark.producers.producer",
    "Window": "floodmark.schemas.completeness.complete_rows",
    "adaptive": "floodmark.producers.strategies.learned",
    "ascending": "floodmark.producers.strategies.basic",
    "bounded_out_of_orderness": "floodmark.producers.strategies.basic",
    "create_topics": "floodmark.producers.clients.admin",
    "explicit": "floodmark.producers.strategies.basic",
    "ingress": "floodmark.producers.strategies.basic",
    "percentile": "floodmark.producers.strategies.learned",
    "punctuated": "floodmark.producers.strategies.basic",
    "with_idleness": "floodmark.producers.strategies.idleness",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for, so that what needs one module waits for no other."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(_PLACES[name]), name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
