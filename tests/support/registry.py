"""A real schema registry with Confluent's interface: Apicurio Registry, which runs from what is on Maven Central.

(Confluent's own jars are not there, and Karapace is not on PyPI.)  The last one that Java 17 runs is 3.0.
"""

import os
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Self

from floodmark.producers.embedded.broker import free_port
from floodmark.producers.embedded.jars import cache, java, retrieve
from support.harness import until
from support.processes import Process

VERSION = "3.0.9"
# The archive alone, without the POM, whose parents are not on every mirror.
_SETTINGS = """<ivysettings><settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>"""
_IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="floodmark" module="registry"/>
<configurations><conf name="default"/></configurations>
<dependencies>
<dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false" conf="default->*">
<artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
</dependency></dependencies></ivy-module>"""


def program() -> Path:
    """Return the registry's jar; the first call downloads it (150 MB), later ones need no network."""
    home = cache() / f"apicurio-registry-{VERSION}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as partial:
            place = Path(partial)
            (place / "ivy.xml").write_text(_IVY, encoding="utf-8")
            (place / "fetched").mkdir()
            (place / "settings.xml").write_text(_SETTINGS, encoding="utf-8")
            options = ["-settings", str(place / "settings.xml"), "-ivy", str(place / "ivy.xml"), "-confs", "default"]
            retrieve(options, place / "fetched", Path(f"{home}.log"), "Apicurio Registry")
            (archive,) = (place / "fetched").iterdir()
            with tarfile.open(archive) as packed:
                packed.extractall(place / "whole", filter="data")
            if not home.exists():  # another process may have been faster
                (place / "whole").rename(home)
    return home / f"apicurio-registry-app-{VERSION}-runner.jar"


class EmbeddedRegistry:
    """A registry on a free port of this machine; it keeps its schemas in a folder, over restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> Self:
        """Start it, and wait until it answers, up to two minutes."""
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "apicurio.datasource.url": f"jdbc:h2:file:{self.directory / 'schemas'}",
        }
        command = [java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        self._process = Process("registry", [*command, "-jar", str(program())], self.directory, os.environ)
        until(self._answers, f"an answer of the registry, see {self._process.output}", 120)
        return self

    def _answers(self) -> bool:
        assert self._process.code is None, self._process.output.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:  # noqa: S310  # our own address
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        self._process.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
