"""What a served YAML asks of a Kubernetes cluster: its demands, the generated parts of `k8s/`, and what cannot work."""
