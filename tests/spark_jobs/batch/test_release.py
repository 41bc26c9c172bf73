"""What a session keeps of the jobs that it has run: nothing, however many they are and however they ended."""

import gc

import pytest
from floodmark.producers import WatermarkedProducer, ascending
from floodmark.schemas.errors import JobFailedError
from floodmark.spark_jobs import write
from support.counting import read_events
from support.harness import events, until


def worked_off(job):
    job.processAllAvailable(timeout=120)
    job.stop()


def failed(job):
    with pytest.raises(JobFailedError, match="no room left"):
        job.awaitTermination(timeout=120)


def write_nothing(_batch, _batch_id):
    pass


def fail(_batch, _batch_id):
    raise ValueError("no room left")


@pytest.mark.spark
@pytest.mark.parametrize(("writer", "end"), [(write_nothing, worked_off), (fail, failed)])
def test_a_job_that_has_ended_is_released(spark, kafka, topic, tmp_path, writer, end):
    """Else its plans would stay in the memory of the driver, some megabytes for each job or restart."""
    name = topic(partitions=1)
    with WatermarkedProducer(kafka.config, topic=name, source="a", strategy=ascending()) as source:
        source.produce(events.encode({"user": "u", "at": 1000}), event_time=1000)
    rows = read_events(spark, kafka.bootstrap_servers, name)
    job = write(rows, writer=writer, job="released", checkpoint_location=str(tmp_path / "state"))
    jvm = spark.sparkContext._jvm  # noqa: SLF001  # what is to be released stands there
    execution = jvm.java.lang.ref.WeakReference(job.query._jsq.streamingQuery())  # noqa: SLF001  # the same
    end(job)
    del job

    def is_released():
        gc.collect()
        jvm.System.gc()
        return execution.get() is None

    until(is_released, "the release of the query")
