"""Parts and models that run in onnxruntime."""
