"""What a job needs of the process that it runs in."""

import gc
import os
import resource

import pytest
from floodmark.producers import WatermarkedProducer, ascending
from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs import writer
from floodmark.spark_jobs.internals.jvm import require_callbacks
from pyspark.errors import utils
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import counted, read_events, windowed
from support.harness import events

SELECTED = 1_024


@pytest.fixture
def job(kafka, spark, topic, tmp_path):
    """Give what starts a job whose input has ended; all that it needs of Kafka is written before."""
    source, target = topic(), topic()
    with WatermarkedProducer(kafka.config, topic=source, source="a", strategy=ascending()) as producer:
        producer.produce(events.encode({"user": "u", "at": 1_000}), event_time=1_000)
        producer.end()
    rows = windowed(read_events(spark, kafka.bootstrap_servers, source))
    return lambda: counted(rows, target, str(tmp_path / "checkpoint"))


@pytest.fixture
def many_files(job, monkeypatch):
    """Open more files than ``select`` takes, as the clients of some hundred producers do.

    Garbage of earlier tests gives low numbers back, also when the JVM collects its own: they are taken again at the
    moment of the check.
    """
    del job  # the files of its producer are closed by now
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2 * SELECTED:
        pytest.skip(f"a process here may have {before[1]} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    files = []

    def fill():
        files.append(os.open(os.devnull, os.O_RDONLY))
        while files[-1] < SELECTED:
            files.append(os.open(os.devnull, os.O_RDONLY))

    def check(spark):
        fill()
        require_callbacks(spark)

    gc.collect()
    gc.disable()
    fill()
    monkeypatch.setattr(writer, "require_callbacks", check)
    yield
    gc.enable()
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def gateway(spark):
    """Give the way to Spark's JVM; this process listens to its calls, as it does since its first job."""
    found = spark.sparkContext._gateway  # noqa: SLF001  # Spark shows it nowhere else
    ensure_callback_server_started(found)
    return vars(found)


@pytest.mark.spark
@pytest.mark.every_spark
def test_a_job_that_spark_could_not_call_is_refused_before_it_stands_still(gateway, many_files, job, monkeypatch):
    monkeypatch.setitem(gateway, "_callback_server", None)  # as before the first job of a process
    with pytest.raises(UsageError, match=r"1,\d\d\d open files.*before they are opened, or in a process of its own"):
        job()
    assert gateway["_callback_server"] is None


@pytest.mark.spark
def test_once_this_process_listens_to_spark_it_may_open_any_files(gateway, many_files, job):
    running = job()
    assert running.awaitTermination(60)
    assert running.counts["records"] - running.counts["marks"] == 1


@pytest.mark.spark
@pytest.mark.every_spark
def test_a_line_is_looked_up_for_the_columns_of_a_user_alone(kafka, spark, topic, tmp_path, monkeypatch):
    looked_up = []
    monkeypatch.setattr(utils, "_enable_debugging_cache", True)
    monkeypatch.setattr(utils, "_capture_call_site", lambda *_: looked_up.append(1) or "a line")
    source = topic()
    F.col("at").alias("t")
    assert looked_up, "as Spark does"
    rows = read_events(spark, kafka.bootstrap_servers, source)
    looked_up.clear()
    read_events(spark, kafka.bootstrap_servers, source)
    assert not looked_up
    result = windowed(rows)
    assert looked_up
    looked_up.clear()
    job = counted(result, topic(), str(tmp_path / "checkpoint"))
    job.stop()
    assert not looked_up
