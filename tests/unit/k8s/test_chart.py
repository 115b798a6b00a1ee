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
from hypothesis import strategies as st

from app.config.base import ConfigError
from deployments.haproxy import cluster_settings
from deployments.kubernetes import capacity, chart
from deployments.kubernetes.demands import most_nodes
from deployments.kubernetes.manifests import ray_service
from deployments.kubernetes.manifests import read as kustomized
from tests.support.kubernetes import policies, schemas
from tests.support.kubernetes.helm import Helm, HelmFailed, helm
from tests.support.processes.project import ROOT

CHART = ROOT / "k8s/chart"
EXAMPLES = (CHART / "values.yaml", *sorted((CHART / "ci").glob("*-values.yaml")))
MODEL = {"name": "m", "source": "hf:a/b", "gpu": "L4", "replicas": 1}


@pytest.fixture(scope="module")
def real() -> Iterator[Helm]:
    with helm(CHART) as found:
        yield found


def render(values: Mapping[str, Any], *, name: str = "switchyard", namespace: str = "switchyard") -> dict[str, str]:
    return chart.render(values, name=name, namespace=namespace)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The files whose text is not the same but for empty lines at their ends."""
    texts = [{file: text.strip() for file, text in files.items() if file.endswith(".yaml")} for files in (ours, theirs)]
    ours, theirs = ({file: text for file, text in files.items() if text} for files in texts)
    return sorted(file for file in {*ours, *theirs} if ours.get(file) != theirs.get(file))


names = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
numbers = st.integers(1, 300)
printable = st.text(st.characters(categories=("L", "N", "P", "S"), max_codepoint=0x2FFF), max_size=6)
json_values = st.recursive(
    st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.sampled_from([0.5, 0.92, 12.25]), printable),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=2)),
    max_leaves=4,
)
objects = st.dictionaries(names, json_values, max_size=3)
models = st.fixed_dictionaries(
    {
        "name": names,
        "source": st.sampled_from(["hf:Qwen/Qwen3-8B", "hf:a/b@0123abc", "package:x", "/models/c", "s3://d/e"]),
        "replicas": st.one_of(st.integers(0, 9), st.sampled_from(["0-3", "1-8", "2-200"])),
    },
    optional={
        "gpu": st.sampled_from(["L4", "H100", "A100-80G", "T4", "MI300X"]),
        "gpus": st.integers(1, 8),
        "share": st.integers(0, 100),
        "endpoint": names,
        "task": st.sampled_from(["chat", "embeddings"]),
        "concurrency": numbers,
        "engine": objects,
        "env": st.dictionaries(names, printable, max_size=2),
    },
)
nodes = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from([1, 2, 8]),
        "cpu": numbers,
        "memory": st.just("96Gi"),
        "shm": st.just("16Gi"),
        "max": numbers,
        "nodeSelector": st.dictionaries(names, names, min_size=1, max_size=2),
        "tolerations": st.just([{"key": "k", "operator": "Exists"}]),
        "runtimeClassName": st.just("nvidia"),
    },
)
all_values = st.fixed_dictionaries(
    {"models": st.lists(models, max_size=4)},
    optional={
        "cloud": st.sampled_from(["gke", "eks", "aks", "onprem", "none"]),
        "nodes": st.dictionaries(st.sampled_from(["L4", "H100", "MI300X", "cpu"]), nodes, max_size=3),
        "engine": objects,
        "host": st.just("models.example.com"),
        "entrance": st.fixed_dictionaries(
            {"kind": st.sampled_from(["gateway", "ingress"])},
            optional={"class": names, "tlsSecret": names, "annotations": st.dictionaries(names, printable)},
        ),
        "image": st.fixed_dictionaries(
            {}, optional={"repository": names, "tag": names, "pullSecrets": st.lists(names)}
        ),
        "weights": st.fixed_dictionaries({}, optional={"storageClass": names, "size": st.just("5Gi")}),
        "secrets": st.fixed_dictionaries({}, optional={"cluster": names, "keys": names, "hub": names}),
        "managers": st.lists(names, max_size=2),
        "limits": objects,
        "routers": st.fixed_dictionaries({}, optional={"min": numbers, "max": numbers}),
        "router": objects,
        "dns": st.just({"cidrs": []}),
        "redis": st.just({"storageClass": "fast"}),
        "monitoring": st.fixed_dictionaries({"enabled": st.booleans()}, optional={"release": names}),
    },
)


@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(values=all_values, name=names, namespace=names)
def test_helm_makes_the_same_text_or_refuses_with_the_same_words(
    real: Helm, values: dict[str, Any], name: str, namespace: str
) -> None:
    ours, refused = made(lambda: render(values, name=name, namespace=namespace))
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
    assert {identity(it): it for it in theirs} == {identity(it): it for it in built(tmp_path)}


def built(directory: Path) -> list[Any]:
    """kustomize's objects, without what Helm leaves to the command line: the Namespace, and the namespace of each."""
    found = [it for it in kustomized(directory) if it["kind"] != "Namespace"]
    assert {it["metadata"].pop("namespace") for it in found} == {"team"}
    return found


