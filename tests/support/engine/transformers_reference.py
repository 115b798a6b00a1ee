"""The default models run directly in transformers, the reference for the deployments' answers. Each is loaded once."""

from functools import cache
from typing import Any

from deployments.weights.cache import default_cache, prepare


@cache
def smollm2() -> tuple[Any, Any]:
    """The chat model's tokenizer, and the model in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = prepare("SmolLM2-135M-Instruct", default_cache())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return AutoTokenizer.from_pretrained(folder), model


@cache
def minilm() -> tuple[Any, Any]:
    """The embedding model's tokenizer, and the model."""
    from transformers import AutoModel, AutoTokenizer

    folder = prepare("all-MiniLM-L6-v2", default_cache())
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)


def embed(texts: list[str]) -> list[list[float]]:
    """Vectors of 384 floats, of length one: mean pooling and normalisation, as the model's card describes."""
    import torch

    tokenizer, model = minilm()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    vectors: list[list[float]] = torch.nn.functional.normalize(mean).tolist()
    return vectors


def beams(prompt: str, **arguments: Any) -> list[tuple[list[int], float]]:
    """The token ids of a beam search's answers, eos included, and their scores, the best first."""
    import torch

    tokenizer, model = smollm2()
    inputs = tokenizer(prompt, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    with torch.no_grad():
        generated = model.generate(
            **inputs, do_sample=False, return_dict_in_generate=True, output_scores=True, **arguments
        )
    pairs = zip(generated.sequences[:, length:].tolist(), generated.sequences_scores.tolist(), strict=True)
    return [([id for id in ids if id != tokenizer.pad_token_id], score) for ids, score in pairs]
