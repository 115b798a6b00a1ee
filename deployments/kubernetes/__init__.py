"""The needs of a Serve configuration on Kubernetes: resources, generated manifests, checks of manifests."""
