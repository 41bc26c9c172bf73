"""A broker that asks for a password, may refuse what nobody was given the right to, and may speak TLS."""

from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from floodmark.producers import EmbeddedKafka


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


def login(user: str, certificates: Certificates | None = None) -> dict[str, str]:
    """Return the confluent-kafka settings by which a user of `GuardedKafka` logs in."""
    return {
        "security.protocol": _protocol(certificates),
        **({} if certificates is None else certificates.of_client),
        "sasl.mechanisms": "PLAIN",
        "sasl.username": user,
        "sasl.password": "open",
    }


def jaas(user: str) -> str:
    """Return the same for Java."""
    return f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="open"'


def _protocol(certificates: Certificates | None) -> str:
    return "SASL_PLAINTEXT" if certificates is None else "SASL_SSL"


class GuardedKafka(EmbeddedKafka):
    """A broker that refuses clients without a password: ``users``, and "us", the administrator.

    If ``authorized``, the users need rights.  With ``certificates`` it uses TLS, and asks each client for its own.
    """

    def __init__(self, directory, users=(), *, authorized=False, certificates=None):
        super().__init__(directory)
        self._certificates = certificates
        self._users = ("us", *users)
        self._authorized = authorized

    @property
    def config(self) -> dict[str, str]:
        return {**super().config, **login("us", self._certificates)}

    def _properties(self) -> str:
        listener = _protocol(self._certificates)
        known = " ".join(f'user_{user}="open"' for user in self._users)
        settings = {
            "listeners": f"{listener}://{self.bootstrap_servers},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"{listener}://{self.bootstrap_servers}",
            "listener.security.protocol.map": f"{listener}:{listener},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": listener,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{listener.lower()}.plain.sasl.jaas.config": f"{jaas('us')} {known};",
        }
        if self._certificates is not None:
            settings |= self._certificates.of_broker
        if self._authorized:
            settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            settings["super.users"] = "User:us;User:ANONYMOUS"  # the latter is the broker as its own controller
        return super()._properties() + "".join(f"{key}={value}\n" for key, value in settings.items())
