"""Model weights from Python packages, for a run without a model hub."""
