"""The overlays follow our policies on streams, secrets and access, and each policy detects planted mistakes."""

from typing import Any

import pytest

from deployments.kubernetes import environment
from deployments.kubernetes.manifests import Manifest
from tests.support.kubernetes import policies
from tests.support.kubernetes.overlays import OVERLAYS, Change, cluster, group, made, planted, rendered, without, worker
from tests.support.kubernetes.room import room_to_drain


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("policy", policies.POLICIES, ids=lambda policy: policy.__name__)
def test_every_overlay_keeps_every_policy(overlay: str, policy: policies.Policy) -> None:
    assert list(policy(rendered(overlay))) == []


def head(service: Manifest) -> Any:
    return cluster(service)["headGroupSpec"]["template"]["spec"]


def worker_of(service: Manifest) -> Any:
    return group(service, "cpu")["template"]["metadata"]


def variable(service: Manifest, name: str) -> Any:
    return next(it for it in worker(service)["env"] if it["name"] == name)


def engine(service: Manifest) -> Any:
    return group(service, "gpu-l4")["template"]["spec"]["containers"][0]


PLANTED: list[tuple[policies.Policy, Change, str]] = [
    (
        policies.restricted_containers,
        lambda it: head(it).update(automountServiceAccountToken=True),
        "has a token",
    ),
    (
        policies.restricted_containers,
        lambda it: without(worker(it), "securityContext"),
        "not restricted",
    ),
    (
        policies.restricted_containers,
        lambda it: head(it)["securityContext"].update(runAsUser=0),
        "runs as root",
    ),
    (
        policies.restricted_containers,
        lambda it: without(cluster(it)["autoscalerOptions"], "securityContext"),
        "autoscaler",
    ),
    (policies.named_images, lambda it: worker(it).update(image="switchyard"), "the image switchyard has no tag"),
    (policies.sized_containers, lambda it: without(worker(it)["resources"], "limits"), "no memory limit"),
    (
        policies.sized_containers,
        lambda it: head(it)["containers"][0]["resources"]["requests"].update(cpu="1"),
        "last",
    ),
    (policies.drains, lambda it: variable(it, environment.DRAIN).update(value="30"), "is 30, not 3600"),
    (policies.drains, lambda it: head(it).update(terminationGracePeriodSeconds=600), "before it has drained"),
    (policies.drains, lambda it: worker(it).update(lifecycle={"preStop": {}}), "preStop"),
    (policies.drains, lambda it: without(it["spec"], "rayClusterDeletionDelaySeconds"), "before its streams"),
    (policies.same_environment, lambda it: without(variable(it, "RAY_SERVE_ENABLE_HA_PROXY"), "value"), "is None"),
    (
        policies.secrets_where_needed,
        lambda it: variable(it, "SWITCHYARD_INTERNAL_KEY").update(value="key"),
        "cpu: SWITCHYARD_INTERNAL_KEY does not come from a Secret",
    ),
    (
        policies.secrets_where_needed,
        lambda it: engine(it)["env"].append(variable(it, "SWITCHYARD_INTERNAL_KEY")),
        "gpu-l4: has SWITCHYARD_INTERNAL_KEY",
    ),
    (
        policies.secrets_where_needed,
        lambda it: engine(it)["volumeMounts"].append({"name": "keys", "mountPath": "/etc/switchyard"}),
        "gpu-l4: mounts /etc/switchyard",
    ),
    (
        policies.no_secret_arguments,
        lambda it: worker(it).update(args=["--password", "$(SWITCHYARD_REDIS_PASSWORD)"]),
        "SWITCHYARD_REDIS_PASSWORD is an argument",
    ),
    (policies.writable_directories, lambda it: worker(it)["volumeMounts"].clear(), "/tmp cannot be written"),
    (policies.scales_from_zero, lambda it: without(group(it, "gpu-l4"), "resources"), "from zero"),
    (policies.scales_from_zero, lambda it: cluster(it).update(enableInTreeAutoscaling=False), "no autoscaler"),
    (room_to_drain, lambda it: group(it, "gpu-l4").update(maxReplicas=10), "10 of 10 pods may be in use"),
    (
        room_to_drain,
        lambda it: group(it, "gpu-l4").update(maxReplicas=100),
        "INTER is 5s, not 11s as for 106 nodes",
    ),
    (policies.head_without_work, lambda it: without(it["spec"], "excludeHeadPodFromServeSvc"), "takes clients'"),
    (policies.head_without_work, lambda it: without(head(it), "affinity"), "spot"),
    (policies.survives_its_head, lambda it: without(cluster(it), "authOptions"), "runs code"),
    (policies.survives_its_head, lambda it: without(cluster(it), "gcsFaultToleranceOptions"), "no Service"),
    (
        policies.honest_probes,
        lambda it: worker(it)["readinessProbe"]["httpGet"].update(path="/ready"),
        "/ready",
    ),
    (policies.budgets_that_let_go, lambda it: group(it, "cpu").update(minReplicas=1), "blocks every drain"),
    (
        policies.resolved_references,
        lambda it: variable(it, "SWITCHYARD_INTERNAL_KEY")["valueFrom"]["secretKeyRef"].update(name="other"),
        "no Secret other",
    ),
    (
        policies.resolved_references,
        lambda it: group(it, "cpu")["template"]["spec"]["volumes"].pop(0),
        "no volume",
    ),
    (policies.ports_to_scrape, lambda it: worker(it)["ports"].pop(), "no port metrics"),
    (
        policies.weights_for_all,
        lambda it: worker(it)["volumeMounts"][0].update(mountPath="/models"),
        "no engine",
    ),
    (
        policies.writable_directories,
        lambda it: without(cluster(it)["headGroupSpec"]["rayStartParams"], "object-store-memory"),
        "head: Ray's objects do not fit into /dev/shm",
    ),
    (
        policies.streams_outlast_scale_down,
        lambda it: without(worker_of(it), "annotations"),
        "cpu: the cluster autoscaler",
    ),
    (policies.tolerated_gpus, lambda it: without(group(it, "gpu-l4")["template"]["spec"], "tolerations"), "taint"),
    (
        policies.spread_routers,
        lambda it: group(it, "cpu")["template"]["spec"]["topologySpreadConstraints"].pop(0),
        "cpu: not spread by topology.kubernetes.io/zone",
    ),
    (
        policies.spread_routers,
        lambda it: group(it, "cpu")["template"]["metadata"]["labels"].update({"app.kubernetes.io/component": "engine"}),
        "among other pods",
    ),
    (
        policies.spread_routers,
        lambda it: without(group(it, "cpu")["template"]["spec"]["topologySpreadConstraints"][1], "matchLabelKeys"),
        "together with another cluster's",
    ),
    (policies.expanded_variables, lambda it: worker(it)["env"].reverse(), "REDIS_URL stands before"),
]


