"""Clusters that cannot hold what they serve.

A ledger on a node's own disk causes a warning, but only if something is recorded.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from deployments.haproxy import cluster_settings
from deployments.invocation import module
from deployments.kubernetes.capacity import pods, problems, warnings
from deployments.kubernetes.demands import Demand, Group, groups, quantity

SERVED = """
http_options: {host: 0.0.0.0}
applications:
  - name: router
    route_prefix: /
    import_path: deployments.router:build
    deployments:
      - name: Router
        autoscaling_config: {min_replicas: 1, max_replicas: 2}
        max_replicas_per_node: 1
        ray_actor_options: {num_cpus: 1, label_selector: {ray.io/node-group: cpu}}
        user_config:
          endpoints: {chat: {tasks: [chat], traffic: {llama: 100}}}
          access: {keys_file: /etc/switchyard/keys.yaml}
          deployments: {llama: {app: llama, model: llama}}
  - name: llama
    route_prefix: /deployments/llama
    import_path: deployments.llm:build
    args:
      llm_config:
        model_loading_config: {model_id: llama, model_source: /models/llama}
        accelerator_type: L4
        engine_kwargs: {tensor_parallel_size: 2}
    deployments:
      - name: Engine
        autoscaling_config: {min_replicas: 0, max_replicas: 3}
"""

CLUSTER = """
enableInTreeAutoscaling: true
headGroupSpec: {rayStartParams: {num-cpus: "0"}}
workerGroupSpecs:
  - groupName: cpu
    minReplicas: 1
    maxReplicas: 2
    template: {spec: {containers: [{resources: {requests: {cpu: "2"}}}]}}
  - groupName: gpu-l4
    minReplicas: 0
    maxReplicas: 3
    resources: {"accelerator_type:L4": "1"}
    rayStartParams: {num-cpus: "3"}
    template: {spec: {containers: [{resources: {requests: {cpu: "3"}, limits: {nvidia.com/gpu: "2", memory: 1Gi}}}]}}
