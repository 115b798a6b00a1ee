"""What runs on the cluster: the only importers of ray and vllm."""
