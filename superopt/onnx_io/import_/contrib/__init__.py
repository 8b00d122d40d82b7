"""Import of ONNX Runtime's contrib operators."""
