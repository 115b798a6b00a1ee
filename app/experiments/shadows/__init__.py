"""Shadows: what mirrored requests say of a deployment beside the one that answered them."""
