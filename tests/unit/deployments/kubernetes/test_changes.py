"""What applying changed manifests does, for every change of the values, and as a law for all other fields."""

import copy
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deployments.cli.main import main
from deployments.kubernetes import chart
from deployments.kubernetes.changes import Change, ChangeEffect, changes, compared
from deployments.kubernetes.manifests import Manifest, ray_service

LLAMA = {"name": "llama", "source": "hf:acme/llama@v1", "gpu": "L4", "replicas": "1-4", "share": 90}
QWEN = {"name": "qwen", "source": "hf:acme/qwen@v1", "gpu": "L4", "replicas": "1-4", "share": 10}
VALUES: dict[str, Any] = {"models": [LLAMA, QWEN]}


def rendered(values: Any) -> list[Manifest]:
    return chart.objects(chart.render(values, name="sy", namespace="models"))


BEFORE = rendered(VALUES)


def first(**changed: Any) -> dict[str, Any]:
    """The values with another first model."""
    return {"models": [LLAMA | changed, QWEN]}


DOCUMENTED: list[tuple[dict[str, Any], set[ChangeEffect], str]] = [
    (
        {"models": [LLAMA | {"share": 50}, QWEN | {"share": 50}]},
        {ChangeEffect.IN_PLACE},
        "serveConfigV2: no replica is replaced",
    ),
    (
        first(engine={"max_model_len": 4096}),
        {ChangeEffect.IN_PLACE},
        "serveConfigV2: replaces the replicas, one by one, of llama",
    ),
    (first(name="llama-2"), {ChangeEffect.IN_PLACE}, "serveConfigV2: stops llama; starts llama-2"),
    ({"redis": {"image": "redis:8"}}, {ChangeEffect.IN_PLACE}, "StatefulSet sy-redis: its pod is replaced at once"),
    (first(source="hf:acme/llama@v2"), {ChangeEffect.IN_PLACE}, "Job sy-weights-"),
    (
        {"models": [LLAMA, QWEN, QWEN | {"name": "more", "share": 0, "replicas": "0-1"}]},
        {ChangeEffect.PATCH, ChangeEffect.IN_PLACE},
        "serveConfigV2",
    ),
    (
        {"models": [LLAMA, QWEN, QWEN | {"name": "big", "share": 0, "gpu": "H100"}]},
        {ChangeEffect.IN_PLACE},
        "new groups at the end: gpu-h100",
    ),
    (
        {"models": [QWEN | {"name": "big", "share": 0, "gpu": "H100"}, LLAMA, QWEN]},
        {ChangeEffect.NEW_CLUSTER, ChangeEffect.IN_PLACE},
        "workerGroupSpecs (gpu-h100)",
    ),
    (first(replicas="1-5"), {ChangeEffect.PATCH, ChangeEffect.IN_PLACE}, "group gpu-l4: maxReplicas, from"),
    (first(replicas="1-400"), {ChangeEffect.PATCH, ChangeEffect.IN_PLACE}, "ConfigMap sy-size, for pods that start"),
    ({"nodes": {"L4": {"tolerations": [{"key": "gpus", "operator": "Exists"}]}}}, {ChangeEffect.PATCH}, "tolerations"),
    ({"image": {"tag": "0.1.1"}}, {ChangeEffect.NEW_CLUSTER, ChangeEffect.IN_PLACE}, ".image"),  # and a new Job
    (
        {"engineImage": {"gpuTag": "0.1.1"}},
        {ChangeEffect.NEW_CLUSTER},
        "workerGroupSpecs[gpu-l4].template.spec.containers",
    ),
    ({"upgrade": "NewClusterWithIncrementalUpgrade"}, {ChangeEffect.IN_PLACE}, "RayService: upgradeStrategy"),
    ({"nodes": {"L4": {"memory": "32Gi"}}}, {ChangeEffect.NEW_CLUSTER}, "memory"),
    ({"cloud": "gke"}, {ChangeEffect.NEW_CLUSTER}, "nodeSelector"),
    ({"upgrade": "None"}, {ChangeEffect.IN_PLACE}, "upgradeStrategy"),
    ({"redis": {"size": "4Gi"}}, {ChangeEffect.REFUSED}, "enlarge its claim, whose class must allow it"),
    ({"redis": {"size": "1Gi"}}, {ChangeEffect.REFUSED}, "spec.volumeClaimTemplates cannot be changed; leave it"),
    ({"redis": {"storageClass": "fast"}}, {ChangeEffect.REFUSED}, "leave it: the claims that it has made outlive it"),
    ({"operatorNamespace": "operators"}, {ChangeEffect.IN_PLACE}, "NetworkPolicy"),
    ({"weights": {"size": "200Gi"}}, {ChangeEffect.IN_PLACE}, "sy-weights, if its class lets it grow"),
    ({"weights": {"size": "50Gi"}}, {ChangeEffect.REFUSED}, "the size, from 100Gi to 50Gi,"),
    (
        {"weights": {"storageClass": "nfs"}},
        {ChangeEffect.REFUSED},
        "spec.storageClassName cannot be changed; leave it: a deleted claim loses its data",
    ),
    (
        {"models": [LLAMA | {"gpus": 2}, QWEN | {"gpus": 2}]},
        {ChangeEffect.NEW_CLUSTER},
        "new cluster: RayService: serveConfigV2, in the second cluster alone",
    ),
    ({"host": "models.acme.com"}, {ChangeEffect.IN_PLACE}, "HTTPRoute sy is new"),
]


