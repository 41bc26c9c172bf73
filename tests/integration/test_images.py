"""The images of Floodmark, as the compose file starts them."""

import json
import urllib.request
from datetime import datetime

import pytest
from floodmark.producers import Data, Observer
from integration.compose import services
from support.harness import until

pytestmark = [pytest.mark.docker, pytest.mark.spark, pytest.mark.minutes, pytest.mark.timeout(1_800)]
OURS = ("producer", "inject", "job", "board")


def milliseconds(text):
    return datetime.fromisoformat(text).timestamp() * 1_000


def fetched(address):
    with urllib.request.urlopen(f"http://{address}", timeout=10) as answer:
        return answer.read().decode()


def test_the_services_write_complete_windows_without_root_rights_and_with_a_read_only_root():
    with services("kafka", *OURS) as started:
        for name in OURS:
            container = started.containers[name]
            # By the exit statuses: of a command that ends at once, Docker may lose the output.
            assert container.exec_run(["sh", "-c", "test $(id -u) = 10001"]).exit_code == 0
            assert container.exec_run("touch /opt/x", user="root").exit_code == 1
        config = {"bootstrap.servers": started.address["9092"]}
        rows = {"orders": [], "revenue": []}
        with Observer(config, list(rows)) as observer:

            def complete():
                for record in observer.poll():
                    if isinstance(record, Data):
                        rows[record.topic].append(json.loads(record.value))
                for tracker in observer.trackers.values():
                    tracker.advance()
                known = min(tracker.watermark or 0 for tracker in observer.trackers.values())
                return [row for row in rows["revenue"] if milliseconds(row["minute"]) <= known]

            until(complete, "a complete window", 600)
            for row in complete():
                end = milliseconds(row["minute"])
                amounts = [one["amount"] for one in rows["orders"] if end - 60_000 <= milliseconds(one["at"]) < end]
                assert row["revenue"] == sum(amounts) > 0
        shown = json.loads(fetched(f"{started.address['8417']}/board.json"))["topics"]
        assert {topic["topic"] for topic in shown} == set(rows)
        assert 'floodmark_watermark_timestamp_seconds{kind="injector"' in fetched(f"{started.address['9108']}/metrics")
