"""What a Serve configuration needs of a Kubernetes cluster: resources, generated manifests, checks of manifests."""
