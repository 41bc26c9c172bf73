"""The dashboard, the alerts and the compose file: what they name is there, and Prometheus' own tools accept them."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from floodmark import __version__
from floodmark.producers.metrics import ALL, LABELS, Metrics, PrometheusExporter
from floodmark.schemas.records import Holder
from floodmark.schemas.tracker import Hold
from monitoring.prometheus_programs import promtool
from prometheus_client import CollectorRegistry, generate_latest

DOCKER = Path(__file__).parents[2] / "docker"
ALERTS = DOCKER / "prometheus" / "alerts.yaml"
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "floodmark.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
BY_NAME = {metric.name: metric for metric in ALL}


def load(*parts):
    return yaml.safe_load(DOCKER.joinpath(*parts).read_text(encoding="utf-8"))


def rules():
    return [rule for group in load("prometheus", "alerts.yaml")["groups"] for rule in group["rules"]]


def drawn():
    """Return what the dashboard asks for, its variables filled in as Grafana does."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    asked += [re.fullmatch(r"label_values\((.*), (\w+)\)", query["query"]).group(1) for query in variables]
    return [re.sub(r"\$(kind|name)", ".*", expr.replace("$__rate_interval", "1m")) for expr in asked]


def expressions():
    return [rule["expr"] for rule in rules()] + drawn()


def names(expression):
    return set(re.findall(r"\bfloodmark_\w+", expression))


def full():
    """Return what an exporter shows of instances of which everything is known."""
    exporter = PrometheusExporter(CollectorRegistry())
    known = {field: 1 for metric in ALL for field in metric.fields}
    exporter.update(
        Metrics("job", "counts", topic="counts", state="active", **known), [Hold(Holder("clicks", 0, "web"), 5, "low")]
    )
    return generate_latest(exporter.registry).decode()


def test_each_name_is_one_that_the_exporter_shows():
    shown = set(re.findall(r"^(floodmark_\w+)\{", full(), re.MULTILINE))
    assert shown == set(BY_NAME)
    for expression in expressions():
        assert names(expression) <= shown, expression


def test_each_metric_is_on_the_dashboard():
    assert set().union(*map(names, drawn())) == set(BY_NAME)


def test_rates_are_taken_of_counters_alone_and_of_all_of_them():
    for expression in expressions():
        for function, name in re.findall(r"\b(rate|increase|changes|deriv)\((floodmark_\w+)", expression):
            assert (BY_NAME[name].type == "counter") == (function in {"rate", "increase"}), expression
        bare = Counter(re.findall(r"(?<!rate\()(?<!increase\()\b(floodmark_\w+_total)", expression))
        assert set(bare.values()) <= {2}, "only `new and above 0 unless it was there`"
        for name in bare:
            assert f"({name} > 0 unless {name} offset 10m)" in expression


def test_the_dashboard_leaves_triggers_out_where_the_alerts_do():
    watched = r'\b(floodmark_\w+)\{kind!="trigger"'
    apart = set().union(*(re.findall(watched, rule["expr"]) for rule in rules()))
    assert apart
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for expression in panels:
        if names(expression) & apart:
            assert set(re.findall(watched, expression)) == names(expression) & apart, expression


def test_no_panel_hides_a_watermark_that_is_ahead_of_the_clock():
    lags = [panel for panel in DASHBOARD["panels"] if "lag" in panel["title"]]
    assert len(lags) == 2
    for panel in lags:
        assert "clamp" not in json.dumps(panel["targets"])
        assert "min" not in panel["fieldConfig"]["defaults"]


def test_what_labels_are_named_is_there():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            own = set.union(*({*LABELS, *BY_NAME[name].further} for name in names(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= own, panel["title"]
    for rule in rules():
        own = {label for name in names(rule["expr"]) for label in (*LABELS, *BY_NAME[name].further)} | {"instance"}
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert used <= own, rule["alert"]
        assert used <= {*LABELS, "reason", "instance"}, rule["alert"]


def test_each_alert_says_what_to_do():
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}
        text = rule["annotations"]["description"]
        does = r"`floodmark \w+|`resend\(\)`|`--\w+|`forget`|brokers of topic"
        assert re.search(does, text), f"{rule['alert']} does not say what to do"
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_each_command_that_they_name_exists():
    told = json.dumps([rule["annotations"] for rule in rules()]) + json.dumps(DASHBOARD)
    named = set(re.findall(r"`?floodmark (why|board|check|inject|[a-z]+)(?= |`)", told)) - {"metrics"}
    assert named <= {"why", "board", "check", "inject"}, named


def test_alerts_fire_for_what_is_wrong_and_for_nothing_else():
    tests = Path(__file__).with_name("alerts.yaml")
    promtool("test", "rules", tests)
    asked = set(re.findall(r'alertname="(\w+)", name|alertname="(\w+)"\}', tests.read_text(encoding="utf-8")))
    assert {first or second for first, second in asked} == {rule["alert"] for rule in rules()}, "each is tried"


def test_promtool_finds_no_fault_in_rules_and_configuration():
    promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    promtool("check", "config", DOCKER / "prometheus" / "prometheus.yaml")


def test_promtool_finds_no_fault_in_the_names():
    promtool("check", "metrics", text=full())


def test_the_dashboard_asks_what_prometheus_can_answer(tmp_path):
    made = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(drawn())]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": made}]}), encoding="utf-8")
    promtool("check", "rules", path)


def test_panels_have_their_own_place_and_title():
    panels = DASHBOARD["panels"]
    cells = Counter(
        (x, y)
        for spot in (panel["gridPos"] for panel in panels)
        for x in range(spot["x"], spot["x"] + spot["w"])
        for y in range(spot["y"], spot["y"] + spot["h"])
    )
    assert set(cells.values()) == {1}, "panels overlap"
    assert max(x for x, _ in cells) < 24
    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)


