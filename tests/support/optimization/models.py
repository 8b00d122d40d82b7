"""Small models for the pipeline, in ONNX's own text; each gives the rules something to do."""

import numpy as np
import onnx
from onnx import numpy_helper, parser

# `x` twice transposed, and two products of the same operand.
PLAIN = """
<ir_version: 8, opset_import: ["" : 17]>
plain (float[4, 6] x) => (float[4, 5] p, float[4, 3] q)
<float[6, 5] a, float[6, 3] b>
{
  t = Transpose<perm = [1, 0]>(x)
  u = Transpose<perm = [1, 0]>(t)
  p = MatMul(u, a)
  q = MatMul(u, b)
}
"""

DYNAMIC = """
<ir_version: 8, opset_import: ["" : 17]>
dynamic (float[batch, sequence, 6] x) => (float[batch, sequence, 6] y)
{
  t = Transpose<perm = [1, 0, 2]>(x)
  r = Relu(t)
  s = Relu(r)
  y = Transpose<perm = [1, 0, 2]>(s)
}
"""

# TopK in an order that a runtime chooses has no tensor expression, but is the same in every run.
TOPK = """
<ir_version: 8, opset_import: ["" : 17]>
topk (float[4, 6] x) => (float[4, 2] y, int64[4, 2] i)
<int64[1] k = {2}>
{
  r = Relu(x)
  s = Relu(r)
  v, i = TopK <sorted = 0> (s, k)
  w = Relu(v)
  y = Relu(w)
}
"""

# What RandomNormalLike gives is another in every run.
RANDOM = """
<ir_version: 8, opset_import: ["" : 17]>
random (float[4, 6] x) => (float[4, 6] y)
{
  r = Relu(x)
  s = Relu(r)
  n = RandomNormalLike(s)
  z = Add(n, s)
  w = Relu(z)
  y = Relu(w)
}
"""

NONZERO = """
<ir_version: 8, opset_import: ["" : 17]>
nonzero (float[4, 6] x) => (float[n] y)
<int64[1] zero = {0}>
{
  r = Relu(x)
  s = Relu(r)
  f = Flatten<axis = 0>(s)
  q = Squeeze(f, zero)
  i = NonZero(q)
  j = Squeeze(i, zero)
  g = Gather<axis = 0>(q, j)
  h = Relu(g)
  y = Relu(h)
}
"""

# The body of the loop captures `s`, which a rewrite changes.
LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
loop (float[4, 6] x) => (float[4, 6] y)
<int64 times = {3}, bool on = {1}>
{
  r = Relu(x)
  s = Relu(r)
  z = Loop(times, on, s) <body = body (int64 i, bool c, float[4, 6] v) => (bool d, float[4, 6] w)
    {
      d = Identity(c)
      w = Add(v, s)
    }>
  u = Relu(z)
  y = Relu(u)
}
"""

CUSTOM = """
<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
custom (float[4, 6] x) => (float[4, 6] y)
{
  r = Relu(x)
  s = Relu(r)
  z = acme.Secret(s)
  w = Relu(s)
  y = Relu(w)
}
"""

# Behind the unknown operator: its shape is not known, so nothing there can be evaluated.
BEHIND_CUSTOM = """
<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
behind (float[4, 6] x) => (float y)
{
  z = acme.Secret(x)
  w = Relu(z)
  y = Relu(w)
}
"""

INTEGERS = """
<ir_version: 8, opset_import: ["" : 17]>
integers (float[64, 6] x, int64[5] i) => (int64[64] a, bool[64, 6] b, int64[5, 2] g)
<float[6, 6] m, int64[9, 2] table>
{
  t = Transpose<perm = [1, 0]>(x)
  u = Transpose<perm = [1, 0]>(t)
  p = MatMul(u, m)
  a = ArgMax<axis = 1, keepdims = 0>(p)
  r = Relu(x)
  s = Relu(r)
  zero = Sub(x, x)
  b = Greater(s, zero)
  j = Identity(i)
  g = Gather<axis = 0>(table, j)
}
"""

DONE = """
<ir_version: 8, opset_import: ["" : 17]>
done (float[4, 6] x) => (float[4, 6] y)
{
  y = Relu(x)
}
"""

# Runs only where the batch is even.
PICKY = """
<ir_version: 8, opset_import: ["" : 17]>
picky (float[batch, 6] x) => (float[half, 12] y)
<int64[2] shape = {-1, 12}>
{
  r = Relu(x)
  s = Relu(r)
  y = Reshape(s, shape)
}
"""


def model(text: str, seed: int = 0) -> onnx.ModelProto:
    """The model of a text; weights that are declared without a value are drawn."""
    found = parser.parse_model(text)
    rng = np.random.default_rng(seed)
    made = {name for n in found.graph.node for name in n.output}
    declared = [v for v in found.graph.value_info if v.name not in made]
    for v in declared:
        dims = [d.dim_value for d in v.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        drawn = rng.standard_normal(dims) if kind.kind == "f" else rng.integers(0, 9, dims)
        found.graph.initializer.append(numpy_helper.from_array(drawn.astype(kind), v.name))
        found.graph.value_info.remove(v)
    return found


def data(text: str, seed: int = 0) -> bytes:
    """The bytes of the model of a text."""
    return model(text, seed).SerializeToString()


# What two branches compute of one input, put side by side: SqueezeNet's fire module.
FIRE_MODULE = """
<ir_version: 8, opset_import: ["" : 17]>
fire (float[1, 16, 13, 13] x) => (float[1, 128, 13, 13] y)
<float[64, 16, 1, 1] v, float[64] c, float[64, 16, 3, 3] w, float[64] d>
{
  a = Conv<kernel_shape = [1, 1]>(x, v, c)
  p = Relu(a)
  b = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w, d)
  q = Relu(b)
  y = Concat<axis = 1>(p, q)
}
"""
