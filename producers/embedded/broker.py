"""A single-node Apache Kafka (KRaft) on loopback, for the demo, tests and first steps; it ends with its program."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from floodmark.producers.clients.admin import QUIET
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.embedded.jars import fetch, java
from floodmark.schemas.errors import EmbeddedKafkaError

KAFKA_VERSION: Final = "4.4.0"
_LOG4J_VERSION: Final = "2.25.5"  # as that of Kafka's other jars
_START_TIMEOUT: Final = 90.0  # seconds
_LOG4J: Final = """\
<Configuration status="WARN">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def kafka_jars() -> list[Path]:
    """Return Kafka's jars, and the one that lets Kafka log: it is no dependency of Kafka."""
    log4j = fetch("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J_VERSION, alone=True)
    return [*fetch("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), *log4j]


class EmbeddedKafka:
    """One broker, started by `start` (or ``with``) and stopped by `stop`; its data stays in ``directory``.

    An existing directory is used again.  ``heap``: of the broker's Java.
    """

    def __init__(self, directory: str | Path, heap: str = "512m") -> None:
        self.directory = Path(directory)
        self.log = self.directory / "kafka.log"
        self._heap = heap
        self._port, self._controller_port = self._ports()
        self.bootstrap_servers = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: tuple[subprocess.Popen[bytes], int] | None = None
        """The guard's process, and this program's end of the pipe that it reads."""

    @property
    def config(self) -> dict[str, str]:
        """The confluent-kafka settings for clients."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def _ports(self) -> tuple[int, int]:
        with suppress(FileNotFoundError, ValueError):  # a full disk leaves an empty file
            first, second = (self.directory / "ports").read_text(encoding="ascii").split()
            return int(first), int(second)  # the same address after a restart
        one = other = free_port()
        while other == one:
            other = free_port()
        return one, other

    def start(self) -> Self:
        """Start it and wait until it answers, or raise `JavaError`, `JarDownloadError` or `EmbeddedKafkaError`."""
        jars = kafka_jars()
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.running:
            self._end_guard()  # of a broker that died
        claim = self._claim()
        try:
            self._start(jars, claim)
        finally:
            os.close(claim)  # the broker has inherited it
        self._await_answer()
        return self

    def _claim(self) -> int:
        """Lock the directory and return the open file; the broker inherits it, and holds the lock until it ends."""
        import fcntl  # noqa: PLC0415  # missing on Windows, where only producers run

        claim = os.open(self.directory / "claim", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(claim, 20).decode(errors="replace") or "just being started"
            os.close(claim)
            reason = f"a broker (process {holder}) uses the directory {self.directory}: stop it, or choose another one"
            raise EmbeddedKafkaError(reason=reason, log=self.log) from None
        return claim

    def _require_ports(self) -> None:
        for port in (self._port, self._controller_port):
            with socket.socket() as asking:
                asking.settimeout(1)
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    kept = self.directory / "ports"
                    reason = f"another program uses port {port}: stop it, or delete {kept} to let others be chosen"
                    raise EmbeddedKafkaError(reason=reason, log=self.log)

    def _start(self, jars: list[Path], claim: int) -> None:
        self._require_ports()
        (self.directory / "ports").write_text(f"{self._port} {self._controller_port}", encoding="ascii")
        (self.directory / "log4j2.xml").write_text(_LOG4J, encoding="ascii")
        properties = self.directory.absolute() / "server.properties"
        properties.write_text(self._properties(), encoding="utf-8")
        classpath = os.pathsep.join(str(jar.absolute()) for jar in jars)
        base = [java(), f"-Xmx{self._heap}", "-Xms64m", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=1"]  # it starts quicker
        base += ["-Dlog4j2.configurationFile=log4j2.xml", "-cp", classpath]
        with self.log.open("ab") as log:
            if not (self.directory / "data" / "meta.properties").exists():
                formatting = [*base, "kafka.tools.StorageTool", "format"]
                cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
                formatting += [f"--cluster-id={cluster}", "-c", str(properties)]
                done = subprocess.run(formatting, stdout=log, stderr=log, cwd=self.directory, check=False)  # noqa: S603
                if done.returncode:
                    raise EmbeddedKafkaError(reason="its storage could not be formatted", log=self.log)
            # A session of its own: Ctrl-C reaches the command, which then stops the broker in order.
            self._process = subprocess.Popen(  # noqa: S603
                [*base, "kafka.Kafka", str(properties)],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                pass_fds=[claim],
            )
        os.truncate(claim, 0)
        os.pwrite(claim, str(self._process.pid).encode(), 0)
        self._start_guard(self._process.pid)

    def _start_guard(self, broker: int) -> None:
        reading, writing = os.pipe()  # a number, which no garbage collection closes
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        command += [str(self.directory / "claim"), str(broker)]
        with self.log.open("ab") as log:
            guard = subprocess.Popen(command, stdin=reading, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
        os.close(reading)
        self._guard = guard, writing

    def _end_guard(self) -> None:
        if self._guard is not None:
            guard, writing = self._guard
            self._guard = None
            os.close(writing)
            guard.terminate()  # a forked child of this program keeps its end of the pipe open
            guard.wait()

    def _properties(self) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": "data",  # without its path: a comma separates folders, and Java reads letters like ö otherwise
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.retention.ms": "-1",  # keep records with old timestamps
            "log.cleaner.dedupe.buffer.size": "8388608",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _await_answer(self) -> None:
        admin = AdminClient({**self.config, "socket.timeout.ms": 2000}, logger=QUIET)
        deadline = Deadline(_START_TIMEOUT)
        while self.running and not deadline.passed:
            try:
                admin.list_topics(timeout=1)
            except KafkaException:
                time.sleep(0.1)
            else:
                return
        status = None if self._process is None else self._process.poll()
        self.stop()
        late = f"the broker did not answer within {_START_TIMEOUT} s"
        raise EmbeddedKafkaError(reason=late if status is None else f"it ended with status {status}", log=self.log)

    @property
    def running(self) -> bool:
        """Whether the broker's process is running."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the broker (SIGKILL), as in a crash; `start` restarts it with its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._end_guard()

    def stop(self) -> None:
        """Stop the broker; its data stays."""
        if self._process is not None and self.running:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_guard()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """Return an unused port of the loopback address, below those that the system assigns."""
    while True:
        port = secrets.choice(range(20_000, 32_000))  # Linux assigns those from 32,768 on, others from 49,152
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
