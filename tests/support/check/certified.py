"""A small model, what `optimize` makes of it, and certificates to be forged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from superopt.api import functions
from superopt.report.data.certificate import Certificate, certificate_json, read_certificate
from superopt.report.data.report import Verdict

# Transpositions go, some only after others, and a Relu; a transposed weight and the exponential of
# one are folded.
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[4, 64] x, float[4, 64] y) => (float[4, 32] p, float[4, 48] q, float[4, 64] z)
<float[32, 64] a, float[64, 48] b, float[64] c>
{
  t = Transpose<perm = [1, 0]>(x)
  u = Transpose<perm = [1, 0]>(t)
  w = Transpose<perm = [1, 0]>(a)
  p = MatMul(u, w)
  q = MatMul(u, b)
  d = Sub(x, y)
  k = Exp(c)
  e = Mul(d, k)
  f = Relu(e)
  r = Relu(f)
  m = Transpose<perm = [1, 0]>(r)
  s = Relu(m)
  o = Transpose<perm = [1, 0]>(s)
  z = Softmax<axis = 1>(o)
}
"""


def model(seed: int = 0) -> onnx.ModelProto:
    """The model with drawn weights."""
    made = parser.parse_model(TEXT)
    rng = np.random.default_rng(seed)
    del made.graph.initializer[:]
    for name, shape in (("a", (32, 64)), ("b", (64, 48)), ("c", (64,))):
        drawn = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(drawn, name))
    return made


@dataclass(frozen=True)
class Certified:
    """A model, its faster form, and the certificate, in files."""

    original: Path
    optimized: Path
    certificate: Path

    def read(self) -> Certificate:
        return read_certificate(self.certificate.read_text())

    def changed(self, change: Callable[[onnx.ModelProto], None], folder: Path) -> Path:
        """The optimized model after `change`, in another file."""
        proto = onnx.load(str(self.optimized))
        change(proto)
        path = folder / "changed.onnx"
        path.write_bytes(proto.SerializeToString())
        return path


def certified(folder: Path, proto: onnx.ModelProto | None = None, **asked: object) -> Certified:
    """Optimize a model by estimated costs; everything lies in `folder`."""
    original, optimized = folder / "small.onnx", folder / "fast.onnx"
    original.write_bytes((proto or model()).SerializeToString())
    done = functions.optimize(
        original, cost="roofline", budget=30, store=folder / "store.db", **asked  # type: ignore
    )  # fmt: skip
    path = done.save(optimized)
    assert path is not None, done.report.notes
    return Certified(original, optimized, path)


def verdict(
    made: Certified, c: Certificate, folder: Path, *, a: Path | None = None, b: Path | None = None
) -> Verdict:
    """The verdict on a certificate whose digests are those of the models that it is tried on."""
    path = folder / "tried.superopt.json"
    path.write_text(certificate_json(c))
    return functions.verify(a or made.original, b or made.optimized, certificate=path)
