"""superopt's code in onnxruntime: a plugin execution provider, and models for it."""
