"""The overview for operators: every endpoint, its deployments, and their last minute."""
