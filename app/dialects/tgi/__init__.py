"""Text Generation Inference (TGI), and MindIE's profile of it."""
