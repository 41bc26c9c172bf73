"""A real schema registry with Confluent's interface: Apicurio Registry, which runs from what is on Maven Central.

(Confluent's own jars are not there, and Karapace is not on PyPI.)  The last one that Java 17 runs is 3.0.
"""

import subprocess
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path

from floodmark.producers.clients.consumers import Closing
from floodmark.producers.embedded.broker import free_port
from floodmark.producers.embedded.jars import cache, java, retrieve
from support.harness import until
from support.processes import Process, end_process
from typing_extensions import override

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
            (place / "fetched").mkdir()
            (place / "ivy.xml").write_text(_IVY)
            (place / "settings.xml").write_text(_SETTINGS)
            options = ["-settings", str(place / "settings.xml"), "-ivy", str(place / "ivy.xml"), "-confs", "default"]
            retrieve(options, place / "fetched", Path(f"{home}.log"), "Apicurio Registry")
            (archive,) = (place / "fetched").iterdir()
            (place / "whole").mkdir()
            subprocess.run(["tar", "-xf", archive, "-C", place / "whole"], check=True)  # shutil needs Python 3.11.4
            if not home.exists():  # another process may have been faster
                (place / "whole").rename(home)
    return home / f"apicurio-registry-app-{VERSION}-runner.jar"


class EmbeddedRegistry(Closing):
    """A registry on a free port of this machine; it keeps its schemas in a folder, over restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers, up to two minutes."""
        command = [java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        command += [f"-Dapicurio.datasource.url=jdbc:h2:file:{self.directory / 'schemas'}", "-jar", str(program())]
        self._process = Process("registry", command, self.directory)

        def answers():
            assert self._process.poll() is None, self._process.output.read_text()[-2000:]
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=5):  # noqa: S310  # our own
                return True
            return False

        until(answers, f"an answer of the registry, see {self._process.output}", 120)

    @override
    def close(self) -> None:
        end_process(self._process)
