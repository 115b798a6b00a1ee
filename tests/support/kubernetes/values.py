"""Values of the chart: right ones of every kind, and mistakes to make in them."""

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

names = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
releases = names.map(lambda name: f"r-{name}")
numbers = st.integers(1, 300)
printable = st.text(st.characters(categories=("L", "N", "P", "S"), max_codepoint=0x2FFF), max_size=6)
json_values = st.recursive(
    st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.sampled_from([0.5, 0.92, 12.25]), printable),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=2)),
    max_leaves=4,
)
objects = st.dictionaries(names, json_values, max_size=3)
words = st.one_of(names, st.sampled_from(["true", "null", "123", "0x1f", "1e3", "on"]))
"""Names of Kubernetes, those that YAML takes for something else among them."""

engines: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "max_model_len": numbers,
        "quantization": st.just("fp8"),
        "gpu_memory_utilization": st.sampled_from([0.5, 0.92, None]),
        "hf_overrides": objects,
        "enable_prefix_caching": st.booleans(),
    },
)
_env = st.dictionaries(names.map(lambda name: name.replace("-", "_")), printable, max_size=2)
replicas = st.one_of(st.integers(1, 9), st.sampled_from(["0-3", "1-8", "2-200", "7"]))
sources = st.sampled_from(["hf:Qwen/Qwen3-8B", "hf:a/b@0123abc", "package:x", "/models/c", "/models/d/e@f"])


_further: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={"concurrency": numbers, "engine": engines, "env": _env}
)


@st.composite
def _models(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Models whose endpoints have their whole traffic."""
    models: list[dict[str, Any]] = []
    by_endpoint: dict[str, list[dict[str, Any]]] = {}
    for index in range(draw(st.integers(1, 4))):
        task, endpoint = draw(st.sampled_from(["chat", "embeddings"])), draw(st.sampled_from(["", "-a.b", "-c"]))
        model: dict[str, Any] = {"name": draw(st.sampled_from(["m", "12", "qwen-3"])) + f"-{index}"}
        model |= {"source": draw(sources), "replicas": draw(replicas)}
        if draw(st.booleans()):
            model["gpu"] = draw(st.sampled_from(["L4", "H100", "A100-80G", "T4", "V100"]))
            if draw(st.booleans()):
                model["gpus"] = draw(st.sampled_from([1, 2, 3, 8]))
        if task != "chat" or draw(st.booleans()):
            model["task"] = task
        if endpoint:
            model["endpoint"] = task + endpoint
        model |= draw(_further)
        models.append(model)
        by_endpoint.setdefault(task + endpoint, []).append(model)
    for first, *others in by_endpoint.values():
        if draw(st.booleans()) or others:
            for other in others:
                other["share"] = draw(st.integers(0, 100 // len(others)))
            first["share"] = 100 - sum(other["share"] for other in others)
    return models


_placement: dict[str, st.SearchStrategy[Any]] = {
    "nodeSelector": st.dictionaries(names, words, max_size=2),
    "tolerations": st.sampled_from([[], [{"key": "k", "operator": "Exists"}]]),
}
_nodes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from([1, 2, 8]),
        "cpu": st.integers(9, 300),
        "memory": st.sampled_from(["2000Gi", "1Ti", "4000000Mi"]),
        "shm": st.sampled_from(["4Gi", "512Mi"]),
        "max": st.integers(900, 1000),
        "notice": st.integers(30, 600),
        **_placement,
        "nodeSelector": st.dictionaries(names, words, min_size=1, max_size=2),
        "runtimeClassName": words,
    },
)

right: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"models": _models(), "cloud": st.sampled_from(["gke", "eks", "aks", "onprem", "none"])},
    optional={
        "nodes": st.dictionaries(st.sampled_from(["L4", "H100", "A100-80G", "T4", "V100", "cpu"]), _nodes, max_size=6),
        "engine": engines,
        "host": st.sampled_from(["models.example.com", "*.example.com"]),
        "entrance": st.fixed_dictionaries(
            {"kind": st.sampled_from(["gateway", "ingress"])},
            optional={"class": words, "tlsSecret": words, "annotations": st.dictionaries(names, printable)},
        ),
        "image": st.fixed_dictionaries(
            {},
            optional={
                "repository": st.sampled_from(["a", "r.example.com:5000/b/c"]),
                "tag": st.sampled_from(["1", "v2@sha256:" + "0" * 64]),
                "pullSecrets": st.lists(words),
            },
        ),
        "weights": st.fixed_dictionaries({}, optional={"storageClass": words, "size": st.just("5Gi"), "env": _env}),
        "secrets": st.fixed_dictionaries({}, optional={"cluster": words, "keys": words, "hub": words}),
        "managers": st.lists(names, max_size=2),
        "limits": st.fixed_dictionaries({}, optional={"requests_per_minute": numbers, "tokens_per_minute": numbers}),
        "head": st.fixed_dictionaries({}, optional=_placement),
        "routers": st.fixed_dictionaries(
            {}, optional={"min": st.integers(1, 2), "max": st.integers(2, 300), **_placement}
        ),
        "router": st.fixed_dictionaries(
            {}, optional={"console": st.just({"environment": "a"}), "access": st.just({"issue_keys": True})}
        ),
        "ledger": st.one_of(
            st.just({"url": "s3://bucket/ledger?region=eu-central-1", "credentials": "bucket"}),
            st.fixed_dictionaries({"size": st.just("10Gi")}, optional={"storageClass": words}),
        ),
        "dns": st.sampled_from([{"cidrs": []}, {"cidrs": ["fd00::a/128", "10.0.0.0/8"]}]),
        "redis": st.just({"storageClass": "fast"}),
        "monitoring": st.fixed_dictionaries({"enabled": st.booleans()}, optional={"release": words}),
    },
)
"""Values without a mistake, but for a GPU that the cloud has not, whose nodes need more values."""

odd = st.one_of(
    json_values,
    st.none(),
    st.sampled_from(
        ["", "a\n", "a b", "x" * 300, "-", "true", "0x10", "1e3", "{{ .Values }}", "'", ": ", "#", "\t", "../.."]
    ),
    st.sampled_from([0, -1, 1.5, 1e9, [None], {"a": None}]),
)
"""What people and programs write by mistake."""


def places(values: object) -> Iterator[tuple[str | int, ...]]:
    """The path of every value inside of these."""
    inner = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inner:
        yield (key,)
        yield from ((key, *rest) for rest in places(value))


MODEL: Mapping[str, Any] = {"name": "m", "source": "hf:a/b", "gpu": "L4", "replicas": 1}


def of(**changes: Any) -> dict[str, Any]:
    """One model, changed; None takes a key away."""
    return {"models": [{key: value for key, value in {**MODEL, **changes}.items() if value is not None}]}


def two(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two models, of one endpoint unless they say another."""
    return {"models": [{**MODEL, "name": "a", **first}, {**MODEL, "name": "b", **second}]}
