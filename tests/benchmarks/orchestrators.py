"""Fire the complete hours of a topic at a real Airflow 3 or Dagster, and read them back from its API.

    PYTHONPATH=tests python tests/benchmarks/orchestrators.py airflow|dagster VENV

VENV: a virtual environment with ``apache-airflow`` (3.2 or later), or with ``dagster`` and ``dagster-webserver``.  The
server runs in a temporary folder on the loopback address.  The trigger is killed once after each event, and started
again.  Ends with status 0 only if the orchestrator has each partition, in order, and each event only once or twice.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from floodmark.producers import EmbeddedKafka, WatermarkedProducer, create_topics, explicit
from floodmark.producers.embedded.broker import free_port
from support.harness import until

_HOUR = 3_600_000
_HOURS = 4
_BEGIN = 1_767_600_000_000  # 2026-01-05T08:00:00Z
_LIMIT = 240
_DAG = """
from airflow.sdk import DAG, Asset
with DAG("produce", schedule=None) as dag:
    from airflow.providers.standard.operators.empty import EmptyOperator
    EmptyOperator(task_id="write", outlets=[Asset("flights")])
"""
_DEFINITIONS = """
import dagster as dg
hourly = dg.HourlyPartitionsDefinition(start_date="2026-01-05-00:00")
defs = dg.Definitions(assets=[dg.AssetSpec("flights", partitions_def=hourly)])
"""
_QUERY = (
    '{assetOrError(assetKey:{path:["flights"]}){... on Asset {assetMaterializations(limit:100){partition '
    "metadataEntries{label ... on TextMetadataEntry {text}}}}}}"
)


def _ask(url: str, body: Any = None, token: str | None = None) -> Any:  # JSON
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:  # noqa: S310
        return json.loads(answer.read())


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310
    except (urllib.error.URLError, OSError):
        return False
    return True


@contextmanager
def _server(command: list[str], place: Path, more: dict[str, str], url: str) -> Iterator[None]:
    with Path(place, "server.log").open("w") as log:
        running = subprocess.Popen(
            command, cwd=place, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **more}
        )
        try:
            until(lambda: _answers(url), f"an answer of {url}", _LIMIT)
            yield
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait(60)


@contextmanager
def airflow(venv: Path, place: Path) -> Iterator[tuple[list[str], str, Callable[[], list[tuple[str, str]]]]]:
    """Run Airflow; give the trigger's options, its token, and what reads the events back."""
    port = free_port()
    Path(place, "dags").mkdir()
    Path(place, "dags", "flights.py").write_text(_DAG)
    more = {
        "AIRFLOW_HOME": str(place),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__WORKERS": "1",
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
    }
    more |= {"PYTHONPATH": ""}
    url = f"http://127.0.0.1:{port}"
    with _server([str(venv / "bin" / "airflow"), "standalone"], place, more, f"{url}/api/v2/version"):
        token = _ask(f"{url}/auth/token")["access_token"]
        assets = f"{url}/api/v2/assets"
        until(lambda: bool(_ask(assets, token=token)["assets"]), "the asset of the Dag", _LIMIT)

        def found() -> list[tuple[str, str]]:
            events = _ask(f"{assets}/events?order_by=timestamp&limit=100", token=token)["asset_events"]
            return [(event["partition_key"], event["extra"]["key"]) for event in events]

        yield ["--airflow", url, "--asset", "flights"], token, found


@contextmanager
def dagster(venv: Path, place: Path) -> Iterator[tuple[list[str], str, Callable[[], list[tuple[str, str]]]]]:
    """Run Dagster's webserver; give the same."""
    port = free_port()
    Path(place, "definitions.py").write_text(_DEFINITIONS)
    url = f"http://127.0.0.1:{port}"
    command = [str(venv / "bin" / "dagster-webserver"), "-f", "definitions.py", "-h", "127.0.0.1", "-p", str(port)]
    more = {"DAGSTER_HOME": str(place), "PYTHONPATH": "", "DAGSTER_DISABLE_TELEMETRY": "1"}
    with _server(command, place, more, f"{url}/server_info"):

        def found() -> list[tuple[str, str]]:
            asked = _ask(f"{url}/graphql", {"query": _QUERY})["data"]["assetOrError"]["assetMaterializations"]
            keys = [{entry["label"]: entry.get("text") for entry in one["metadataEntries"]} for one in asked]
            return [(one["partition"], str(key["floodmark/key"])) for one, key in zip(asked, keys, strict=True)][::-1]

        yield ["--dagster", url, "--asset", "flights"], "", found


def main(kind: str, venv: str) -> int:
    """Fire, kill, read back."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedKafka(Path(place, "kafka")) as kafka,
        {"airflow": airflow, "dagster": dagster}[kind](Path(venv), Path(tempfile.mkdtemp(dir=place))) as (
            target,
            token,
            found,
        ),
    ):
        sys.stdout.write(f"{time.monotonic() - began:.0f} s: {kind} runs\n")
        create_topics(kafka.config, {"flights": 1})
        source = WatermarkedProducer(
            kafka.config, topic="flights", source="web", strategy=explicit(), interval=timedelta(hours=1)
        )
        run = [sys.executable, "-m", "floodmark.producers.cli.main", "trigger", "flights", "--every", "1h", *target]
        run += ["--from", "2026-01-05T08:00Z", "--bootstrap-servers", kafka.bootstrap_servers]
        for hour in range(_HOURS):
            source.advance(_BEGIN + (hour + 1) * _HOUR)
            source.flush(30)
            trigger = subprocess.Popen(run, env={**os.environ, "FLOODMARK_TRIGGER_TOKEN": token})
            until(lambda hour=hour: len({key for _, key in found()}) == hour + 1, f"event {hour}", _LIMIT)
            trigger.kill()
            trigger.wait()
        source.end()
        events = found()
    keys = list(dict.fromkeys(key for _, key in events))
    expected = [f"flights/2026-01-05T{8 + hour:02}:00:00Z/complete" for hour in range(_HOURS)]
    right = keys == expected and all(sum(key == one for _, key in events) <= 2 for one in keys)
    sys.stdout.writelines(f"{partition}  {key}\n" for partition, key in events)
    sys.stdout.write(f"{time.monotonic() - began:.0f} s: {'as expected' if right else f'WRONG, expected {expected}'}\n")
    return not right


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
