"""ONNX files: read and validated, turned into graphs and back, and written without losing anything.

The only part, besides the backend, that imports onnx and onnx_ir.
"""
