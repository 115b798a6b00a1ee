"""What scrapers read: the metrics of this router, and those of a whole cluster through any one of its routers."""
