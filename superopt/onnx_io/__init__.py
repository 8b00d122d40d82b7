"""ONNX files: read and validated, turned into graphs and back, and written without losing anything.

The only part, besides the backend, that imports onnx and onnx_ir.
"""

from superopt.onnx_io.lazy_imports import import_lazily

# onnx_ir uses sympy for arithmetic with symbolic dimensions, which superopt does itself. Loading it
# takes as long as all of superopt's compiler.
import_lazily(("sympy", "onnx_ir._symbolic_shapes"))
