"""The services of the compose file, started by testcontainers on ports that are free."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from floodmark.producers.embedded.broker import free_port
from support.harness import until
from testcontainers.core.container import DockerContainer

import docker

DOCKER = Path(__file__).parents[2] / "docker"
PORTS = ("9092", "9108", "8417")  # of Kafka, the injector's metrics and the board


class Services(ExitStack):
    """Containers by the names of their services; ``address``: by the port of the compose file."""

    def __init__(self) -> None:
        super().__init__()
        self.address: dict[str, str] = {}
        self.containers: dict[str, Any] = {}
        text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
        self._text = re.sub(r"\$\{(\w+):-(.+)}", lambda found: os.environ.get(*found.groups()), text)

    def build(self, name: str) -> None:
        """Build the image of a service if it is one of ours."""
        image = yaml.safe_load(self._text)["services"][name]["image"]
        if image.startswith("floodmark/"):
            subprocess.run([str(DOCKER / "build-image.sh"), sys.executable, image], check=True)

    def choose_ports(self) -> None:
        """Choose ports, not before all images are built: after minutes, another process may have taken them."""
        for port in PORTS:
            free = str(free_port())
            self._text, self.address[port] = self._text.replace(port, free), f"127.0.0.1:{free}"

    def start(self, name: str) -> None:
        """Start a service, and wait until it is healthy."""
        service = yaml.safe_load(self._text)["services"][name]
        made = DockerContainer(service["image"]).with_command(service.get("command"))
        made.with_envs(**service.get("environment", {}))
        for port in service.get("ports", ()):
            host, outside, inside = port.split(":")
            made.ports[f"{inside}/tcp"] = (host, outside)
        made.tmpfs = dict(place.split(":") for place in service.get("tmpfs", ()))
        health = service.get("healthcheck", {})
        made.with_kwargs(
            entrypoint=service.get("entrypoint"),
            healthcheck=health and {"test": health["test"], "interval": 2_000_000_000},
            network_mode=service.get("network_mode"),
            read_only=service.get("read_only"),
            restart_policy={"Name": service.get("restart", "no")},
        )
        self.enter_context(made)
        container = self.containers[name] = made.get_wrapped_container()
        self.callback(lambda: sys.stdout.write(f"{name}: {container.logs(tail=30).decode()}\n"))  # seen if a test fails

        def is_healthy():
            container.reload()
            return container.attrs["State"]["Health"]["Status"] == "healthy"

        if health:
            until(is_healthy, f"a healthy {name}", 300)


@contextmanager
def services(*names: str) -> Iterator[Services]:
    """Start services, one after the other; without a Docker engine or an image, the test is skipped or fails."""
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    with Services() as started:
        try:
            docker.from_env().close()
            for name in names:
                started.build(name)
            started.choose_ports()
            for name in names:
                started.start(name)
        except docker.errors.DockerException as error:
            if os.environ.get("FLOODMARK_REQUIRE_DOCKER") == "1":
                raise
            pytest.skip(f"no Docker engine, or no image: {error}")
        yield started
