"""Who is fenced learns just that, wherever in a transaction the word comes; who resumes waits for the others."""

from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException
from floodmark.producers.clients import admin
from floodmark.producers.clients.transaction import Transaction
from floodmark.schemas.errors import FencedError, OpenTransactionError, UnknownTopicError
from support.harness import delete_topic, until
from support.injection import open_transaction, written_ends


@pytest.mark.parametrize("moment", ["begin", "produce", "commit"])
def test_a_second_writer_fences_the_first(kafka, topic, moment):
    name = topic(1)
    first = Transaction(kafka.config, "orders", name)
    if moment != "begin":
        first.begin()
        first.produce(name, 0, None, b"")
    second = Transaction(kafka.config, "orders", name)

    def go_on():
        if moment == "commit":
            first.commit()
        else:
            first.begin()
        first.produce(name, 0, None, b"")

    with pytest.raises(FencedError, match="orders"):
        until(go_on, "the fence", 30)
    second.begin()
    second.produce(name, 0, None, b"")
    second.commit()


def test_a_client_that_breaks_while_it_flushes_is_fenced_in_the_same_words(kafka, topic, monkeypatch):
    """As confluent-kafka fails then: about one takeover of an injector in eight met it."""
    name = topic(1)
    first = Transaction(kafka.config, "orders", name)

    def breaks(_timeout):
        raise SystemError("returned a result with an exception set") from KafkaException(
            KafkaError(KafkaError._FENCED, fatal=True)  # noqa: SLF001  # public
        )

    first.begin()
    broken = MagicMock(flush=breaks, __len__=lambda _: 1)
    monkeypatch.setattr(first, "producer", broken)
    with pytest.raises(FencedError, match="orders"):
        first.commit(lambda: None)


def test_a_record_that_the_broker_takes_is_not_too_large_for_the_client(kafka, topic):
    name = topic(1)
    writer = Transaction(kafka.config, "orders", name)
    writer.begin()
    writer.produce(name, 0, None, b"x" * 1_020_000)
    writer.commit()
    assert written_ends(kafka, name) == {0: 2}, "the record, and the end of the transaction"


@pytest.mark.parametrize("served", [True, False], ids=["told by poll", "told by produce"])
def test_a_record_behind_the_failure_of_the_client_names_that(kafka, topic, served):
    """The client says of such a record that there was a "fatal error", no more."""
    name = topic(1)
    first = Transaction(kafka.config, "orders", name)
    first.begin()
    first.produce(name, 0, None, b"")
    assert first.producer.flush(30) == 0  # or the fence might refuse this one, before there is one behind it
    Transaction(kafka.config, "orders", name)
    first.produce(name, 0, None, b"")
    if served:
        with pytest.raises(FencedError, match="orders"):
            until(first.poll, "the answer of the broker", 30)
    with pytest.raises(FencedError, match="orders"):
        until(lambda: first.produce(name, 0, None, b""), "the fence", 30)
    with pytest.raises(FencedError, match="orders"):
        first.commit()


def test_the_wait_for_an_open_transaction_is_told_and_has_an_end(kafka, topic, monkeypatch, caplog):
    name = topic(2)
    other = open_transaction(kafka, name)
    admin.await_transactions(kafka.config, name, "job 'a'", [1])
    monkeypatch.setattr(admin, "LONGEST_TRANSACTION", 1.5)
    with pytest.raises(OpenTransactionError, match=f"job 'a' .* partition 0 of topic '{name}'.* from offset 0 on"):
        admin.await_transactions(kafka.config, name, "job 'a'")
    assert (
        caplog.text.count(
            "job 'a' waits for an open transaction, of another writer or of its own earlier process, in partition 0"
        )
        == 1
    )
    other.commit()
    admin.await_transactions(kafka.config, name, "job 'a'")
    assert admin.end_offsets(kafka.config, name)[0] > 0


@pytest.mark.kafka
def test_a_topic_that_is_deleted_meanwhile_is_named(kafka, topic):
    name, gone = topic(1), topic(1)
    writer = Transaction(kafka.config, "orders", name)

    def write():
        writer.begin()
        writer.produce(gone, 0, None, b"")

    write()
    delete_topic(kafka.config, gone)
    with pytest.raises(UnknownTopicError) as caught:
        until(write, "the error", 90)
    assert caught.value.topic == gone
