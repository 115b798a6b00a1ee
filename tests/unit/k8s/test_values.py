"""Values with a mistake: Helm, `switchyard k8s` and `switchyard check` refuse the same, and each says what to write."""

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from app.config.base import ConfigError
from deployments.kubernetes import capacity, chart
from deployments.kubernetes.manifests import Manifest, ray_service
from deployments.kubernetes.values_schema import definitions
from tests.conftest import NIGHTLY
from tests.support.kubernetes import policies, schemas
from tests.support.kubernetes.helm import Helm, HelmFailed, helm
from tests.support.kubernetes.overlays import CHART
from tests.support.kubernetes.values import odd, of, places, releases, right, two


@pytest.fixture(scope="module")
def real() -> Iterator[Helm]:
    with helm(CHART) as chart_of_helm:
        yield chart_of_helm


def refused(values: Mapping[str, Any], name: str = "switchyard") -> list[str]:
    """What `switchyard k8s new` says; `switchyard check` has the same two steps."""
    try:
        chart.files(values, name=name, namespace="team")
    except ConfigError as error:
        return error.problems
    return []


def helm_says(real: Helm, values: Mapping[str, Any], name: str = "switchyard") -> str:
    """Why Helm refuses; empty if it does not."""
    try:
        real.render(values, name=name, namespace="team")
    except HelmFailed as error:
        return str(error)
    return ""


OIDC = {"issuer": "https://login.example.com", "audience": "switchyard"}
HOST = {**of(), "host": "a.b"}

