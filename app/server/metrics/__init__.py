"""Metrics for scrapers: of this router, and of a whole cluster through any one of its routers."""
