"""Serve deployments, and the launcher that runs all of them on one machine. Only this package imports Ray and vLLM."""
