"""The chart: what Helm makes of it, and what `switchyard k8s` makes of it without Helm, is the same."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings

from app.config.base import ConfigError
from deployments.haproxy import cluster_settings
from deployments.kubernetes import capacity, chart
from deployments.kubernetes.demands import most_nodes
from deployments.kubernetes.environment import DRAIN, STOP_S, WORKER_DRAIN_S
from deployments.kubernetes.manifests import ray_service
from deployments.kubernetes.manifests import read as kustomized
from tests.conftest import NIGHTLY
from tests.support.kubernetes import policies, schemas
from tests.support.kubernetes.helm import Helm, HelmFailed, helm
from tests.support.kubernetes.overlays import pods, ray_pods
from tests.support.kubernetes.values import MODEL, names, releases, right
from tests.support.processes.project import ROOT

CHART = ROOT / "k8s/chart"
EXAMPLES = (CHART / "values.yaml", *sorted((CHART / "ci").glob("*-values.yaml")))


@pytest.fixture(scope="module")
def real() -> Iterator[Helm]:
    with helm(CHART) as chart_of_helm:
        yield chart_of_helm


def render(values: Mapping[str, Any], *, name: str = "switchyard", namespace: str = "switchyard") -> dict[str, str]:
    return chart.render(values, name=name, namespace=namespace)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The files whose text is not the same but for empty lines at their ends."""
    texts = [{file: text.strip() for file, text in files.items()} for files in (ours, theirs)]
    ours, theirs = ({file: text for file, text in files.items() if text} for files in texts)
    return sorted(file for file in {*ours, *theirs} if ours.get(file) != theirs.get(file))


