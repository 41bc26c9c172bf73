"""A Kafka that speaks TLS, asks each client for a certificate, and for a password as well."""

from pathlib import Path

import pytest
from floodmark.producers import create_topics
from floodmark.schemas.errors import BrokerUnavailableError, UsageError
from floodmark.spark_jobs.reading.security import spark_options
from support.counting import WIDTH, counted, read_events, windowed
from support.guarded import Certificates, GuardedKafka
from support.harness import Stream, drain, window_counts

pytestmark = pytest.mark.spark
OAUTHBEARER = [
    *("config", "method", "client.id", "client.secret", "scope", "extensions", "token.endpoint.url", "grant.type"),
    *("assertion.algorithm", "assertion.private.key.file", "metadata.authentication.type", "sub.claim.name"),
]

_LIMIT = 120


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, certificates):
    with GuardedKafka(tmp_path_factory.mktemp("guarded"), certificates=certificates) as broker:
        yield broker


def client(broker):
    return {name: value for name, value in broker.config.items() if name != "bootstrap.servers"}


def in_pem(settings):
    """Give the certificates and the key themselves in place of the files that hold them."""
    files = {name: name.replace(".location", ".pem") for name in settings if name.endswith(".location")}
    return {
        files.get(name, name): Path(value).read_text() if name in files else value for name, value in settings.items()
    }


@pytest.mark.parametrize(("delivery", "given"), [("exactly-once", dict), ("at-least-once", in_pem)])
def test_a_job_reads_and_writes_over_tls_with_the_settings_of_its_producers(
    spark, guarded, checkpoint, delivery, given
):
    name, out = f"in-{delivery}", f"out-{delivery}"
    create_topics(guarded.config, {name: 2, out: 1})
    stream = Stream.seeded(24)
    stream.produce(guarded.config, name)
    rows = read_events(spark, guarded.bootstrap_servers, name, client=given(client(guarded)))
    counted(windowed(rows), out, checkpoint, delivery=delivery).awaitTermination(_LIMIT)
    assert window_counts(drain(guarded.config, out)[0]) == stream.windows(WIDTH)


@pytest.mark.parametrize("lacking", ["ssl.ca.location", "ssl.certificate.location", "sasl.password"])
def test_who_lacks_a_part_is_told_before_a_job_begins(spark, guarded, certificates, tmp_path, monkeypatch, lacking):
    settings = client(guarded)
    if lacking == "ssl.ca.location":
        settings[lacking] = str(Certificates(tmp_path).authority)
    elif lacking == "sasl.password":
        settings[lacking] = "wrong"
    else:
        del settings["ssl.certificate.location"], settings["ssl.key.location"]
    monkeypatch.setattr("floodmark.producers.clients.admin.TIMEOUT", 3.0)
    with pytest.raises(BrokerUnavailableError):
        read_events(spark, guarded.bootstrap_servers, "in-exactly-once", client=settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl.mechanism": "OAUTHBEARER"},
        *({f"sasl.oauthbearer.{name}": "x"} for name in OAUTHBEARER),
        {"enable.sasl.oauthbearer.unsecure.jwt": True},
        {"https.ca.location": "/etc/ca.pem"},
        {"https.ca.pem": "x"},
        {"oauth_cb": "x"},
        {"sasl.kerberos.keytab": "/etc/job.keytab"},
        {"ssl.cipher.suites": "ECDHE"},
        {"enable.ssl.certificate.verification": False},
    ],
    ids=str,
)
def test_a_security_setting_that_spark_would_not_get_is_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(UsageError, match=rf"{name}.*pass Java's setting.* as a Spark option 'kafka\.(sasl|ssl)\."):
        spark_options(settings, {"kafka.fetch.max.bytes": "1"})
    own = {"kafka.sasl.jaas.config": "login", "kafka.ssl.protocol": "TLSv1.3"}
    assert spark_options(settings, own).items() >= own.items()