def test_grafana_finds_its_data_and_its_dashboard():
    (source,) = load("grafana", "provisioning", "datasources", "prometheus.yaml")["datasources"]
    (chosen,) = (one for one in DASHBOARD["templating"]["list"] if one["type"] == "datasource")
    assert chosen["current"]["value"] == source["uid"]
    assert f"--web.listen-address={source['url'].removeprefix('http://')}" in COMPOSE["prometheus"]["command"]
    (provider,) = load("grafana", "provisioning", "dashboards", "floodmark.yaml")["providers"]
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["options"]["path"])
    mounts = dict(reversed(mount.split(":")[:2]) for mount in COMPOSE["grafana"]["volumes"])
    assert (DOCKER / mounts[provider["options"]["path"]] / Path(home).name).is_file()


def test_what_is_mounted_is_there_and_read_only():
    for service in COMPOSE.values():
        for mount in service.get("volumes", ()):
            place, _, mode = mount.split(":")
            assert (DOCKER / place).is_dir(), mount
            assert mode == "ro", mount
    (config,) = (word.split("=")[1] for word in COMPOSE["prometheus"]["command"] if word.startswith("--config"))
    assert (DOCKER / "prometheus" / Path(config).name).is_file()
    settings = load("prometheus", "prometheus.yaml")
    (job,) = settings["scrape_configs"]
    assert job["job_name"] == "floodmark", "alerts ask for it"
    for name in [*settings["rule_files"], *job["file_sd_configs"][0]["files"]]:
        assert (DOCKER / "prometheus" / name).is_file()


def test_the_compose_file_keeps_the_schema():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, DOCKER / "compose.yaml"], check=True)


@pytest.mark.parametrize("variables", [{}, {"KAFKA_LOG_DIRS": "/var/lib/kafka/other"}])
def test_the_second_start_of_a_kafka_container_formats_nothing(tmp_path, variables):
    script = (DOCKER / "kafka" / "start.sh").read_text(encoding="utf-8")
    for folder in ("/opt/kafka", "/var/lib/kafka"):
        (tmp_path / folder[1:]).mkdir(parents=True)
        script = script.replace(folder, f"{tmp_path}{folder}")
    java = tmp_path / "java"
    java.write_text(
        """#!/bin/sh
        folder=$(sed -n 's/^log.dirs=//p' "${0%/*}/opt/kafka/server.properties")
        [ "$4" != format ] || { mkdir "${folder:-/proc/none}" && echo formats && : > "$folder/meta.properties"; }
        """,
        encoding="utf-8",
    )
    java.chmod(0o755)
    variables = {name: f"{tmp_path}{value}" for name, value in variables.items()}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    starts = [
        subprocess.run(["sh", "-c", script], env=path | variables, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert starts == ["formats\n", ""]


@pytest.mark.parametrize("service", COMPOSE)
def test_every_image_is_a_setting_and_every_port_is_on_loopback(service):
    set_ = COMPOSE[service]
    if "build" in set_:  # what Floodmark serves is on loopback
        assert set_["image"].endswith(f":{__version__}")
        return
    assert re.fullmatch(rf"\$\{{FLOODMARK_{service.upper()}_IMAGE:-[\w/]+:v?[\d.]+\}}", set_["image"])
    for port in set_.get("ports", ()):
        assert port.startswith("127.0.0.1:")
    if set_.get("network_mode") == "host":
        assert "ports" not in set_
        told = [*set_.get("command", ()), *map("=".join, set_.get("environment", {}).items())]
        assert [
            word for word in told if word.startswith(("--web.listen-address=127.0.0.1:", "GF_SERVER_HTTP_ADDR=127"))
        ]
