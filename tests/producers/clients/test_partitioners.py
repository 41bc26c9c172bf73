import pytest
from confluent_kafka import Message, Producer
from floodmark.producers.clients.partitioners import murmur2, partitioner
from floodmark.schemas.errors import UnsupportedPartitionerError
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_values_of_the_java_client(key, expected):
    """The vectors of Kafka's UtilsTest."""
    assert murmur2(key) == expected % 2**32


@given(st.binary(max_size=30) | st.none(), st.integers(1, 50))
def test_every_partitioner_stays_in_range(key, partitions):
    for name in ("consistent", "consistent_random", "murmur2", "murmur2_random", "random"):
        assert 0 <= partitioner(name)(key, partitions) < partitions


def test_an_unknown_partitioner_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedPartitionerError, match="murmur2_random"):
        partitioner("fnv1a")


@pytest.mark.kafka
@pytest.mark.parametrize("name", ["consistent", "consistent_random", "murmur2", "murmur2_random"])
def test_our_choice_is_librdkafkas(kafka, topic, name):
    target = topic(partitions=7)
    found = {}

    def landed(_error: object, message: Message) -> None:
        found[message.key()] = message.partition()

    producer = Producer({**kafka.config, "partitioner": name})
    keys = [f"key-{n}".encode() for n in range(100)]
    for key in keys:
        producer.produce(target, key=key, on_delivery=landed)
    producer.flush(30)
    choose = partitioner(name)
    assert {key: choose(key, 7) for key in keys} == found
