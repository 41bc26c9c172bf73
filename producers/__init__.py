"""From events to watermark records: who promises what, when, and how it gets into Kafka beside the data.

`strategies` decide and are pure; `producer` is the shell a user writes with, `readers` are what a user reads with.
`embedded` holds a real broker for first steps and tests; `testing` is for tests without one.
"""

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
from floodmark.schemas.completeness.handout import Handout, Window
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
