"""Azure AI Model Inference."""
