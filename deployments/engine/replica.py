"""The classes that Serve imports in a replica; importing them imports torch and vLLM."""

from deployments.engine.collector import few_collections

with few_collections():
    from deployments.engine.server import EngineServer, PackagedWeights

__all__ = ["EngineServer", "PackagedWeights"]
