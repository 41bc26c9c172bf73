"""A Kafka that speaks TLS, asks each client for a certificate, and for a password as well."""

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from floodmark.producers import create_topics
from floodmark.schemas.errors import BrokerUnavailableError, UsageError
from floodmark.spark_jobs.reading.security import spark_options
from support.counting import WIDTH, counted, read_events, windowed
from support.guarded import GuardedKafka
from support.harness import Stream, drain, window_counts

pytestmark = pytest.mark.spark
OAUTHBEARER = [
    *("config", "method", "client.id", "client.secret", "scope", "extensions", "token.endpoint.url", "grant.type"),
    *("assertion.algorithm", "assertion.private.key.file", "metadata.authentication.type", "sub.claim.name"),
]

_LIMIT = 120


class Certificates:
    """An authority, a certificate of a broker on this machine, and one of a client."""

    def __init__(self, folder: Path) -> None:
        made = trustme.CA()
        self.authority = folder / "authority.pem"
        made.cert_pem.write_to_path(str(self.authority))
        broker, client, client_key = (folder / name for name in ("broker.pem", "client.pem", "client.key"))
        broker.write_bytes(b"".join(_parts(made.issue_cert("127.0.0.1"))))
        key, chain = _parts(made.issue_cert("client@example.org"))
        client_key.write_bytes(key)
        client.write_bytes(chain)
        self.of_client = {
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(client),
            "ssl.key.location": str(client_key),
        }
        self.of_broker = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "listener.name.sasl_ssl.ssl.client.auth": "required",  # without the listener's name Kafka ignores it there
        }


def _parts(issued: trustme.LeafCert) -> tuple[bytes, bytes]:
    """Return the key in the form that Java reads (PKCS #8), and the chain of certificates."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain


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
