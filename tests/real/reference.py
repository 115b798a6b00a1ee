"""The embedding model run directly in transformers: mean pooling and normalisation, as its card describes."""

from deployments.weights import default_cache, prepare


def embed(texts: list[str]) -> list[list[float]]:
    """Vectors of 384 floats, of length one."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = prepare("all-MiniLM-L6-v2", default_cache())
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    vectors: list[list[float]] = torch.nn.functional.normalize(mean).tolist()
    return vectors