"""


def service(change: Callable[[Any], object] = lambda cluster: None, served: str = SERVED) -> dict[str, Any]:
    cluster = yaml.safe_load(CLUSTER)
    change(cluster)
    return {"spec": {"serveConfigV2": served, "rayClusterConfig": cluster}}


def cpu(cluster: Any) -> Any:
    return cluster["workerGroupSpecs"][0]


def gpu(cluster: Any) -> Any:
    return cluster["workerGroupSpecs"][1]


def resources(group: Any) -> Any:
    return group["template"]["spec"]["containers"][0]["resources"]


def test_a_cluster_that_fits_has_no_problem() -> None:
    assert problems(service()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda cluster: gpu(cluster).update(maxReplicas=2),
            "group gpu-l4: at most 2 pods, but 3 of llama/Engine need 3; raise",
        ),
        (
            lambda cluster: cpu(cluster).update(maxReplicas=1),
            "group cpu: at most 1 pods, but 2 of router/Router need 2",
        ),
        (lambda cluster: cluster.update(enableInTreeAutoscaling=False), "group cpu: at most 0 pods"),
        (lambda cluster: gpu(cluster).pop("resources"), "accelerator_type:L4; name a group gpu-l4"),
        (
            lambda cluster: gpu(cluster).update(resources={"accelerator_type:H100": "1"}),
            "no group declares the resource",
        ),
        (lambda cluster: cpu(cluster).update(groupName="routers"), "router/Router: no group has the labels"),
        (
            lambda cluster: resources(gpu(cluster))["limits"].pop("nvidia.com/gpu"),
            "1 GPU on one node; the group gpu-l4 has 0",
        ),
        (
            lambda cluster: cpu(cluster).update(rayStartParams={"num-cpus": "0"}),
            "1 CPU on one node; the group cpu has 0",
        ),
        (lambda cluster: resources(gpu(cluster))["limits"].update(cpu="2"), "num-cpus is 3, limits.cpu 2"),
        (
            lambda cluster: resources(gpu(cluster))["requests"].update(cpu="2"),
            "requests.cpu is 2, but llama/Engine runs 3 busy",
        ),
        (lambda cluster: cluster["headGroupSpec"].update(rayStartParams={}), 'num-cpus: "0"'),
    ],
)
def test_a_mistake_in_the_groups_is_found(change: Callable[[Any], object], said: str) -> None:
    assert any(said in problem for problem in problems(service(change))), problems(service(change))


def test_a_deployment_that_may_run_on_a_gpu_node_without_need_is_found() -> None:
    served = SERVED.replace(", label_selector: {ray.io/node-group: cpu}", "")
    (problem,) = problems(service(served=served))
    assert problem.startswith(
        "router/Router: may be scheduled in the group gpu-l4, on a GPU node; set ray_actor_options"
    )


@pytest.mark.parametrize(
    ("served", "said"),
    [
        (SERVED.replace("llama: 100", "llama: 99"), "serveConfigV2: applications[0].deployments[0].user_config."),
        (SERVED.replace("0.0.0.0", "127.0.0.1"), "listens on 127.0.0.1, which cannot be reached from outside the pod"),
        ("a: [", "serveConfigV2: not YAML"),
        ("", "serveConfigV2: (top level): expected a mapping"),
    ],
)
def test_an_invalid_configuration_is_a_problem(served: str, said: str) -> None:
    (problem,) = problems(service(served=served))
    assert said in problem


def offline(cluster: Any) -> None:
    """Sets the pods offline, as the overlays do."""
    for group in cluster["workerGroupSpecs"]:
        group["template"]["spec"]["containers"][0]["env"] = [{"name": "HF_HUB_OFFLINE", "value": "1"}]


@pytest.mark.parametrize(
    ("was", "planted", "said"),
    [
        ("/models/llama}", "org/llama}", "llama: org/llama comes from a model hub"),
        ("model_id: llama, model_source: /models/llama", "model_id: org/llama", "set model_source: /models/org/llama,"),
        (
            "tensor_parallel_size: 2",
            "tensor_parallel_size: 2, lora_modules: [{name: french, path: org/french}]",
            "llama: the adapter french: org/french comes from a model hub, and its pods have HF_HUB_OFFLINE=1; "
            "set its path to /models/org/french,",
        ),
    ],
)
def test_weights_from_a_hub_are_found_if_the_pods_are_offline(was: str, planted: str, said: str) -> None:
    assert problems(service(offline)) == []
    served = SERVED.replace(was, planted)
    if "model_id: org/llama" in planted:
        served = served.replace("model: llama}", "model: org/llama}")
    (problem,) = problems(service(offline, served))
    assert said in problem
    assert problems(service(served=served)) == []


def test_other_sources_need_no_hub() -> None:
    for source in ("package:SmolLM2-135M-Instruct", "s3://bucket/llama", "./llama"):
        served = SERVED.replace("model_source: /models/llama", f'model_source: "{source}"')
        assert problems(service(offline, served)) == []


def test_a_large_cluster_needs_settings_of_its_own() -> None:
    reported = problems(service(lambda cluster: gpu(cluster).update(maxReplicas=60)))
    printed = f"what `{module('deployments.haproxy --nodes 63')}` prints"
    fix = f"put {printed} into the ConfigMap switchyard-size"
    assert [problem.partition(":")[0] for problem in reported] == ["group head", "group cpu", "group gpu-l4"]
    assert all(problem.endswith(fix) for problem in reported)

    def settle(cluster: Any) -> None:
        gpu(cluster)["maxReplicas"] = 60
        cluster["headGroupSpec"]["template"] = {"spec": {"containers": [{}]}}
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            group["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "size"}}]

    def size(nodes: int) -> dict[str, Any]:
        return {"kind": "ConfigMap", "metadata": {"name": "size"}, "data": dict(cluster_settings(nodes))}

    assert problems(service(settle), [size(63)]) == []
    assert len(problems(service(settle), [size(53)])) == 3
    assert len(problems(service(settle))) == 3


def test_deployments_share_pods() -> None:
    group = Group("gpu", {"CPU": 8, "GPU": 2}, {}, most=9, cpu_request=8, cpu_limit=None)
    whole = Demand("large", "Engine", ({"CPU": 1, "GPU": 1}, {"GPU": 1}), 1, 2)
    half = Demand("small", "Engine", ({"CPU": 1, "GPU": 0.5},), 1, 3)
    assert pods([whole], group) == 2
    assert pods([half], group) == 1
    assert pods([whole, half], group) == 3
    assert pods([replace(half, per_node=1)], group) == 3
    assert pods([], group) == 0


def test_a_group_offers_what_kuberay_starts_ray_with() -> None:
    first, second = groups(yaml.safe_load(CLUSTER))
    assert first == Group("cpu", {"CPU": 2}, {"ray.io/node-group": "cpu"}, most=2, cpu_request=2, cpu_limit=None)
    assert second.offer == {"CPU": 3, "GPU": 2, "memory": 2**30, "accelerator_type:L4": 1}


@pytest.mark.parametrize(
    ("text", "number"), [("500m", 0.5), ("2", 2), (4, 4), ("1Gi", 2**30), ("1.5G", 1.5e9), ("1e3", 1000)]
)
def test_quantities_are_parsed_as_kubernetes_does(text: object, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1X"])
def test_an_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


EXPERIMENT = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}
CLAIM = {"name": "ledger", "persistentVolumeClaim": {"claimName": "ledger"}}
LOCAL = {"name": "ledger", "emptyDir": {}}


def service_ledger_volume(
    volume: dict[str, Any], url: str = "ledger", mount: str = "/var/lib/switchyard", **config: Any
) -> Any:
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


def test_weights_without_a_revision_are_a_warning() -> None:
    (warning,) = warnings(service())
    assert warning == (
        "serveConfigV2: /models/llama names no revision; append @ and a commit of the model's repository"
    )
    pinned = SERVED.replace("model_source: /models/llama", "model_source: /models/llama@abc")
    assert warnings(service(served=pinned)) == []
    assert warnings(service(served=SERVED.replace("/models/llama", "package:llama"))) == []


@pytest.mark.parametrize(
    ("found", "warns"),
    [
        (service_ledger_volume(LOCAL), True),
        (service_ledger_volume({"name": "ledger", "hostPath": {"path": "/data"}}), True),
        (service_ledger_volume(CLAIM), False),
        (service_ledger_volume(CLAIM, url="/elsewhere/ledger"), True),
        (service_ledger_volume(CLAIM, mount="/var/lib/switch"), True),
        (service_ledger_volume(CLAIM, url="/data/ledger", mount="/data"), False),
        (service_ledger_volume(LOCAL, url="s3://bucket/ledger"), False),
        (service_ledger_volume(LOCAL, experiments={"first": EXPERIMENT | {"state": "draft"}}), False),
        (service_ledger_volume(LOCAL, experiments={}), False),
    ],
)
def test_evidence_on_a_nodes_own_disk_is_a_warning(found: Any, warns: bool) -> None:
    assert [("is on a node's own disk" in warning, "ledger.url" in warning) for warning in warnings(found)] == [
        (True, True)
    ] * warns
