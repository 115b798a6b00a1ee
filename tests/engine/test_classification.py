"""A real vLLM with a classification model: tiny, with random weights, and a tokenizer that is packaged."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import InferenceClient
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from deployments.weights.cache import prepare
from tests.engine.conftest import routed
from tests.support.engine.model_application import model_application
from tests.support.processes.project import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications

LABELS = ["calm", "glad", "sad"]
TEXTS = ["What a wonderful day!", "It rained all week."]


class Classifier:
    """The model, and what it says without vLLM."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(1)
        self._tokenizer = AutoTokenizer.from_pretrained(prepare("all-MiniLM-L6-v2", ROOT / ".models"))
        config = BertConfig(
            vocab_size=len(self._tokenizer),
            hidden_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
            initializer_range=0.5,
        )
        self._model = BertForSequenceClassification(config).eval()
        self._model.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)

    def scores(self, text: str) -> list[float]:
        with torch.no_grad():
            scores: list[float] = (
                self._model(**self._tokenizer(text, return_tensors="pt")).logits[0].softmax(0).tolist()
            )
        return scores

    def raw_scores(self, text: str) -> list[float]:
        """The scores without activations of the pooler and of the classes."""
        with torch.no_grad():
            first = self._model.bert(**self._tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0]
            scores: list[float] = self._model.classifier(self._model.bert.pooler.dense(first)).tolist()
        return scores


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Classifier, str]]:
    """The model, and the URL of a router whose default endpoint of the task `classify` serves it."""
    folder = tmp_path_factory.mktemp("classifier")
    model = Classifier(folder / "model")
    llm_config = {
        "model_loading_config": {"model_id": "tiny-classes", "model_source": str(folder / "model")},
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {
            "runner": "pooling",
            "dtype": "float32",
            "max_model_len": 64,
            "enforce_eager": True,
            "enable_tokenizer_info_endpoint": True,
        },
    }
    with model_application("tiny-classes", {"llm_config": llm_config}, folder / "log", {}) as engine:
        config = {
            "endpoints": {"mood": {"tasks": ["classify"], "traffic": {"classes": 100}}},
            "deployments": {"classes": {"app": "tiny-classes", "model": "tiny-classes", "tasks": ["classify"]}},
            "defaults": {"classify": "mood"},
        }
        with routed(engine, config) as client:
            yield model, str(client.base_url)


def test_texts_are_classified_as_by_transformers(classifier: tuple[Classifier, str]) -> None:
    model, url = classifier
    answer = httpx.post(f"{url}/classify", json={"model": "mood", "input": TEXTS}, timeout=300)
    assert answer.status_code == 200, answer.text
    for item, text in zip(answer.json()["data"], TEXTS, strict=True):
        assert item["probs"] == pytest.approx(model.scores(text), abs=1e-4)
        assert item["label"] == LABELS[item["probs"].index(max(item["probs"]))]
        assert item["num_classes"] == 3
    assert answer.json()["usage"]["prompt_tokens"] > 0


def test_hugging_faces_client_gets_every_class_with_its_name(classifier: tuple[Classifier, str]) -> None:
    model, url = classifier
    client = InferenceClient(model=f"{url}/tgi/mood", provider="hf-inference")
    expected = sorted(zip(model.scores(TEXTS[0]), LABELS, strict=True), reverse=True)
    scores = client.text_classification(TEXTS[0])
    assert [item.label for item in scores] == [label for _, label in expected]
    assert [item.score for item in scores] == pytest.approx([score for score, _ in expected], abs=1e-4)
    (best,) = client.text_classification(TEXTS[0], top_k=1)
    assert best.label == expected[0][1]


def test_raw_scores_are_vllms(classifier: tuple[Classifier, str]) -> None:
    """Without the softmax, and in vLLM 0.29 without the tanh of BERT's pooler, too."""
    model, url = classifier
    body = {"inputs": [[text] for text in TEXTS], "raw_scores": True}
    for scores, text in zip(httpx.post(f"{url}/predict", json=body, timeout=300).json(), TEXTS, strict=True):
        expected = sorted(model.raw_scores(text), reverse=True)
        assert [item["score"] for item in scores] == pytest.approx(expected, rel=1e-3, abs=1e-2)


def test_a_text_that_is_too_long_is_the_clients_error(classifier: tuple[Classifier, str]) -> None:
    _, url = classifier
    answer = httpx.post(f"{url}/predict", json={"inputs": "word " * 100}, timeout=300)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    cut = httpx.post(f"{url}/predict", json={"inputs": "word " * 100, "truncate": True}, timeout=300)
    assert cut.status_code == 200, cut.text


def test_the_engine_tells_its_version_and_its_tokenizers_settings(classifier: tuple[Classifier, str]) -> None:
    _, url = classifier
    assert httpx.get(f"{url}/version").json()["version"].startswith("0.29")
    settings = httpx.get(f"{url}/tokenizer_info", params={"model": "mood"})
    assert settings.status_code == 200, settings.text
    assert settings.json()["cls_token"] == "[CLS]"
