"""A broker that asks for a password, may refuse what nobody was given the right to, and may speak TLS."""

from floodmark.producers import EmbeddedKafka


def login(user: str, certificates=None) -> dict[str, str]:
    """Return the confluent-kafka settings by which a user of `GuardedKafka` logs in."""
    protocol = {"security.protocol": "SASL_SSL" if certificates else "SASL_PLAINTEXT"}
    protocol |= certificates.of_client if certificates else {}
    return {**protocol, "sasl.mechanisms": "PLAIN", "sasl.username": user, "sasl.password": "open"}


def jaas(user: str) -> str:
    """Return the same for Java."""
    return f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="open"'


class GuardedKafka(EmbeddedKafka):
    """A broker that refuses clients without a password: ``users``, and "us", the administrator.

    If ``authorized``, the users need rights.  With ``certificates`` it uses TLS, and asks each client for its own.
    """

    def __init__(self, directory, users=(), *, authorized=False, certificates=None):
        super().__init__(directory)
        self._users, self._authorized, self._certificates = ("us", *users), authorized, certificates

    @property
    def config(self) -> dict[str, str]:
        return {**super().config, **login("us", self._certificates)}

    def _properties(self) -> str:
        listener = login("us", self._certificates)["security.protocol"]
        known = " ".join(f'user_{user}="open"' for user in self._users)
        settings = {
            "listeners": f"{listener}://{self.bootstrap_servers},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"{listener}://{self.bootstrap_servers}",
            "listener.security.protocol.map": f"{listener}:{listener},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": listener,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{listener.lower()}.plain.sasl.jaas.config": f"{jaas('us')} {known};",
            **(self._certificates.of_broker if self._certificates else {}),
        }
        if self._authorized:
            settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            settings["super.users"] = "User:us;User:ANONYMOUS"  # the latter is the broker as its own controller
        return super()._properties() + "".join(f"{key}={value}\n" for key, value in settings.items())
