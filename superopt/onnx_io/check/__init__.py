"""Whether a model is valid ONNX, and what makes it unsafe to rewrite."""
