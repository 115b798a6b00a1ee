"""A ledger on a node's own disk causes a warning, but only if something is recorded."""

from typing import Any

import pytest
import yaml

from deployments.kubernetes.capacity import warnings

EXPERIMENT = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}
CLAIM = {"name": "ledger", "persistentVolumeClaim": {"claimName": "ledger"}}
LOCAL = {"name": "ledger", "emptyDir": {}}


def service(volume: dict[str, Any], url: str = "ledger", mount: str = "/var/lib/switchyard", **config: Any) -> Any:
    served = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}},
        "deployments": {name: {"url": f"http://{name}", "model": name} for name in ("blue", "green")},
        "experiments": {"first": EXPERIMENT},
        "ledger": {"url": url},
    }
    container = {
        "env": [{"name": "SWITCHYARD_LEDGER_BASE", "value": "/var/lib/switchyard"}],
        "volumeMounts": [{"name": "root", "mountPath": "/"}, {"name": "ledger", "mountPath": mount}],
    }
    pod = {"containers": [container], "volumes": [{"name": "root", "emptyDir": {}}, volume]}
    cluster = {"workerGroupSpecs": [{"template": {"spec": {"containers": [{}]}}}, {"template": {"spec": pod}}]}
    return {"spec": {"serveConfigV2": yaml.safe_dump(served | config), "rayClusterConfig": cluster}}


@pytest.mark.parametrize(
    ("found", "warns"),
    [
        (service(LOCAL), True),
        (service({"name": "ledger", "hostPath": {"path": "/data"}}), True),
        (service(CLAIM), False),
        (service(CLAIM, url="/elsewhere/ledger"), True),
        (service(CLAIM, mount="/var/lib/switch"), True),
        (service(CLAIM, url="/data/ledger", mount="/data"), False),
        (service(LOCAL, url="s3://bucket/ledger"), False),
        (service(LOCAL, experiments={"first": EXPERIMENT | {"state": "draft"}}), False),
        (service(LOCAL, experiments={}), False),
    ],
)
def test_evidence_on_a_nodes_own_disk_is_a_warning(found: Any, warns: bool) -> None:
    assert [("is on a node's own disk" in it, "ledger.url" in it) for it in warnings(found)] == [(True, True)] * warns
