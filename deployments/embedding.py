"""One vLLM pooling deployment: embeddings, reranking, scores, classes."""

from ray import serve

from deployments.engine.application import EngineArgs, build_engine


def build(args: EngineArgs) -> serve.Application:
    """The application; Serve validates `args` against its annotation."""
    return build_engine(args, {"runner": "pooling"})