MISTAKES: list[tuple[dict[str, Any], str]] = [
    (two({"share": 90}, {"share": 20}), "endpoint chat sum to 110 (a 90, b 20), not to 100: take away 10"),
    (two({"share": 90}, {}), "write share: 10 for b"),
    (two({}, {}), "models: no model of the endpoint chat has a share; write share for each, 100 in all"),
    (of(share=80), "add 20"),
    (of(replicas="0"), "models[0].replicas: 0 never serves; write 0-1"),
    (of(replicas=0), "models[0].replicas: 0 never serves; write 0-1"),
    (of(replicas="4-2"), "models[0].replicas: '4-2': write 2-4"),
    (of(replicas="1..4"), "models[0].replicas: '1..4': write a number, or the least and the most, as 1-8"),
    (of(source="Qwen/Qwen3-8B"), "models[0].source: 'Qwen/Qwen3-8B': write hf:Qwen/Qwen3-8B"),
    (of(source="https://huggingface.co/Qwen/Qwen3-8B"), "write hf:Qwen/Qwen3-8B"),
    (of(source="/mnt/x"), "write hf:ORGANISATION/NAME@REVISION, package:NAME, or a directory below /models"),
    (of(source="s3://bucket/x"), "models[0].source: 's3://bucket/x': write hf:"),
    (of(source="/models/../etc"), "models[0].source: '/models/../etc': write the path without . and .."),
    (of(gpu="l4"), "models[0].gpu: 'l4' is no GPU's name in Ray; write L4"),
    (of(gpu="NVIDIA-L40S"), "write L40S"),
    (of(gpu="MI300X"), "models[0].gpu: 'MI300X' is no GPU's name in Ray; write A100-40G, A100-80G"),
    (of(gpu=None, gpus=2), "models[0].gpus: the model has no gpu"),
    (of(gpus=2, engine={"tensor_parallel_size": 4}), "models[0].gpus: 2, but the engine's tensor_parallel_size"),
    (
        of(name="Qwen3.5-8B"),
        "models[0].name: 'Qwen3.5-8B': write at most 42 small letters, digits and hyphens, as qwen3-5-8b",
    ),
    (of(name="router"), "models[0].name: 'router' is the name of the router, too"),
    (of(name="chat"), "models[0].name: 'chat' is an endpoint's name, too"),
    (two({}, {"name": "a"}), "models[1].name: 'a' is the name of models[0], too"),
    (
        of(endpoint="Meta/X"),
        "models[0].endpoint: 'Meta/X': write at most 63 small letters, digits, dots and hyphens, as meta-x",
    ),
    (
        two({"endpoint": "x"}, {"endpoint": "x", "task": "embeddings"}),
        "models[1].task: embeddings, but its endpoint x is for chat",
    ),
    ({"models": []}, "models: there is none; add one"),
    ({**of(), "weights": {"size": "100GB"}}, "weights.size: '100GB': write a number and Mi, Gi or Ti, as 100Gi"),
    ({**of(), "nodes": {"L4": {"memory": "96G"}}}, "nodes.L4.memory: '96G': write a number and Mi, Gi or Ti, as 96Gi"),
    ({**of(), "nodes": {"l4": {"cpu": 12}}}, "nodes.l4: 'l4' is no GPU's name in Ray; write L4"),
    ({**of(replicas="1-8"), "nodes": {"L4": {"max": 2}}}, "nodes.L4.max: 2 pods, but the models' replicas need 8"),
    ({**of(gpus=4), "nodes": {"L4": {"cpu": 2}}}, "nodes.L4.cpu: 2, but a pod with 4 GPUs keeps 5 cores busy"),
    ({**of(), "nodes": {"L4": {"memory": "9Gi"}}}, "nodes.L4.memory: 9Gi, but shm (8Gi) is a part of it"),
    ({**of(gpu=None), "nodes": {"cpu": {"cpu": 16}}}, "nodes.cpu.memory: 14Gi, but shm (2Gi) is a part of it"),
    ({**of(gpu=None), "nodes": {"cpu": {"cpu": 1}}}, "nodes.cpu.cpu: 1, but a replica of m needs 1 and a half"),
    ({**of(), "cloud": "aks"}, "nodes.L4: set nodeSelector"),
    (of(gpu="V100"), "nodes.V100: set nodeSelector"),
    (
        {**of(gpu="T4", gpus=8), "cloud": "aks"},
        "nodes.T4.gpus: a pod has 8, but no machine of aks has more than 4; lower the model's gpus, or write 4 here",
    ),
    (
        {**of(gpu="H100"), "cloud": "eks", "nodes": {"H100": {"cpu": 192}}},
        "nodes.H100: no machine of eks with 1 H100 has more than 192 cores and 180Gi; lower cpu or memory",
    ),
    (
        {**of(), "cloud": "gke", "nodes": {"L4": {"memory": "1Ti"}}},
        "nodes.L4: no machine of gke with 1 L4 has more than 6 cores and 1Ti",
    ),
    ({**of(gpu="V100"), "nodes": {"V100": {"nodeSelector": {"a": "b"}}}}, "nodes.V100: set cpu and memory"),
    (
        {**of(), "head": {"nodeSelector": {"a b": "x"}}},
        "head.nodeSelector: 'a b': write a label's name, as pool or example.com/pool",
    ),
    ({**of(), "routers": {"nodeSelector": {"a": "x y"}}}, "routers.nodeSelector.a: 'x y': write a label's value"),
    (
        {**of(), "nodes": {"L4": {"tolerations": [{"operator": "Equal", "value": "x"}]}}},
        "nodes.L4.tolerations[0]: there is no key; write the taint's, or operator: Exists alone",
    ),
    (
        {**of(), "head": {"tolerations": [{"key": "a", "value": "x y"}]}},
        "head.tolerations[0].a: 'x y': write a label's",
    ),
    (
        {**of(), "head": {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}},
        "head.tolerations[0].value: none with operator: Exists; remove it",
    ),
    (
        {**of(), "head": {"tolerations": [{"key": "a", "tolerationSeconds": 9}]}},
        "head.tolerations[0].tolerationSeconds: only with effect: NoExecute",
    ),
    ({**of(), "routers": {"min": 5}}, "routers.min: 5 is more than routers.max, 4"),
    ({**of(), "host": "https://Models.example.com:443/v1"}, "write a host's name, as models.example.com"),
    ({**of(), "host": "*foo.com"}, "host: '*foo.com': write a host's name"),
    ({**of(), "host": "10.0.0.1"}, "host: '10.0.0.1': write a host's name, as models.example.com"),
    ({**HOST, "upgrade": "NewClusterWithIncrementalUpgrade"}, "host: it must be empty"),
    (
        {**HOST, "entrance": {"tlsSecret": "Models_TLS"}},
        "entrance.tlsSecret: 'Models_TLS': write a name of Kubernetes, as models-tls",
    ),
    (
        {**of(), "secrets": {"cluster": "My_Secret"}},
        "secrets.cluster: 'My_Secret': write a name of Kubernetes, as my-secret",
    ),
    ({**of(), "image": {"repository": "r.example.com/sw:1.0"}}, "write r.example.com/sw, and the tag as image.tag"),
    ({**of(), "engineImage": {"cpuTag": "a b"}}, "engineImage.cpuTag: 'a b': write an image's tag"),
    ({**of(), "engineImage": {"repository": "r.com/a:1"}}, "write r.com/a, and the tag as engineImage.gpuTag"),
    ({**of(), "image": {"tag": "a b"}}, "image.tag: 'a b': write an image's tag"),
    ({**of(), "image": {"pullSecrets": ["A"]}}, "image.pullSecrets[0]: 'A': write a name of Kubernetes, as a"),
    (
        {**of(), "dns": {"cidrs": ["10.0.0.10"]}},
        "dns.cidrs[0]: '10.0.0.10': write addresses and the size of their network",
    ),
    (
        {**of(), "upgrade": "NewClusterWithIncrementalUpgrade", "incremental": {"maxSurgePercent": 10}},
        "incremental.stepSizePercent: 25 is more than maxSurgePercent, 10",
    ),
    (
        {**of(), "router": {"endpoints": {"chat": {"traffic": {"z": 1}}}}},
        "router.endpoints.chat.traffic.z: no model has this name",
    ),
    (
        {**of(), "ledger": {"url": "bucket/ledger"}},
        "ledger.url: 'bucket/ledger': write a bucket, as s3://bucket/ledger",
    ),
    ({**of(), "ledger": {"url": "s3://a", "size": "1Gi"}}, "ledger.size: without effect beside ledger.url"),
    ({**of(), "ledger": {"storageClass": "nfs"}}, "ledger.storageClass: without effect without ledger.size"),
    ({**of(), "ledger": {"serviceAccount": "b"}}, "ledger.serviceAccount: without effect without ledger.url"),
    ({**of(), "ledger": {"credentials": "b"}}, "ledger.credentials: without effect without ledger.url"),
    ({**of(), "ledger": {"size": "10GB"}}, "ledger.size: '10GB': write a number and Mi, Gi or Ti, as 10Gi"),
    ({**of(), "router": {"access": {"keys_file": None}}}, "router.access: everyone could call"),
    (
        {**of(), "managers": ["a"], "router": {"access": {"oidc": OIDC}}},
        "managers: 'a' may be a key's name or a token's",
    ),
    ({**of(), "router": {"access": {"oidc": OIDC, "viewers": ["b"]}}}, "write key:b or oidc:b"),
    ({**of(), "managers": ["oidc:a"]}, "managers: 'oidc:a', but there are no tokens; write oidc in router.access"),
    (
        {**of(), "router": {"access": {"oidc": OIDC, "keys_file": None}}},
        "managers: 'key:platform-team', but there are no keys; write keys_file in router.access, or remove it",
    ),
    ({**of(), "managers": ["anonymous"]}, "managers: 'anonymous' would give everyone the role"),
    (
        {**of(), "router": {"access": {"operators": {"chta": ["key:a"]}}}},
        "router.access.operators.chta: no endpoint has this name; write one of chat",
    ),
    (
        {**of(), "router": {"access": {"limits": {"endpoints": {"x": {"requests_per_minute": 1}}}}}},
        "router.access.limits.endpoints.x: no endpoint has this name; write one of chat",
    ),
    ({**of(), "router": {"defaults": {"chat": "x"}}}, "router.defaults.chat: 'x' is no endpoint; write one of chat"),
    (
        {**of(), "router": {"endpoints": {"chat": {"fallback": ["z"]}}}},
        "router.endpoints.chat.fallback: z: no model has this name; write one of m",
    ),
    (
        {**of(), "router": {"endpoints": {"chat": {"mirror": {"deployment": "z", "percent": 1}}}}},
        "router.endpoints.chat.mirror.deployment: z: no model has this name",
    ),
    (
        {
            "models": [
                *of()["models"],
                {"name": "e", "source": "package:e", "gpu": "L4", "replicas": 1, "task": "embeddings"},
            ],
            "router": {"endpoints": {"chat": {"fallback": ["e"]}}},
        },
        "router.endpoints.chat.fallback: e is for embeddings, but the endpoint for chat, completions, responses",
    ),
    (of(engine={"data_parallel_size": 2}), "models[0].engine.data_parallel_size: a replica has one copy of the model"),
    ({**of(), "engine": {"data_parallel_size": 2}}, "engine.data_parallel_size: a replica has one copy of the model"),
    (of(engine={"nnodes": 2}), "models[0].engine.nnodes: a replica has tensor_parallel_size times"),
    ({"serveConfig": "applications:\n\t- name: x\n"}, "serveConfig: not YAML with a list of `applications`"),
    ({"serveConfig": "a"}, "serveConfig: not YAML with a list of `applications`"),
]
"""Values, and a part of the line that refuses them."""


