"""The steps of a compiled model: native segments, and segments or models in ONNX Runtime."""

from superopt.pipeline.branch import Branch as Branch
from superopt.pipeline.fallback import Fallback as Fallback
from superopt.pipeline.foreign import Arrays as Arrays
from superopt.pipeline.foreign import Foreign as Foreign
from superopt.pipeline.foreign import foreign as foreign
from superopt.pipeline.foreign import whole as whole
from superopt.pipeline.held import natives as natives
from superopt.pipeline.native import Native as Native

Step = Native | Foreign | Fallback | Branch