@pytest.mark.parametrize(("policy", "change", "said"), PLANTED)
def test_a_policy_that_is_broken_is_found(policy: policies.Policy, change: Change, said: str) -> None:
    found = list(policy(planted("gpu", "RayService", change)))
    assert found
    assert said in found[0]


def test_every_policy_has_a_planted_mistake() -> None:
    assert {policy for policy, _, _ in PLANTED} | {policies.open_ingresses, policies.open_gateways} == set(
        policies.POLICIES
    )


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("Ingress", lambda it: without(it["spec"], "tls"), "without TLS"),
        (
            "Ingress",
            lambda it: it["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"].update(name="x"),
            "Service",
        ),
    ],
)
def test_an_ingress_that_cannot_work_is_found(kind: str, change: Change, said: str) -> None:
    manifests = made(host="models.example.com", entrance={"kind": "ingress"})
    assert list(policies.open_ingresses(manifests)) == []
    change(next(it for it in manifests if it["kind"] == kind))
    (found,) = policies.open_ingresses(manifests)
    assert said in found


def rule(route: Manifest) -> Any:
    return route["spec"]["rules"][0]


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("Gateway", lambda it: without(it["spec"]["listeners"][0], "tls"), "the listener https has no TLS"),
        ("Gateway", lambda it: it["spec"]["listeners"][0].update(protocol="HTTP"), "the listener https has no TLS"),
        ("HTTPRoute", lambda it: it["spec"].update(hostnames=["other.example.com"]), "other.example.com has no TLS"),
        ("HTTPRoute", lambda it: rule(it)["timeouts"].update(backendRequest="60s"), "cuts streams"),
        ("HTTPRoute", lambda it: without(rule(it), "timeouts"), "cuts streams"),
        ("HTTPRoute", lambda it: rule(it)["backendRefs"][0].update(name="x"), "not the routers' Service"),
    ],
)
def test_a_gateway_that_cannot_work_is_found(kind: str, change: Change, said: str) -> None:
    assert any(said in problem for problem in policies.open_gateways(planted("gpu", kind, change)))