def identity(it: Mapping[str, Any]) -> tuple[str, str]:
    return it["kind"], it["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"clod": "gke"}, "clod"),
        ({"nodes": {"L4": {"memroy": "1Gi"}}}, "memroy"),
        ({"models": [{**MODEL, "shares": 9}]}, "shares"),
        ({"cloud": "gcp"}, "cloud"),
        ({"models": [{**MODEL, "replicas": "8-"}]}, "replicas"),
        ({"models": [{**MODEL, "source": "Qwen/Qwen3-8B"}]}, "source"),
        ({"cloud": "aks"}, "nodes.L4: set nodeSelector"),
        ({"models": [{**MODEL, "gpu": "MI300X"}]}, "nodes.MI300X: set nodeSelector"),
        ({"models": [{**MODEL, "gpu": "MI300X"}], "nodes": {"MI300X": {"nodeSelector": {"a": "b"}}}}, "cpu and memory"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_by_both(real: Helm, values: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as ours:
        render(values)
    assert where in ours.value.problems[0]
    with pytest.raises(HelmFailed, match=where):
        real.render(values)


def test_a_difference_from_helm_is_found(real: Helm, tmp_path: Path) -> None:
    """A copy of the chart with another number of seconds in one template."""
    copied = tmp_path / "chart"
    shutil.copytree(CHART, copied)
    file = copied / "templates/rayservice.yaml"
    file.write_text(
        file.read_text().replace("rayClusterDeletionDelaySeconds: 3600", "rayClusterDeletionDelaySeconds: 60")
    )
    ours = chart.render({}, name="switchyard", namespace="switchyard", chart=copied)
    assert differences(ours, real.render({})) == ["rayservice.yaml"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_helm_finds_nothing_wrong_with_an_example(real: Helm, file: Path) -> None:
    found = real.lint(yaml.safe_load(file.read_text()))
    assert found["errors"] == []
    assert {it["error"] for it in found["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_valid_and_its_models_fit(file: Path) -> None:
    values = yaml.safe_load(file.read_text()) | {"host": "models.example.com", "monitoring": {"enabled": True}}
    found = chart.objects(render(values))
    assert capacity.problems(ray_service(found), found) == []
    assert [problem for it in found for problem in schemas.problems(it)] == []


@pytest.mark.parametrize("most", [1, 4, 5, 8, 9, 19, 20, 45, 46, 93, 194, 995])
def test_haproxys_settings_are_for_as_many_nodes_as_there_may_be(most: int) -> None:
    values = {"models": [MODEL], "nodes": {"L4": {"max": most}}}
    found = chart.objects(render(values))
    count = most_nodes(ray_service(found)["spec"]["rayClusterConfig"])
    (size,) = (it for it in found if it["metadata"]["name"] == "switchyard-size")
    assert {**cluster_settings(1), **size["data"]} == cluster_settings(count)


def test_name_servers_that_engines_may_not_ask_are_found() -> None:
    def warned(values: Mapping[str, Any], change: Callable[[Any], object] = lambda _: None) -> list[str]:
        found = chart.objects(render({"models": [{**MODEL, "source": "package:x"}], **values}))
        change(next(it for it in found if it["metadata"]["name"] == "switchyard-engines")["spec"])
        return capacity.warnings(ray_service(found), found)

    assert warned({}) == []
    (no_address,) = warned({"dns": {"cidrs": []}})
    assert no_address.startswith("group gpu-l4: its NetworkPolicy lets it ask no name server at an address")
    assert len(warned({}, lambda spec: spec["egress"].pop())) == 2
    assert warned({}, lambda spec: spec["egress"].append({})) == [], "a policy that lets it go everywhere"


HASH = re.compile(r"-weights-[0-9a-f]{8}")


def test_two_releases_in_a_namespace_share_nothing() -> None:
    """A release is another one with its own name in place of the other's, and refers to nothing that it has not."""
    values = {"host": "models.example.com", "monitoring": {"enabled": True}}
    blue, green = (render(values, name=name, namespace="team") for name in ("blue-1", "green-2"))
    named = {file: HASH.sub("-weights-#", text.replace("blue-1", "green-2")) for file, text in blue.items()}
    assert named == {file: HASH.sub("-weights-#", text) for file, text in green.items()}
    both = chart.objects(blue), chart.objects(green)
    assert not {identity(it) for it in both[0]} & {identity(it) for it in both[1]}
    absent = [it for it in policies.resolved_references(both[0]) if "no Secret blue-1" not in it]
    assert absent == []
    assert list(policies.survives_its_head(both[0])) == [], "the Service of its own Redis"
    selectors = {json.dumps(it["spec"]["podSelector"]) for it in both[0] if it["kind"] == "NetworkPolicy"}
    assert all('"app.kubernetes.io/instance": "blue-1"' in it for it in selectors)


def test_a_model_is_five_values() -> None:
    model = {"name": "qwen3-8b", "source": "hf:Qwen/Qwen3-8B", "gpu": "L4", "replicas": "1-8", "share": 100}
    found = chart.objects(render({"models": [model]}))
    assert capacity.problems(ray_service(found), found) == []
    group = ray_service(found)["spec"]["rayClusterConfig"]["workerGroupSpecs"][1]
    assert (group["groupName"], group["maxReplicas"]) == ("gpu-l4", 10)


def test_the_types_of_gpus_have_rays_names() -> None:
    from ray.util.accelerators import accelerators

    known = {value for name, value in vars(accelerators).items() if name.isupper()}
    assert yaml.safe_load((CHART / "files/gpus.yaml").read_text())["gpus"].keys() <= known


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
