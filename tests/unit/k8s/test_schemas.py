"""The overlays' fields exist and have the right types, and the check detects planted mistakes."""

import pytest

from tests.support.kubernetes import schemas
from tests.support.kubernetes.overlays import OVERLAYS, Change, cluster, group, made, planted, rendered, without, worker


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_checked_and_its_objects_have_fields_that_exist(overlay: str) -> None:
    assert [problem for it in rendered(overlay) for problem in schemas.problems(it)] == []


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("RayService", lambda it: group(it, "cpu").update(minReplica=1), "minReplica"),
        ("RayService", lambda it: worker(it).update(envs=[]), "envs"),
        ("RayService", lambda it: worker(it)["ports"][0].update(containerPort="8000"), "'8000' is not of type"),
        ("RayService", lambda it: cluster(it)["autoscalerOptions"].update(version="v3"), "'v3' is not one of"),
        ("RayService", lambda it: without(group(it, "cpu"), "maxReplicas"), "'maxReplicas' is a required property"),
        ("RayService", lambda it: it["spec"].update(serveConfig=""), "serveConfig"),
        ("PodDisruptionBudget", lambda it: it["spec"].update(selectors={}), "selectors"),
        ("NetworkPolicy", lambda it: it["spec"].update(podSelectors={}), "podSelectors"),
        ("Job", lambda it: it["spec"].update(backoffLimit="5"), "backoffLimit"),
        ("StatefulSet", lambda it: it["spec"]["template"]["spec"].update(securityContexts={}), "securityContexts"),
        ("HTTPRoute", lambda it: it["spec"]["rules"][0].update(timeout={}), "timeout"),
        ("Gateway", lambda it: it["spec"]["listeners"][0].update(hostName="x"), "hostName"),
        ("PodMonitor", lambda it: it["spec"]["podMetricsEndpoints"][0].update(intervals="15s"), "intervals"),
    ],
)
def test_a_field_that_does_not_exist_is_found(kind: str, change: Change, said: str) -> None:
    changed = next(it for it in planted("gpu", kind, change) if it["kind"] == kind)
    (found,) = schemas.problems(changed)
    assert said in found


def test_an_ingress_fields_exist() -> None:
    """The Ingress, which no overlay has."""
    manifests = made(host="models.example.com", entrance={"kind": "ingress"})
    (ingress,) = (it for it in manifests if it["kind"] == "Ingress")
    assert list(schemas.problems(ingress)) == []
    ingress["spec"]["rules"][0]["http"]["paths"][0]["pathTyp"] = ""
    assert ["pathTyp" in it for it in schemas.problems(ingress)] == [True]
