"""From events to watermark records: who promises what, when, and how it gets into Kafka beside the data.

`strategies` and `emitter` decide and are pure; `producer` is the shell a user writes with, `consumer` the one a user
reads with, `observer` what it sees.  `embedded_kafka` is a real broker for first steps and tests.
"""

from floodmark.producers.consumer import WatermarkedConsumer
from floodmark.producers.delays import adaptive, percentile
from floodmark.producers.embedded_kafka import EmbeddedKafka
from floodmark.producers.kafka import create_topics
from floodmark.producers.messages import Data, Mark, Unreadable
from floodmark.producers.observer import Observer
from floodmark.producers.position import Position
from floodmark.producers.producer import WatermarkedProducer
from floodmark.producers.reader import Handout, Window
from floodmark.producers.strategies import (
    Generator,
    Strategy,
    ascending,
    bounded_out_of_orderness,
    explicit,
    ingress,
    punctuated,
    with_idleness,
)
from floodmark.producers.time_policy import TimePolicy

__all__ = [
    "Data",
    "EmbeddedKafka",
    "Generator",
    "Handout",
    "Mark",
    "Observer",
    "Position",
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
