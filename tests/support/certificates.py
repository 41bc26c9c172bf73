"""Certificates of a made-up authority, as files that Kafka's clients and brokers read."""

from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


class Certificates:
    """An authority, a certificate of a broker on this machine, and one of a client.

    Args:
        folder: where the files go.
    """

    def __init__(self, folder: Path) -> None:
        made = trustme.CA()
        self.authority = folder / "authority.pem"
        made.cert_pem.write_to_path(str(self.authority))
        self.broker = folder / "broker.pem"
        self.client, self.client_key = folder / "client.pem", folder / "client.key"
        key, chain = _parts(made.issue_cert("127.0.0.1"))
        self.broker.write_bytes(key + chain)
        key, chain = _parts(made.issue_cert("client@example.org"))
        self.client_key.write_bytes(key)
        self.client.write_bytes(chain)

    @property
    def of_client(self) -> dict[str, str]:
        """The confluent-kafka settings of a client."""
        return {
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.client),
            "ssl.key.location": str(self.client_key),
        }

    @property
    def of_broker(self) -> dict[str, str]:
        """The settings of a broker that asks its clients for a certificate."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "listener.name.sasl_ssl.ssl.client.auth": "required",  # without the listener's name Kafka ignores it there
        }


def _parts(issued: trustme.LeafCert) -> tuple[bytes, bytes]:
    """Return the key in the form that Java reads (PKCS #8), and the chain of certificates."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain
