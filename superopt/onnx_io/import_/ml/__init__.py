"""ai.onnx.ml operators as primitives of the graph IR."""
