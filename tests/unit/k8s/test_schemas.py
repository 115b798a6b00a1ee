"""The overlays' fields exist and have the right types, and the check detects planted mistakes."""

import pytest

from tests.support.kubernetes import schemas
from tests.support.kubernetes.overlays import OVERLAYS, Change, cluster, group, made, planted, rendered, without, worker


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_checked_and_its_objects_have_fields_that_exist(overlay: str) -> None:
    assert [problem for manifest in rendered(overlay) for problem in schemas.problems(manifest)] == []


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("RayService", lambda manifest: group(manifest, "cpu").update(minReplica=1), "minReplica"),
        ("RayService", lambda manifest: worker(manifest).update(envs=[]), "envs"),
        (
            "RayService",
            lambda manifest: worker(manifest)["ports"][0].update(containerPort="8000"),
            "'8000' is not of type",
        ),
        (
            "RayService",
            lambda manifest: cluster(manifest)["autoscalerOptions"].update(version="v3"),
            "'v3' is not one of",
        ),
        (
            "RayService",
            lambda manifest: without(group(manifest, "cpu"), "maxReplicas"),
            "'maxReplicas' is a required property",
        ),
        ("RayService", lambda manifest: manifest["spec"].update(serveConfig=""), "serveConfig"),
        ("PodDisruptionBudget", lambda manifest: manifest["spec"].update(selectors={}), "selectors"),
        ("NetworkPolicy", lambda manifest: manifest["spec"].update(podSelectors={}), "podSelectors"),
        ("Job", lambda manifest: manifest["spec"].update(backoffLimit="5"), "backoffLimit"),
        (
            "StatefulSet",
            lambda manifest: manifest["spec"]["template"]["spec"].update(securityContexts={}),
            "securityContexts",
        ),
        ("HTTPRoute", lambda manifest: manifest["spec"]["rules"][0].update(timeout={}), "timeout"),
        ("Gateway", lambda manifest: manifest["spec"]["listeners"][0].update(hostName="x"), "hostName"),
        (
            "PodMonitor",
            lambda manifest: manifest["spec"]["podMetricsEndpoints"][0].update(intervals="15s"),
            "intervals",
        ),
    ],
)
def test_a_field_that_does_not_exist_is_found(kind: str, change: Change, said: str) -> None:
    changed = next(manifest for manifest in planted("gpu", kind, change) if manifest["kind"] == kind)
    (problem,) = schemas.problems(changed)
    assert said in problem


def test_an_ingress_fields_exist() -> None:
    """The Ingress, which no overlay has."""
    manifests = made(host="models.example.com", entrance={"kind": "ingress"})
    (ingress,) = (manifest for manifest in manifests if manifest["kind"] == "Ingress")
    assert list(schemas.problems(ingress)) == []
    ingress["spec"]["rules"][0]["http"]["paths"][0]["pathTyp"] = ""
    assert ["pathTyp" in problem for problem in schemas.problems(ingress)] == [True]
