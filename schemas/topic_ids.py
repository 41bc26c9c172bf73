"""Which topic a name means: Kafka gives every topic an id, and one that is created again gets another id.  Pure."""

from collections.abc import Mapping

from floodmark.schemas.errors import RecreatedTopicError


class TopicIds(dict[str, str]):
    """By topic the id that it had when it was first read; stored beside the offsets, which mean nothing without it.

    A topic whose id is not known is not here: brokers before Kafka 2.8 give none.

    >>> ids = TopicIds({"clicks": "Xq3"})
    >>> ids.compare({"clicks": "Xq3", "views": "b7A"}, "the consumer")
    >>> ids
    {'clicks': 'Xq3', 'views': 'b7A'}
    """

    def compare(self, found: Mapping[str, str], reader: str) -> None:
        """Compare topics with those that were read, and keep the ids that were not known.

        Args:
            found: by topic the id that it has now.
            reader: who reads them, for the error.

        Raises:
            RecreatedTopicError: where a topic has another id.
        """
        for topic, now in found.items():
            known = self.setdefault(topic, now)
            if known != now:
                raise RecreatedTopicError(reader=reader, topic=topic, known=known, found=now)
