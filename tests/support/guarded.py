"""A broker that asks for a password, and may refuse what nobody was given the right to."""

from collections.abc import Iterable
from pathlib import Path

from floodmark.producers import EmbeddedKafka

_LISTENER = "SASL_PLAINTEXT"


def login(user: str) -> dict[str, str]:
    """Return the confluent-kafka settings by which a user of `GuardedKafka` logs in."""
    return {
        "security.protocol": _LISTENER,
        "sasl.mechanisms": "PLAIN",
        "sasl.username": user,
        "sasl.password": "open",
    }


def jaas(user: str) -> str:
    """Return the same for Java."""
    return f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="open"'


class GuardedKafka(EmbeddedKafka):
    """A broker that lets nobody in without a password.

    Args:
        directory: as of `EmbeddedKafka`.
        users: who may log in beside "us", the administrator.
        authorized: whether others than the administrator need a right for what they do.
    """

    def __init__(self, directory: Path, users: Iterable[str] = (), *, authorized: bool = False) -> None:
        super().__init__(directory)
        self._users = ("us", *users)
        self._authorized = authorized

    @property
    def config(self) -> dict[str, str]:
        """The settings of the administrator."""
        return {**super().config, **login("us")}

    def _properties(self) -> str:
        known = " ".join(f'user_{user}="open"' for user in self._users)
        settings = {
            "listeners": f"{_LISTENER}://{self.bootstrap_servers},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"{_LISTENER}://{self.bootstrap_servers}",
            "listener.security.protocol.map": f"{_LISTENER}:{_LISTENER},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": _LISTENER,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{jaas('us')} {known};",
        }
        if self._authorized:
            settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            settings["super.users"] = "User:us;User:ANONYMOUS"  # the latter is the broker as its own controller
        return super()._properties() + "".join(f"{key}={value}\n" for key, value in settings.items())
