"""Grafana's dashboards as code. `python -m k8s.monitoring.dashboards DIRECTORY` writes them as JSON."""