@pytest.mark.parametrize(("values", "effects", "said"), DOCUMENTED, ids=[said for _, _, said in DOCUMENTED])
def test_every_change_of_the_values_has_its_effect(
    values: dict[str, Any], effects: set[ChangeEffect], said: str
) -> None:
    listed = changes(BEFORE, rendered(VALUES | values))
    assert {change.effect for change in listed} == effects, listed
    assert any(said in str(change) for change in listed), listed


def test_nothing_changes_where_nothing_changed() -> None:
    assert changes(BEFORE, rendered(VALUES)) == []


KEPT = {"ledger": {"size": "20Gi"}, "host": "models.acme.com"}


@pytest.mark.parametrize(
    ("by_helm", "what", "effect", "command"),
    [
        (False, "HTTPRoute sy", ChangeEffect.LEFT, "kubectl delete httproute sy"),
        (True, "HTTPRoute sy", ChangeEffect.DELETED, None),
        (False, "PersistentVolumeClaim sy-ledger", ChangeEffect.LEFT, "kubectl delete persistentvolumeclaim sy-ledger"),
        (True, "PersistentVolumeClaim sy-ledger", ChangeEffect.LEFT, "kubectl delete persistentvolumeclaim sy-ledger"),
    ],
)
def test_helm_deletes_what_is_left_out_but_for_the_ledger(
    by_helm: bool, what: str, effect: ChangeEffect, command: str | None
) -> None:
    listed = changes(rendered(VALUES | KEPT), rendered(VALUES | {"ledger": {"url": "s3://bucket"}}), by_helm=by_helm)
    (change,) = [change for change in listed if change.what.startswith(what)]
    assert (change.effect, change.command) == (effect, command)


def test_helm_deletes_the_data_of_a_claim_that_it_is_not_told_to_keep() -> None:
    before = rendered(VALUES | KEPT)
    for manifest in before:
        manifest["metadata"].pop("annotations", None)
    (change,) = [change for change in changes(before, BEFORE, by_helm=True) if "sy-ledger" in change.what]
    assert change.effect is ChangeEffect.DELETED
    assert "PersistentVolumeClaim sy-ledger, with its data" in change.what


def test_no_command_deletes_a_namespace_that_former_manifests_had() -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "models"}}
    assert changes([*BEFORE, namespace], BEFORE) == []


def test_no_printed_command_deletes_data_or_stops_pods() -> None:
    for values in ({"ledger": {"size": "20Gi", "storageClass": "other"}}, {"redis": {"size": "4Gi"}}):
        (refused,) = [
            change
            for change in changes(
                rendered(VALUES | KEPT | {"host": ""}), rendered(VALUES | KEPT | {"host": ""} | values)
            )
            if change.effect is ChangeEffect.REFUSED
        ]
        assert "delete persistentvolumeclaim" not in str(refused)
        assert refused.command is None or refused.command.endswith("delete statefulset sy-redis --cascade=orphan")


def test_a_larger_claim_of_redis_is_patched_first() -> None:
    (change,) = changes(BEFORE, rendered(VALUES | {"redis": {"size": "4Gi"}}))
    assert change.command is not None
    patch, delete = change.command.split(" && ")
    assert patch.startswith("kubectl patch persistentvolumeclaim data-sy-redis-0 --type=merge --patch=")
    assert json.loads(shlex.split(patch)[-1].partition("=")[2]) == {
        "spec": {"resources": {"requests": {"storage": "4Gi"}}}
    }
    assert delete == "kubectl delete statefulset sy-redis --cascade=orphan"


def test_without_a_second_cluster_what_is_served_changes_in_place() -> None:
    after = VALUES | {"upgrade": "None", "models": [LLAMA | {"gpus": 2}, QWEN | {"gpus": 2}]}
    listed = changes(rendered(VALUES | {"upgrade": "None"}), rendered(after))
    served = "in place: RayService: serveConfigV2: replaces the replicas, one by one, of llama, qwen"
    assert served in map(str, listed)


def changed(change: Callable[[Any], object]) -> list[Change]:
    """After a change to the RayService."""
    after = copy.deepcopy(BEFORE)
    change(ray_service(after))
    return changes(BEFORE, after)


def groups(service: Any) -> Any:
    return service["spec"]["rayClusterConfig"]["workerGroupSpecs"]


def test_the_patch_is_what_the_manifest_has() -> None:
    def raise_it(service: Any) -> None:
        groups(service)[1]["maxReplicas"] = 77
        service["metadata"]["namespace"] = "models"

    (change,) = changed(raise_it)
    assert change.command is not None
    assert change.command.startswith("kubectl -n models patch raycluster $(kubectl -n models get rayservice sy -o")
    (operation,) = json.loads(shlex.split(re.sub(r"\$\([^)]*\)", "NAME", change.command))[-1].partition("=")[2])
    assert operation == {"op": "add", "path": "/spec/workerGroupSpecs/1/maxReplicas", "value": 77}


