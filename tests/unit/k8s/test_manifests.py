"""The overlays' configurations, and the nodes they run on."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deployments.kubernetes import capacity
from deployments.kubernetes.manifests import ray_service
from tests.support.kubernetes.overlays import OVERLAYS, planted, ray_pods, rendered
from tests.support.processes.project import ROOT


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlays_configuration_is_valid_and_fits_its_nodes(overlay: str) -> None:
    assert capacity.problems(ray_service(rendered(overlay)), rendered(overlay)) == []


def test_a_hub_id_in_an_overlay_is_found() -> None:
    def plant(service: Any) -> None:
        served = service["spec"]["serveConfigV2"]
        service["spec"]["serveConfigV2"] = served.replace("/models/BAAI/", "BAAI/")

    (problem,) = capacity.problems(ray_service(planted("gpu", "RayService", plant)), rendered("gpu"))
    assert re.match("bge: BAAI/bge-base-en-v1.5@[0-9a-f]{40} comes from a model hub", problem)
    assert "set model_source: /models/BAAI/bge-base-en-v1.5" in problem


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_ray_version_is_the_locks(overlay: str) -> None:
    locks = "".join((ROOT / "requirements" / name).read_text() for name in ("cpu.lock", "gpu.lock"))
    versions = set(re.findall(r"^ray==(\S+)", locks, re.MULTILINE)) | set(
        re.findall(r"^ray\[[^]]*\]==(\S+)", locks, re.M)
    )
    assert {ray_service(rendered(overlay))["spec"]["rayClusterConfig"]["rayVersion"]} == versions


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ray_listens_as_the_network_policies_say(overlay: str) -> None:
    """The port of `serveConfigV2` is the one that HAProxy, probe, policies and Services use."""
    spec = ray_service(rendered(overlay))["spec"]
    assert spec["serveService"] == {"spec": {"ports": [{"name": "serve", "port": 8000, "targetPort": "serve"}]}}
    served = yaml.safe_load(spec["serveConfigV2"])
    assert served["http_options"].items() >= {"host": "0.0.0.0", "port": 8000}.items()
    for pod in ray_pods(rendered(overlay)):
        named = {port["name"]: port["containerPort"] for port in pod.main["ports"]}
        # Kubernetes leaves out pods without a port of this name, so that no client's stream keeps an engine's.
        assert named.get("serve") == (None if pod.labels["app.kubernetes.io/component"] == "engine" else 8000)


def _containers(value: Any) -> Iterator[dict[str, Any]]:
    """All containers in a manifest, wherever they are."""
    if isinstance(value, dict):
        for kind in ("containers", "initContainers"):
            yield from value.get(kind) or ()
        value = list(value.values())
    for part in value if isinstance(value, list) else ():
        yield from _containers(part)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_argument_has_a_secret_since_everyone_on_a_node_reads_those(overlay: str) -> None:
    secrets = 0
    for container in _containers(rendered(overlay)):
        texts = json.dumps([container.get("command"), container.get("args"), container.get("lifecycle")])
        for variable in container.get("env") or ():
            if "secretKeyRef" in (variable.get("valueFrom") or {}):
                secrets += 1
                assert f"$({variable['name']})" not in texts
    assert secrets > 0
