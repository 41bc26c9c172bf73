"""The commands of the page that lead a new user to the first watermark of a topic of his own."""

import os
import re
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from floodmark.producers import create_topics

PAGE = Path(__file__).parents[3] / "producers" / "INJECTOR.md"


@pytest.mark.kafka
def test_the_commands_of_the_page_show_a_watermark(kafka):
    """All but the first, which installs: the package of the tests is that."""
    section = PAGE.read_text(encoding="utf-8").split("\n## A first injection")[1].split("\n## ")[0]
    install, *commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL).group(1).splitlines()
    assert "pip install" in install
    assert "FLOODMARK_BOOTSTRAP_SERVERS=" in install
    create_topics(kafka.config, {"clicks": 2})
    producer = Producer(kafka.config)
    now = time.time_ns() // 1_000_000
    for number in range(100):
        times = (
            b"%d" % (now + number),
            b'"%s"' % datetime.fromtimestamp((now + number) / 1_000, UTC).isoformat().encode(),
        )
        producer.produce("clicks", b'{"at": %s}' % times[number % 2], partition=number % 2)
    producer.flush()
    shown = ""
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "floodmark"
        done = subprocess.run(
            [sys.executable, "-m", "floodmark.producers.cli.main", *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env={**os.environ, "COLUMNS": "200", "FLOODMARK_BOOTSTRAP_SERVERS": kafka.bootstrap_servers},
        )
        assert done.returncode == 0, done.stderr
        shown = done.stdout
        assert "unreadable" not in done.stderr
    watermark = datetime.fromisoformat(re.findall(r"==> topic (\S+)$", shown, re.MULTILINE)[-1])
    assert now - 60_000 <= watermark.timestamp() * 1_000 <= now - 59_000