@pytest.mark.parametrize(("values", "line"), MISTAKES, ids=[line[:40] for _, line in MISTAKES])
def test_a_mistake_is_one_line_with_what_to_write_in_helm_too(real: Helm, values: dict[str, Any], line: str) -> None:
    (said,) = refused(values)
    assert line in said
    assert "\n" not in said
    assert helm_says(real, values).endswith(said)


WRONG_KINDS: list[tuple[dict[str, Any], str, str]] = [
    ({"clod": "gke"}, "clod", "; did you mean cloud?"),
    ({"nodes": {"L4": {"memroy": "1Gi"}}}, "memroy", "nodes.L4.memroy: unknown key; did you mean memory?"),
    (of(shares=9), "shares", "models[0].shares: unknown key; did you mean share?"),
    (
        of(engine={"max_modle_len": 1}),
        "max_modle_len",
        "models[0].engine.max_modle_len: unknown key; did you mean max_model_len?",
    ),
    (of(engine={"model": "x/y"}), "model", "models[0].engine.model: unknown key; the model is `model_source`"),
    (
        of(engine={"max_model_len": "8192"}),
        "/models/0/engine/max_model_len",
        "models[0].engine.max_model_len: expected a whole number, not 8192 in quotes",
    ),
    (
        {"router": {"endpoints": {"chat": {"trafic": {}}}}},
        "trafic",
        "router.endpoints.chat.trafic: unknown key; did you mean traffic?",
    ),
    ({"limits": {"request_per_minute": 1}}, "request_per_minute", "did you mean requests_per_minute?"),
    ({"cloud": "GKE"}, "/cloud", "cloud: expected one of gke, eks, aks, onprem, none, not GKE; did you mean gke?"),
    (of(name=True), "/models/0/name", "models[0].name: expected a text, not true; put it in quotes"),
    (of(env={"A": 1}), "/models/0/env/A", "models[0].env.A: expected a text, not 1; put it in quotes"),
    (of(env={"A-B": "1"}), "A-B", "models[0].env: expected what matches ^[A-Za-z_][A-Za-z0-9_]*$, not A-B"),
    (of(share=33.3), "/models/0/share", "models[0].share: expected a whole number, not 33.3"),
    (
        {"nodes": {"L4": {"tolerations": [{"keey": "x"}]}}},
        "keey",
        "nodes.L4.tolerations[0].keey: unknown key; did you mean key?",
    ),
    ({"image": {"tag": 1.0}}, "/image/tag", "image.tag: expected a text, not 1.0; put it in quotes"),
    ({"managers": [""]}, "/managers/0", "managers[0]: it is empty; write a text, or remove it"),
    ({"weights": None}, "weights", "(top level): `weights` is missing"),
    ({"upgrade": None}, "upgrade", "(top level): `upgrade` is missing"),
]
"""Values, what Helm names, and the line without it."""


