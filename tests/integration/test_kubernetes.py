"""The kustomization: what kubectl makes of it keeps the schemas of Kubernetes.  No cluster runs here."""

import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from floodmark import __version__

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="it needs kubectl")
def test_each_resource_keeps_its_schema_and_each_pod_runs_without_rights():
    made = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True, check=True).stdout
    resources = list(yaml.safe_load_all(made))
    for resource in resources:
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)
    pods = [resource["spec"]["template"]["spec"] for resource in resources if resource["kind"] != "ConfigMap"]
    assert len(pods) == 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["image"].endswith(f":{__version__}")
        if probe := container.get("livenessProbe"):
            assert container["startupProbe"]["exec"] == probe["exec"], "the first reading may take minutes"
            assert container["startupProbe"]["failureThreshold"] >= 30
