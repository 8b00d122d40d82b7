"""The steps of a compiled model: native segments, and segments or models in ONNX Runtime."""

from superopt.compilation.cpu.dynamic_if import DynamicIf as DynamicIf
from superopt.compilation.cpu.native_steps import native_segments as native_segments
from superopt.compilation.fallback.ort_segment import OrtSegment as OrtSegment
from superopt.compilation.fallback.ort_segment import ValueArrays as ValueArrays
from superopt.compilation.fallback.ort_segment import fallback_reasons as fallback_reasons
from superopt.compilation.fallback.ort_segment import make_ort_segment as make_ort_segment
from superopt.compilation.fallback.whole_model import Fallback as Fallback
from superopt.compilation.runtime.native_segment import NativeSegment as NativeSegment

Step = NativeSegment | OrtSegment | Fallback | DynamicIf
