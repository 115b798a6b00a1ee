"""Metrics for scrapers: this router's, and a whole cluster's through any one of its routers."""