@pytest.mark.parametrize(("values", "named", "line"), WRONG_KINDS, ids=[line[:40] for _, _, line in WRONG_KINDS])
def test_a_value_of_a_wrong_kind_or_name_is_refused_by_both(
    real: Helm, values: dict[str, Any], named: str, line: str
) -> None:
    assert line in refused(values)[0]
    assert named in helm_says(real, values)


def test_a_line_is_said_once() -> None:
    assert refused({**of(), "router": {"experiments": {"e": {}}}}) == ["router.experiments.e: `endpoint` is missing"]


@pytest.mark.parametrize("name", ["1blue", "a.b", "Blue", "true", "x" * 47, "a-"])
def test_a_release_has_a_name_that_kuberay_and_kubernetes_take(real: Helm, name: str) -> None:
    (said,) = refused(of(), name)
    assert said.startswith(f"the release's name: '{name}'")
    assert helm_says(real, of(), name)


def test_the_longest_names_fit() -> None:
    accepted_by = accepted({**of(name="m" * 42), "host": "a.b", "monitoring": {"enabled": True}}, "x" * 46)
    assert [problem for values in accepted_by for problem in wrong(values)] == []


def accepted(values: Mapping[str, Any], name: str) -> list[Manifest]:
    return chart.objects(chart.render(values, name=name, namespace="team"))


