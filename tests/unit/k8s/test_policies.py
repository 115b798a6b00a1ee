"""The overlays follow our policies on streams, secrets and access, and each policy detects planted mistakes."""

from typing import Any

import pytest

from deployments.draining import GRACE_S
from deployments.kubernetes import environment
from deployments.kubernetes.manifests import Manifest
from tests.support.kubernetes import policies
from tests.support.kubernetes.overlays import OVERLAYS, Change, cluster, group, made, planted, rendered, without, worker
from tests.support.kubernetes.room import room_to_drain


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("policy", policies.POLICIES, ids=lambda policy: policy.__name__)
def test_every_overlay_keeps_every_policy(overlay: str, policy: policies.Policy) -> None:
    assert list(policy(rendered(overlay))) == []


def test_replicas_on_a_drained_node_have_time_for_their_successors() -> None:
    """Serve stops them once the rest of the drain is no longer than they may take to stop."""
    assert environment.WORKER_DRAIN_S - GRACE_S >= 300
    assert environment.WORKER_DRAIN_S - GRACE_S < environment.HEAD_DRAIN_S, "in a cluster that is deleted"


def head(service: Manifest) -> Any:
    return cluster(service)["headGroupSpec"]["template"]["spec"]


def worker_of(service: Manifest) -> Any:
    return group(service, "cpu")["template"]["metadata"]


def variable(service: Manifest, name: str) -> Any:
    return next(entry for entry in worker(service)["env"] if entry["name"] == name)


def engine(service: Manifest) -> Any:
    return group(service, "gpu-l4")["template"]["spec"]["containers"][0]


PLANTED: list[tuple[policies.Policy, Change, str]] = [
    (
        policies.restricted_containers,
        lambda manifest: head(manifest).update(automountServiceAccountToken=True),
        "has a token",
    ),
    (
        policies.restricted_containers,
        lambda manifest: without(worker(manifest), "securityContext"),
        "not restricted",
    ),
    (
        policies.restricted_containers,
        lambda manifest: head(manifest)["securityContext"].update(runAsUser=0),
        "runs as root",
    ),
    (
        policies.restricted_containers,
        lambda manifest: without(cluster(manifest)["autoscalerOptions"], "securityContext"),
        "autoscaler",
    ),
    (
        policies.named_images,
        lambda manifest: worker(manifest).update(image="switchyard"),
        "the image switchyard has no tag",
    ),
    (policies.sized_containers, lambda manifest: without(worker(manifest)["resources"], "limits"), "no memory limit"),
    (
        policies.sized_containers,
        lambda manifest: head(manifest)["containers"][0]["resources"]["requests"].update(cpu="1"),
        "last",
    ),
    (policies.drains, lambda manifest: variable(manifest, environment.DRAIN).update(value="30"), "is 30, not 4140"),
    (
        policies.drains,
        lambda manifest: head(manifest).update(terminationGracePeriodSeconds=600),
        "before it has drained",
    ),
    (policies.drains, lambda manifest: worker(manifest).update(lifecycle={"preStop": {}}), "preStop"),
    (
        policies.drains,
        lambda manifest: without(manifest["spec"], "rayClusterDeletionDelaySeconds"),
        "before its streams",
    ),
    (
        policies.same_environment,
        lambda manifest: without(variable(manifest, "RAY_SERVE_ENABLE_HA_PROXY"), "value"),
        "is None",
    ),
    (
        policies.secrets_where_needed,
        lambda manifest: variable(manifest, "SWITCHYARD_INTERNAL_KEY").update(value="key"),
        "cpu: SWITCHYARD_INTERNAL_KEY does not come from a Secret",
    ),
    (
        policies.secrets_where_needed,
        lambda manifest: engine(manifest)["env"].append(variable(manifest, "SWITCHYARD_INTERNAL_KEY")),
        "gpu-l4: has SWITCHYARD_INTERNAL_KEY",
    ),
    (
        policies.secrets_where_needed,
        lambda manifest: engine(manifest)["volumeMounts"].append({"name": "keys", "mountPath": "/etc/switchyard"}),
        "gpu-l4: mounts /etc/switchyard",
    ),
    (
        policies.no_secret_arguments,
        lambda manifest: worker(manifest).update(args=["--password", "$(SWITCHYARD_REDIS_PASSWORD)"]),
        "SWITCHYARD_REDIS_PASSWORD is an argument",
    ),
    (
        policies.writable_directories,
        lambda manifest: worker(manifest)["volumeMounts"].clear(),
        "/tmp cannot be written",
    ),
    (policies.scales_from_zero, lambda manifest: without(group(manifest, "gpu-l4"), "resources"), "from zero"),
    (
        policies.scales_from_zero,
        lambda manifest: cluster(manifest).update(enableInTreeAutoscaling=False),
        "no autoscaler",
    ),
    (room_to_drain, lambda manifest: group(manifest, "gpu-l4").update(maxReplicas=10), "10 of 10 pods may be in use"),
    (
        room_to_drain,
        lambda manifest: group(manifest, "gpu-l4").update(maxReplicas=100),
        "INTER is 5s, not 11s as for 106 nodes",
    ),
    (
        policies.head_without_work,
        lambda manifest: without(manifest["spec"], "excludeHeadPodFromServeSvc"),
        "takes clients'",
    ),
    (policies.head_without_work, lambda manifest: without(head(manifest), "affinity"), "spot"),
    (policies.survives_its_head, lambda manifest: without(cluster(manifest), "authOptions"), "runs code"),
    (policies.survives_its_head, lambda manifest: without(cluster(manifest), "gcsFaultToleranceOptions"), "no Service"),
    (
        policies.honest_probes,
        lambda manifest: worker(manifest)["readinessProbe"]["httpGet"].update(path="/ready"),
        "/ready",
    ),
    (policies.budgets_that_let_go, lambda manifest: group(manifest, "cpu").update(minReplicas=1), "blocks every drain"),
    (
        policies.resolved_references,
        lambda manifest: variable(manifest, "SWITCHYARD_INTERNAL_KEY")["valueFrom"]["secretKeyRef"].update(
            name="other"
        ),
        "no Secret other",
    ),
    (
        policies.resolved_references,
        lambda manifest: group(manifest, "cpu")["template"]["spec"]["volumes"].pop(0),
        "no volume",
    ),
    (policies.ports_to_scrape, lambda manifest: worker(manifest)["ports"].pop(), "no port metrics"),
    (
        policies.weights_for_all,
        lambda manifest: worker(manifest)["volumeMounts"][0].update(mountPath="/models"),
        "no engine",
    ),
    (
        policies.writable_directories,
        lambda manifest: without(cluster(manifest)["headGroupSpec"]["rayStartParams"], "object-store-memory"),
        "head: Ray's objects do not fit into /dev/shm",
    ),
    (
        policies.streams_outlast_scale_down,
        lambda manifest: without(worker_of(manifest), "annotations"),
        "cpu: the cluster autoscaler",
    ),
    (
        policies.tolerated_gpus,
        lambda manifest: without(group(manifest, "gpu-l4")["template"]["spec"], "tolerations"),
        "taint",
    ),
    (
        policies.spread_routers,
        lambda manifest: group(manifest, "cpu")["template"]["spec"]["topologySpreadConstraints"].pop(0),
        "cpu: not spread by topology.kubernetes.io/zone",
    ),
    (
        policies.spread_routers,
        lambda manifest: group(manifest, "cpu")["template"]["metadata"]["labels"].update(
            {"app.kubernetes.io/component": "engine"}
        ),
        "among other pods",
    ),
    (
        policies.spread_routers,
        lambda manifest: without(
            group(manifest, "cpu")["template"]["spec"]["topologySpreadConstraints"][1], "matchLabelKeys"
        ),
        "together with another cluster's",
    ),
    (policies.expanded_variables, lambda manifest: worker(manifest)["env"].reverse(), "REDIS_URL stands before"),
]