@settings(max_examples=60 if NIGHTLY else 20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(values=right, name=releases, namespace=names)
def test_helm_makes_the_same_text_or_refuses_with_the_same_words(
    real: Helm, values: dict[str, Any], name: str, namespace: str
) -> None:
    def rendering() -> dict[str, str]:
        notes = chart.notes(values, name=name, namespace=namespace)
        return {**render(values, name=name, namespace=namespace), "NOTES.txt": notes}

    ours, refused = made(rendering)
    theirs, said = made(lambda: real.render(values, name=name, namespace=namespace))
    assert differences(ours, theirs) == []
    assert bool(refused) == bool(said)
    assert refused in said


def made(rendering: Callable[[], dict[str, str]]) -> tuple[dict[str, str], str]:
    """The files, or what is wrong with the values."""
    try:
        return rendering(), ""
    except ConfigError as error:
        return {}, error.problems[0]
    except HelmFailed as error:
        return {}, str(error)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_kustomize_makes_the_same_objects_as_helm(real: Helm, file: Path, tmp_path: Path) -> None:
    values = yaml.safe_load(file.read_text()) | {"host": "models.example.com", "monitoring": {"enabled": True}}
    (tmp_path / chart.VALUES).write_text(yaml.safe_dump(values))
    chart.write(tmp_path, name="blue", namespace="team")
    files = real.render(values, name="blue", namespace="team")
    theirs = chart.objects({file: text for file, text in files.items() if file.endswith(".yaml")})
    assert {identity(manifest): manifest for manifest in theirs} == {
        identity(manifest): manifest for manifest in built(tmp_path)
    }


def built(directory: Path) -> list[Any]:
    """kustomize's objects, without what Helm leaves to the command line: the namespace of each."""
    objects = kustomized(directory)
    assert {manifest["metadata"].pop("namespace") for manifest in objects} == {"team"}
    return objects


def identity(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def test_a_difference_from_helm_is_found(real: Helm, tmp_path: Path) -> None:
    """A copy of the chart with another number of seconds in one template."""
    copied = tmp_path / "chart"
    shutil.copytree(CHART, copied)
    file = copied / "templates/rayservice.yaml"
    file.write_text(
        file.read_text().replace("rayClusterDeletionDelaySeconds: 3600", "rayClusterDeletionDelaySeconds: 60")
    )
    ours = chart.render({}, name="switchyard", namespace="switchyard", chart=copied)
    theirs = real.render({})
    assert differences(ours, {file: theirs[file] for file in theirs if file != "NOTES.txt"}) == ["rayservice.yaml"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_helm_finds_nothing_wrong_with_an_example(real: Helm, file: Path) -> None:
    result = real.lint(yaml.safe_load(file.read_text()))
    assert result["errors"] == []
    assert {message["error"] for message in result["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_valid_and_its_models_fit(file: Path) -> None:
    values = yaml.safe_load(file.read_text()) | {"host": "models.example.com", "monitoring": {"enabled": True}}
    objects = chart.objects(render(values))
    assert capacity.problems(ray_service(objects), objects) == []
    assert [problem for manifest in objects for problem in schemas.problems(manifest)] == []


@pytest.mark.parametrize("most", [1, 4, 5, 8, 9, 19, 20, 45, 46, 93, 194, 995])
def test_haproxys_settings_are_for_as_many_nodes_as_there_may_be(most: int) -> None:
    values = {"models": [MODEL], "nodes": {"L4": {"max": most}}}
    objects = chart.objects(render(values))
    count = most_nodes(ray_service(objects)["spec"]["rayClusterConfig"])
    (size,) = (manifest for manifest in objects if manifest["metadata"]["name"] == "switchyard-size")
    assert {**cluster_settings(1), **size["data"]} == cluster_settings(count)


def test_name_servers_that_engines_may_not_ask_are_found() -> None:
    def warned(values: Mapping[str, Any], change: Callable[[Any], object] = lambda _: None) -> list[str]:
        objects = chart.objects(render({"models": [{**MODEL, "source": "package:x"}], **values}))
        change(next(manifest for manifest in objects if manifest["metadata"]["name"] == "switchyard-engines")["spec"])
        return capacity.warnings(ray_service(objects), objects)

    assert warned({}) == []
    (no_address,) = warned({"dns": {"cidrs": []}})
    assert no_address.startswith("group gpu-l4: its NetworkPolicy lets it ask no name server at an address")
    assert len(warned({}, lambda spec: spec["egress"].pop())) == 2
    assert warned({}, lambda spec: spec["egress"].append({})) == [], "a policy that lets it go everywhere"


HASH = re.compile(r'(?<=-weights-)[0-9a-f]{8}|(?<=-)[0-9a-f]{8}(?=\\")')
"""In the Job's name, and in the uids of dashboards."""


def test_two_releases_in_a_namespace_share_nothing() -> None:
    """A release is another one with its own name in place of the other's, and refers to nothing that it has not."""
    values = {"host": "models.example.com", "monitoring": {"enabled": True}}
    blue, green = (render(values, name=name, namespace="team") for name in ("blue-1", "green-2"))
    named = {file: HASH.sub("#", text.replace("blue-1", "green-2")) for file, text in blue.items()}
    assert named == {file: HASH.sub("#", text) for file, text in green.items()}
    assert "namespace.yaml" not in chart.files(values, name="blue-1", namespace="team"), "`kubectl delete -k` of one"
    both = chart.objects(blue), chart.objects(green)
    assert not {identity(manifest) for manifest in both[0]} & {identity(manifest) for manifest in both[1]}
    absent = [problem for problem in policies.resolved_references(both[0]) if "no Secret blue-1" not in problem]
    assert absent == []
    assert list(policies.survives_its_head(both[0])) == [], "the Service of its own Redis"
    selectors = {
        json.dumps(manifest["spec"]["podSelector"]) for manifest in both[0] if manifest["kind"] == "NetworkPolicy"
    }
    assert all('"app.kubernetes.io/instance": "blue-1"' in selector for selector in selectors)


def test_one_grafana_may_show_several_releases() -> None:
    """It takes one dashboard for each uid of at most 40 characters, and in a folder for each title."""
    places = [("blue", "team"), ("green", "team"), ("blue", "other"), ("x" * 46, "y" * 63)]
    titles = [board for place in places for board in boards(*place)]
    assert len({board["uid"] for board in titles}) == len({board["title"] for board in titles}) == 5 * len(places)
    assert max(len(board["uid"]) for board in titles) <= 40


def boards(name: str, namespace: str) -> list[Any]:
    files = render({"monitoring": {"enabled": True}}, name=name, namespace=namespace)
    (config,) = (manifest for manifest in chart.objects(files) if manifest["metadata"]["name"] == f"{name}-dashboards")
    return [json.loads(text) for text in config["data"].values()]


def test_the_notes_have_the_next_commands_and_what_may_stop_them() -> None:
    def notes(weights: dict[str, str]) -> str:
        return chart.notes({"weights": weights}, name="blue", namespace="team")

    assert "kubectl -n team wait --for=condition=Ready rayservice/blue" in notes({})
    assert "kubectl -n team port-forward service/blue-serve-svc 8000" in notes({})
    assert "storageClass is empty" in notes({})
    assert "storageClass is empty" not in notes({"storageClass": "efs"}) + notes({"accessMode": "ReadWriteOnce"})


@pytest.mark.parametrize(
    ("values", "hosts"),
    [
        ({"host": "a.example.com"}, None),
        ({"router": {"access": {"allow_anonymous": True}}}, None),
        (
            {"host": "a.example.com", "router": {"access": {"allow_anonymous": True}}},
            ["a.example.com", "blue-serve-svc.team"],
        ),
        ({"host": "*.example.com", "router": {"access": {"allow_anonymous": True}}}, None),
        ({"host": "a.example.com", "router": {"access": {"allow_anonymous": True}, "hosts": ["b"]}}, ["b"]),
    ],
)
def test_callers_without_credentials_may_use_the_names_that_a_release_has(
    real: Helm, values: dict[str, Any], hosts: list[str] | None
) -> None:
    made = {**values, "models": [{**MODEL, "source": "package:x"}]}
    for files in (render(made, name="blue", namespace="team"), real.render(made, name="blue", namespace="team")):
        spec = ray_service(chart.objects({name: text for name, text in files.items() if name.endswith(".yaml")}))[
            "spec"
        ]
        (router,) = (part for part in yaml.safe_load(spec["serveConfigV2"])["applications"] if part["name"] == "router")
        assert router["deployments"][0]["user_config"].get("hosts") == hosts


@pytest.mark.parametrize(
    ("ledger", "kept"),
    [({}, False), ({"size": "10Gi"}, True), ({"url": "s3://bucket/ledger", "credentials": "bucket"}, True)],
)
def test_issued_keys_are_kept_on_a_volume_or_in_a_bucket_or_it_is_said(ledger: dict[str, str], kept: bool) -> None:
    values = {"models": [MODEL], "router": {"access": {"issue_keys": True}}, "ledger": ledger}
    objects = chart.objects(render(values))
    router = ray_service(objects)["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    served = yaml.safe_load(ray_service(objects)["spec"]["serveConfigV2"])
    config = served["applications"][0]["deployments"][0]["user_config"]
    assert config["access"]["issue_keys"] is True
    assert config["access"]["keys_file"] == "/etc/switchyard/keys.yaml", "the rest of the chart's own stays"
    assert config.get("ledger", {}).get("url") == ledger.get("url")
    claims = {manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "PersistentVolumeClaim"}
    (volume,) = (volume for volume in router["volumes"] if volume["name"] == "ledger")
    assert ("switchyard-ledger" in claims) is ("persistentVolumeClaim" in volume) is ("size" in ledger)
    secrets = [source["secretRef"]["name"] for source in router["containers"][0]["envFrom"] if "secretRef" in source]
    assert secrets == ["bucket"] * ("url" in ledger)
    said = [line for line in capacity.warnings(ray_service(objects), objects) if "ledger.url" in line]
    assert (said == []) is kept
    assert ("gone when that moves" in chart.notes(values, name="switchyard", namespace="switchyard")) is not kept


def test_only_routers_have_the_account_that_may_write_the_bucket() -> None:
    ledger = {"url": "s3://bucket/ledger", "serviceAccount": "ledger-writer"}
    made = list(pods(chart.objects(render({"models": [MODEL], "ledger": ledger}))))
    assert {pod.where: pod.spec.get("serviceAccountName") for pod in made if "serviceAccountName" in pod.spec} == {
        "cpu": "ledger-writer"
    }
    assert all(pod.spec["automountServiceAccountToken"] is False for pod in made)


def test_pods_without_engines_are_on_the_nodes_that_the_values_name() -> None:
    def placed(name: str) -> dict[str, Any]:
        return {"nodeSelector": {"pool": name}, "tolerations": [{"key": name, "operator": "Exists"}]}

    def places(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        keys = ("nodeSelector", "tolerations")
        return {
            re.sub(r"-weights-.*", "-weights", pod.where): {key: pod.spec[key] for key in keys if key in pod.spec}
            for pod in pods(chart.objects(render({"models": [MODEL], **values})))
        }

    without = places({})
    values = {"head": placed("stable"), "routers": placed("small")}
    assert places(values) == without | {
        "head": placed("stable"),
        "StatefulSet switchyard-redis": placed("stable"),
        "cpu": placed("small"),
        "Job switchyard-weights": placed("small"),
    }
    assert [where for where, place in without.items() if place] == ["gpu-l4"]
    with pytest.raises(ConfigError, match=r"head\.tolerations\[0\]\.keey"):
        render({"head": {"tolerations": [{"keey": "x"}]}})


@pytest.mark.parametrize(
    ("values", "fetched"),
    [
        ({"models": [{**MODEL, "source": "/models/team/a"}]}, None),
        ({"models": [{**MODEL, "source": "/models/team/a"}, {**MODEL, "name": "b", "source": "hf:o/b"}]}, ["hf:o/b"]),
        ({"models": [{**MODEL, "source": "/models/o/b"}, {**MODEL, "name": "b", "source": "hf:o/b"}]}, ["hf:o/b"]),
        ({"models": [{**MODEL, "source": "package:x"}]}, ["package:x"]),
    ],
)
def test_no_job_fetches_what_the_volume_is_filled_with(values: dict[str, Any], fetched: list[str] | None) -> None:
    """A hub may have a stranger's repository of it. Without an argument the Job would fetch the default models."""
    for index, model in enumerate(values["models"]):
        model |= {"share": 100 if index == 0 else 0}
    objects = chart.objects(render(values))
    jobs = [manifest for manifest in objects if manifest["kind"] == "Job"]
    assert [job["spec"]["template"]["spec"]["containers"][0]["args"] for job in jobs] == [fetched] * bool(fetched)
    unpinned = [line for line in capacity.warnings(ray_service(objects), objects) if "revision" in line]
    assert len(unpinned) == sum("hf:" in source for source in fetched or [])


def test_the_job_fetches_what_a_whole_serve_configuration_has_on_the_volume() -> None:
    served = yaml.safe_load(ray_service(chart.objects(render({})))["spec"]["serveConfigV2"])
    objects = chart.objects(render({"serveConfig": yaml.safe_dump(served)}))
    (job,) = (manifest for manifest in objects if manifest["kind"] == "Job")
    assert all(source.startswith("hf:") for source in job["spec"]["template"]["spec"]["containers"][0]["args"])


@pytest.mark.parametrize(
    ("values", "mixed"),
    [
        ({}, 0),
        ({"image": {"tag": "0.2.0-router"}}, 1),
        ({"image": {"tag": "", "repository": "r.example.com/s"}}, 0),
        ({"image": {"tag": "0.2.0-router"}, "engineImage": {"gpuTag": "0.2.0-gpu"}}, 0),
        ({"image": {"tag": "mine"}, "engineImage": {"gpuTag": "yours"}}, 0),
    ],
)
def test_routers_and_engines_of_different_versions_are_a_warning(values: dict[str, Any], mixed: int) -> None:
    objects = chart.objects(render({"models": [{**MODEL, "source": "package:x"}], **values}))
    said = capacity.warnings(ray_service(objects), objects)
    assert [line.partition(":")[0] for line in said if "versions" in line] == ["images of several versions"] * mixed


def test_a_new_chart_brings_its_images(tmp_path: Path) -> None:
    """Its version may have what a tag may not. Only what the values name is another one."""
    copied = tmp_path / "chart"
    shutil.copytree(chart.CHART, copied)
    facts = copied / "Chart.yaml"
    facts.write_text(re.sub(r"(?m)^(version|appVersion): .*", r"\1: 2.0.0+build.7", facts.read_text()))
    demo = yaml.safe_load((copied / "ci/cpu-demo-values.yaml").read_text())
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"models": [MODEL]}, {"router", "gpu"}),
        (demo, {"router", "cpu", "weights"}),
    ]
    for values, targets in cases:
        rendered = "".join(chart.render(values, name="sy", namespace="models", chart=copied).values())
        assert set(re.findall(r"switchyard:([^\s\"]+)", rendered)) == {f"2.0.0_build.7-{target}" for target in targets}
    rendered = "".join(render({"models": [MODEL], "image": {"tag": "mine@sha256:" + 64 * "a"}}).values())
    assert "0.1.0-router" not in rendered, "the Job has the routers' image"


@pytest.mark.parametrize("key", ["on", "y", "N", "Off", "1", "null"])
def test_a_key_that_helm_does_not_read_as_a_text_is_refused(tmp_path: Path, key: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"models: []\nnodes:\n  L4: {{nodeSelector: {{{key}: 'true'}}}}\n")
    with pytest.raises(ConfigError, match=rf"values.yaml:3: {key}: put the key in quotes"):
        chart.of_values(values, name="sy", namespace="models")


def test_a_model_is_five_values() -> None:
    model = {"name": "qwen3-8b", "source": "hf:Qwen/Qwen3-8B", "gpu": "L4", "replicas": "1-8", "share": 100}
    objects = chart.objects(render({"models": [model]}))
    assert capacity.problems(ray_service(objects), objects) == []
    group = ray_service(objects)["spec"]["rayClusterConfig"]["workerGroupSpecs"][1]
    assert (group["groupName"], group["maxReplicas"]) == ("gpu-l4", 10)


def engines_pod(values: Mapping[str, Any]) -> Any:
    return ray_service(chart.objects(render(values)))["spec"]["rayClusterConfig"]["workerGroupSpecs"][1]["template"][
        "spec"
    ]


@pytest.mark.parametrize(
    ("cloud", "gpu", "gpus", "cpu", "memory", "machines"),
    [
        ("aks", "A100-80G", 4, 40, "480Gi", ["Standard_NC96ads_A100_v4", "Standard_ND96amsr_A100_v4"]),
        ("aks", "T4", 4, 24, "88Gi", ["Standard_NC64as_T4_v3"]),
        ("aks", "H100", 8, 84, "1440Gi", ["Standard_ND96isr_H100_v5"]),
        ("aks", "H200", 8, 84, "1600Gi", ["Standard_ND96isr_H200_v5"]),
        ("eks", "B200", 8, 160, "1792Gi", ["b200"]),
        ("eks", "H100", 1, 14, "180Gi", ["h100"]),
        ("gke", "L4", 1, 6, "24Gi", ["nvidia-l4"]),
        ("onprem", "H100", 8, 160, "1440Gi", ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"]),
    ],
)
def test_a_pod_is_sized_for_the_machines_that_the_cloud_has(
    cloud: str, gpu: str, gpus: int, cpu: int, memory: str, machines: list[str]
) -> None:
    pod = engines_pod({"cloud": cloud, "models": [{**MODEL, "gpu": gpu, "gpus": gpus}]})
    requests = pod["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == (str(cpu), memory)
    assert [name for name in machines if name not in json.dumps(pod)] == []
    assert "Standard_NC24ads" not in json.dumps(pod), "it has one GPU"


def test_engines_have_the_image_and_the_variables_of_their_kind() -> None:
    """GKE mounts the driver where the linker does not look."""
    both = [{**MODEL, "share": 100}, {"name": "e", "source": "package:e", "task": "embeddings", "replicas": 1}]
    values = {"models": both, "image": {"repository": "r.example.com/s"}, "engineImage": {"cpuTag": "c"}}
    _, gpu, cpu = ray_service(chart.objects(render(values)))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    containers = [group["template"]["spec"]["containers"][0] for group in (gpu, cpu)]
    assert [container["image"] for container in containers] == ["r.example.com/s:0.1.0-gpu", "r.example.com/s:c"]
    drivers = [[one["value"] for one in each["env"] if one["name"] == "LD_LIBRARY_PATH"] for each in containers]
    assert drivers == [["/usr/local/nvidia/lib64"], []]


@pytest.mark.parametrize(("least", "budgets"), [(1, 0), (2, 1)])
def test_a_budget_never_blocks_the_only_routers_node(least: int, budgets: int) -> None:
    kinds = [one["kind"] for one in chart.objects(render({"models": [MODEL], "routers": {"min": least}}))]
    assert kinds.count("PodDisruptionBudget") == budgets


def test_every_pod_leaves_a_machine_room_for_the_system() -> None:
    facts = yaml.safe_load((CHART / "files/gpus.yaml").read_text())
    for cloud, types in facts["machines"].items():
        for gpu, machines in types.items():
            for gpus in {machine[0] for machine in machines}:
                pod = engines_pod({"cloud": cloud, "models": [{**MODEL, "gpu": gpu, "gpus": gpus}]})
                requests = pod["containers"][0]["resources"]["requests"]
                cpu, memory = int(requests["cpu"]), int(requests["memory"].removesuffix("Gi"))
                exact = [machine for machine in machines if machine[0] == gpus]
                assert all(cpu <= 7 / 8 * machine[1] and memory <= 7 / 8 * machine[2] for machine in exact), (
                    cloud,
                    gpu,
                )
                names = [machine[3] for machine in exact if len(machine) > 3]
                assert all(name in json.dumps(pod) for name in names)


def test_the_types_of_gpus_have_rays_names() -> None:
    from ray.util.accelerators import accelerators

    known = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA_")}
    facts = yaml.safe_load((CHART / "files/gpus.yaml").read_text())
    assert {*facts["gpus"], *facts["others"]} == known - {"P100", "P4", "K80"}, "vLLM has none of those"


def test_it_needs_neither_ray_nor_vllm_nor_torch_nor_helm(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('ray', 'vllm', 'torch', 'helm_python')))"
    run = f"{blocked}; from deployments.cli.main import main; sys.exit(main(sys.argv[1:]))"
    new = ["k8s", "new", str(tmp_path / "cluster"), "--values", str(EXAMPLES[0])]
    for arguments in (new, ["k8s", "render", str(tmp_path / "cluster"), "--check"]):
        subprocess.run([sys.executable, "-c", run, *arguments], cwd=ROOT, check=True, timeout=60)
    assert (tmp_path / "cluster/objects/rayservice.yaml").is_file()


def test_a_second_cluster_may_take_over_in_steps() -> None:
    """KubeRay 1.7 refuses a step that is larger than the surge, and takes no group without autoscaling."""
    values = {
        "upgrade": "NewClusterWithIncrementalUpgrade",
        "incremental": {"maxSurgePercent": 10, "stepSizePercent": 5},
    }
    service = ray_service(chart.objects(render(values)))
    assert list(schemas.problems(service)) == []
    assert service["spec"]["upgradeStrategy"] == {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": "istio",
            "maxSurgePercent": 10,
            "stepSizePercent": 5,
            "intervalSeconds": 60,
        },
    }
    assert service["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] is True
    with pytest.raises(ConfigError, match="host"):
        render(values | {"host": "models.acme.com"})
    assert "clusterUpgradeOptions" not in str(render({}))


@pytest.mark.parametrize(("notice", "drain", "grace", "hand_over"), [(120, "90", 110, 30), (30, "22", 27, 7)])
def test_the_engines_of_spot_nodes_stop_within_their_notice(
    real: Helm, notice: int, drain: str, grace: int, hand_over: int
) -> None:
    on_cpus = {"name": "b", "source": "package:b", "replicas": 1, "share": 50}
    models = [{**MODEL, "share": 50}, on_cpus, {**MODEL, "name": "e", "task": "embeddings"}]
    values = {"models": models, "nodes": {"L4": {"notice": notice}}}
    for files in (render(values), real.render(values, name="switchyard", namespace="switchyard")):
        objects = chart.objects({name: text for name, text in files.items() if name.endswith(".yaml")})
        given = {
            pod.where: (pod.environment[DRAIN], pod.spec["terminationGracePeriodSeconds"]) for pod in ray_pods(objects)
        }
        usual = (str(WORKER_DRAIN_S), WORKER_DRAIN_S + STOP_S)
        assert given["gpu-l4"] == (drain, grace)
        assert given["cpu"] == given["engines"] == usual
        served = yaml.safe_load(ray_service(objects)["spec"]["serveConfigV2"])["applications"]
        after = {application["name"]: application["args"].get("hand_over_after_s") for application in served}
        assert after == {"router": None, "experiments": None, MODEL["name"]: hand_over, "b": None, "e": None}


def test_clients_enter_everywhere_where_kuberay_names_the_ports() -> None:
    """KubeRay's own Services of an incremental upgrade lead to all pods."""
    objects = chart.objects(render({"models": [MODEL], "upgrade": "NewClusterWithIncrementalUpgrade"}))
    assert "serveService" not in ray_service(objects)["spec"]
    (policy,) = (manifest for manifest in objects if manifest["metadata"]["name"] == "switchyard-clients")
    assert policy["spec"]["podSelector"]["matchExpressions"][0]["values"] == ["router", "engine"]
