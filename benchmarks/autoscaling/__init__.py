"""Autoscaling policies on a trace of bursts: `python -m benchmarks.autoscaling`."""