@pytest.mark.parametrize(("policy", "change", "said"), PLANTED)
def test_a_policy_that_is_broken_is_found(policy: policies.Policy, change: Change, said: str) -> None:
    problems = list(policy(planted("gpu", "RayService", change)))
    assert problems
    assert said in problems[0]


def test_every_policy_has_a_planted_mistake() -> None:
    assert {policy for policy, _, _ in PLANTED} | {policies.open_ingresses, policies.open_gateways} == set(
        policies.POLICIES
    )


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("Ingress", lambda manifest: without(manifest["spec"], "tls"), "without TLS"),
        (
            "Ingress",
            lambda manifest: manifest["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"].update(name="x"),
            "Service",
        ),
    ],
)
def test_an_ingress_that_cannot_work_is_found(kind: str, change: Change, said: str) -> None:
    manifests = made(host="models.example.com", entrance={"kind": "ingress"})
    assert list(policies.open_ingresses(manifests)) == []
    change(next(manifest for manifest in manifests if manifest["kind"] == kind))
    (problem,) = policies.open_ingresses(manifests)
    assert said in problem


def rule(route: Manifest) -> Any:
    return route["spec"]["rules"][0]


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("Gateway", lambda manifest: without(manifest["spec"]["listeners"][0], "tls"), "the listener https has no TLS"),
        (
            "Gateway",
            lambda manifest: manifest["spec"]["listeners"][0].update(protocol="HTTP"),
            "the listener https has no TLS",
        ),
        (
            "HTTPRoute",
            lambda manifest: manifest["spec"].update(hostnames=["other.example.com"]),
            "other.example.com has no TLS",
        ),
        ("HTTPRoute", lambda manifest: rule(manifest)["timeouts"].update(backendRequest="60s"), "cuts streams"),
        ("HTTPRoute", lambda manifest: without(rule(manifest), "timeouts"), "cuts streams"),
        ("HTTPRoute", lambda manifest: rule(manifest)["backendRefs"][0].update(name="x"), "not the routers' Service"),
    ],
)
def test_a_gateway_that_cannot_work_is_found(kind: str, change: Change, said: str) -> None:
    assert any(said in problem for problem in policies.open_gateways(planted("gpu", kind, change)))