def test_replicas_belong_to_the_autoscaler() -> None:
    assert changed(lambda manifests: groups(manifests)[1].update(replicas=3)) == []


def test_the_order_of_groups_counts() -> None:
    (change,) = changed(lambda manifests: groups(manifests).reverse())
    assert change.effect is ChangeEffect.NEW_CLUSTER
    assert "workerGroupSpecs (their order)" in change.what


def test_without_a_second_cluster_the_change_waits() -> None:
    strategy, image, _ = changes(BEFORE, rendered(VALUES | {"upgrade": "None", "image": {"tag": "2"}}))
    assert (strategy.effect, image.effect) == (ChangeEffect.IN_PLACE, ChangeEffect.LEFT)
    assert "until you delete the RayCluster" in image.what


def test_a_job_of_the_same_name_is_refused_another_template() -> None:
    after = copy.deepcopy(BEFORE)
    job = next(manifest for manifest in after if manifest["kind"] == "Job")
    del job["spec"]["template"]["spec"]["volumes"]
    (change,) = changes(BEFORE, after)
    assert change.effect is ChangeEffect.REFUSED
    assert change.command == f"kubectl delete job {job['metadata']['name']}"


def test_empty_lists_are_as_good_as_none() -> None:
    assert changed(lambda manifests: groups(manifests)[0]["template"]["spec"]["containers"][0].update(args=[])) == []


Path_ = tuple[str | int, ...]
MUTED = re.compile(
    r"workerGroupSpecs/\d+/((min|max)?[rR]eplicas|scaleStrategy)(/|$)|"
    r"template/spec/(tolerations|schedulingGates)(/|$)|^upgradeStrategy(/|$)"
)
"""The fields of a rayClusterConfig that KubeRay 1.7 does not compare."""


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = [leaf for name, part in parts for leaf in leaves(part, (*path, name))]
    yield from inner or [path]


CONFIG = ray_service(BEFORE)["spec"]["rayClusterConfig"]


@given(path=st.sampled_from(sorted(leaves(CONFIG), key=str)))
def test_every_field_is_compared_but_those_that_kuberay_passes_over(path: Path_) -> None:
    changed = copy.deepcopy(CONFIG)
    *parents, last = path
    place = changed
    for name in parents:
        place = place[name]
    place[last] = "another value"
    assert (compared(changed) == compared(CONFIG)) == bool(MUTED.search("/".join(map(str, path))))


def test_the_command_says_it_before_it_is_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(yaml.safe_dump(VALUES))
    after.write_text(yaml.safe_dump(first(replicas="1-5")))
    assert main(["check", str(after), "--against", str(before)]) == 0
    printed, warned = capsys.readouterr()
    assert "patch needed: group gpu-l4: maxReplicas, from" in printed
    assert "helm get manifest switchyard -n switchyard > running.yaml" in warned
    assert printed.endswith(f"{after}: OK\n")
    after.write_text(yaml.safe_dump(VALUES | {"weights": {"size": "50Gi"}}))
    assert main(["check", str(after), "--against", str(before)]) == 1
    assert "\nrefused: PersistentVolumeClaim" in capsys.readouterr().err
    assert main(["check", str(after), "--against", str(tmp_path / "gone.yaml")]) == 1
    assert "gone.yaml: No such file" in capsys.readouterr().err


def test_printed_commands_are_for_the_release_and_namespace_that_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    after.write_text(yaml.safe_dump(first(replicas="1-5")))
    before.write_text(yaml.safe_dump(VALUES))
    assert main(["check", str(after), "--against", str(before), "--name", "blue", "--namespace", "llm"]) == 0
    printed = capsys.readouterr().out
    assert "kubectl -n llm patch raycluster $(kubectl -n llm get rayservice blue -o" in printed
    text = "".join(f"---\n# Source: switchyard/x.yaml\n{yaml.safe_dump(manifest)}" for manifest in BEFORE)
    before.write_text(text)  # as `helm get manifest sy`
    assert main(["check", str(after), "--against", str(before), "--namespace", "llm"]) == 0
    assert "$(kubectl -n llm get rayservice sy -o" in capsys.readouterr().out


def test_helms_output_and_values_say_what_helm_deletes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(yaml.safe_dump(VALUES | KEPT))
    after.write_text(yaml.safe_dump(VALUES | {"ledger": {"size": "20Gi"}}))
    assert main(["check", str(after), "--against", str(before)]) == 0
    assert "deleted: HTTPRoute switchyard: `helm upgrade` deletes" in capsys.readouterr().out
    objects = yaml.safe_dump_all(chart.objects(chart.render(VALUES, name="switchyard", namespace="switchyard")))
    for head, said in (("# Source: switchyard/x.yaml\n", "deleted: HTTPRoute"), ("", "left behind: HTTPRoute")):
        after.write_text(f"{head}{objects}")
        assert main(["check", str(after), "--against", str(before)]) == 0
        assert said in capsys.readouterr().out
