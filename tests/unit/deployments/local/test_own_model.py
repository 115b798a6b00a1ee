"""The configuration that is written for a model of the command line."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.config.file_check import check_file
from app.config.loading import load_document
from deployments.kubernetes.demands import demands
from deployments.local.fit import engine_problems
from deployments.local.own_model import (
    GENERATES,
    MOST_VARIANTS,
    OwnModel,
    Placement,
    Variant,
    deployment_name,
    endpoint_name,
    name_of,
    tasks_of,
)

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True)
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "max_model_len": st.integers(1, 10**6),
        "max_num_seqs": st.integers(1, 2048),
        "dtype": st.sampled_from(["auto", "bfloat16", "float32"]),
        "enable_prefix_caching": st.booleans(),
        "hf_overrides": st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()),
        "tokenizer": st.text(st.characters(exclude_categories=("C", "Z")), min_size=1),
        "tensor_parallel_size": st.integers(1, 8),
        "allowed_media_domains": st.lists(st.sampled_from(["a.example", "no", "1"])),
    },
)
PLACEMENTS = st.just(Placement()) | st.builds(
    Placement, st.just("gpu"), st.sampled_from(["", "L4", "H100"]), st.integers(1, 8)
)
TASKS: st.SearchStrategy[Sequence[str]] = st.sampled_from([GENERATES, ("embeddings", "rerank"), ("classify",)])


@st.composite
def models(draw: st.DrawFn) -> OwnModel:
    model_id = draw(st.sampled_from(["Qwen/Qwen3-8B", "gpt2", "router", "acme/No", "x", "chat"]))
    endpoint = draw(st.sampled_from(["chat", "no", "1.5", "Qwen3-8B"]))
    names = draw(st.lists(NAMES.filter(lambda name: name not in ("router", "experiments", endpoint)), unique=True))
    names = names[:MOST_VARIANTS]
    first = deployment_name(model_id, [endpoint, *names])
    variants = [Variant(name, model_id, draw(ARGUMENTS)) for name in [first, *names]]
    placement = draw(PLACEMENTS)
    return OwnModel(endpoint, model_id, variants, placement, draw(TASKS))


@given(models())
def test_what_is_written_is_valid_and_means_what_was_asked(tmp_path_factory: Any, own: OwnModel) -> None:
    file: Path = tmp_path_factory.getbasetemp() / "own.yaml"
    file.write_text(own.as_yaml())
    assert check_file(file, engine_problems) == []
    document = yaml.safe_load(file.read_text())
    config = load_document(document)
    assert sum(config.endpoints[own.endpoint].traffic.values()) == 100
    assert [*config.endpoints[own.endpoint].traffic] == [variant.name for variant in own.variants]
    engines = {application["name"]: application for application in document["applications"][2:]}
    for variant in own.variants:
        kwargs = engines[variant.name]["args"]["llm_config"]["engine_kwargs"]
        assert {name: kwargs[name] for name in variant.arguments} == dict(variant.arguments)
        assert config.deployments[variant.name].model == own.model_id


@given(st.integers(1, 10), st.integers(1, 8))
def test_variants_share_gpus_only_if_there_are_too_few_and_then_fit(count: int, gpus: int) -> None:
    variants = [Variant(f"v{number}", "org/name") for number in range(count)]
    share = Placement("gpu", gpus=gpus).share(variants)
    assert (share == 1) == (count <= gpus)
    on_each = math.floor(1 / share)
    assert on_each * gpus >= count
    own = OwnModel("chat", "org/name", variants, Placement("gpu", gpus=gpus))
    document = yaml.safe_load(own.as_yaml())
    used = [sum(bundle.get("GPU", 0) for bundle in demand.bundles) for demand in demands(document)]
    assert sum(used) <= gpus + 1e-9
    planned = [engine(application).get("gpu_memory_utilization", 0) for application in document["applications"][2:]]
    assert on_each * max(planned) < 0.95


def engine(application: Mapping[str, Any]) -> Mapping[str, Any]:
    kwargs: Mapping[str, Any] = application["args"]["llm_config"]["engine_kwargs"]
    return kwargs


def test_a_variant_of_several_gpus_shares_none() -> None:
    variants = [Variant("a", "m", {"tensor_parallel_size": 2}), Variant("b", "m")]
    assert Placement("gpu", gpus=1).share(variants) == 1


@pytest.mark.parametrize(
    ("source", "model_id", "endpoint", "deployment"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "Qwen3-8B", "qwen3-8b"),
        ("package:all-MiniLM-L6-v2", "all-MiniLM-L6-v2", "all-MiniLM-L6-v2", "all-minilm-l6-v2"),
        ("/models/My Model/", "My Model", "My-Model", "my-model"),
        ("s3://bucket/path/Llama", "Llama", "Llama", "llama"),
        ("gpt2", "gpt2", "gpt2", "gpt2-base"),  # an endpoint and a deployment have two names
        ("/", "model", "model", "model-base"),
    ],
)
def test_names_come_from_the_model(source: str, model_id: str, endpoint: str, deployment: str) -> None:
    assert name_of(source) == model_id
    assert endpoint_name(model_id) == endpoint
    assert deployment_name(model_id, [endpoint]) == deployment


@pytest.mark.parametrize(
    ("architecture", "options", "tasks"),
    [
        ("Qwen3ForCausalLM", {}, GENERATES),
        ("Qwen3ForCausalLM", {"embeds": True}, ("embeddings", "rerank")),  # a model of Sentence Transformers
        ("Qwen3ForCausalLM", {"runner": "pooling"}, ("embeddings", "rerank")),
        ("Gemma3ForConditionalGeneration", {}, GENERATES),
        ("BertModel", {}, ("embeddings", "rerank")),
        ("BertModel", {"runner": "generate"}, GENERATES),
        ("", {}, GENERATES),
    ],
)
def test_the_architecture_says_what_a_model_does(architecture: str, options: dict[str, Any], tasks: object) -> None:
    assert tasks_of({"architectures": [architecture]} if architecture else {}, **options) == tasks


@pytest.mark.parametrize(("labels", "task"), [(1, "rerank"), (3, "classify")])
def test_a_classifier_with_one_label_reranks(labels: int, task: str) -> None:
    named = {str(number): f"LABEL_{number}" for number in range(labels)}
    assert tasks_of({"architectures": ["BertForSequenceClassification"], "id2label": named}) == (task,)