def wrong(manifest: Manifest) -> Iterator[str]:
    """What the API server and the controllers of built-in kinds refuse."""
    yield from schemas.problems(manifest)
    name = manifest["metadata"]["name"]
    appended = {"RayService": "-serve-svc", "StatefulSet": "-0123456789"}.get(manifest["kind"], "")
    if len(name + appended) > 63:  # of a Service, of a label on its pods
        yield f"{name}: too long"
    if manifest["kind"] in ("StatefulSet", "Deployment", "Job"):
        spec = manifest["spec"]
        labels = spec["template"]["metadata"]["labels"].items()
        if not spec.get("selector", {"matchLabels": {}})["matchLabels"].items() <= labels:
            yield f"{name}: selects no pod of its own"


changes: st.SearchStrategy[tuple[dict[str, Any], str]] = st.one_of(
    st.just(({}, "")), st.sampled_from(MISTAKES), st.sampled_from([(values, line) for values, _, line in WRONG_KINDS])
)


@settings(max_examples=60 if NIGHTLY else 20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(values=right, change=changes, name=releases)
def test_helm_and_the_check_accept_the_same_and_what_they_accept_works(
    real: Helm, values: dict[str, Any], change: tuple[dict[str, Any], str], name: str
) -> None:
    values = {**values, **change[0]}
    said = refused(values, name)
    assert bool(said) == bool(helm_says(real, values, name)), said
    if not said:
        accepted_by = accepted(values, name)
        assert [problem for values in accepted_by for problem in wrong(values)] == []
        assert capacity.problems(ray_service(accepted_by), accepted_by) == []
        assert list(policies.survives_its_head(accepted_by)) == [], "the Service of its own Redis"


@settings(max_examples=60 if NIGHTLY else 20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(values=right, data=st.data())
def test_whatever_stands_in_a_values_place_is_refused_by_both_or_by_none(
    real: Helm, values: dict[str, Any], data: st.DataObject
) -> None:
    changed: Any = copy.deepcopy(chart.coalesced(yaml.safe_load((CHART / "values.yaml").read_text()), values))
    *path, last = data.draw(st.sampled_from(list(places(changed))))
    holder: Any = functools.reduce(lambda inner, key: inner[key], path, changed)
    holder[last] = data.draw(odd)
    said, theirs = refused(changed), helm_says(real, changed)
    assert bool(said) == bool(theirs), (path, last, holder[last], said)
    assert all(words not in theirs for words in ("nil pointer", "wrong type", "error calling", "parse error")), theirs


def test_the_schema_has_vllms_arguments_and_the_routers_configuration() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["definitions"] == definitions(), "run `make schema`"
    assert yaml.safe_load((CHART / "values.yaml").read_text()).keys() == {*schema["required"]}
