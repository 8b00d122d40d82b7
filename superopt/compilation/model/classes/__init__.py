"""Steps of classes of sizes: parts in ONNX Runtime, sizes of a run, and other sizes of a model."""
