"""A convolution by cuDNN (through torch): plain data, which prints as text that parses back, and
the call.

    conv 16x64x56x56 128x28x28 3x3 2x2 1x1 1x1 1 0

stands for 16 images of 64 channels and 56 x 56 pixels; results of 128 channels and 28 x 28; window;
strides; zero padding on both sides; dilations; groups; and whether cuDNN autotunes. Channels are
innermost, in constants too: output channels, window, input channels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod
from typing import Any

CALL_NAME = "conv"


@dataclass(frozen=True, slots=True)
class Convolution:
    """input_shape: images, channels, and their extents; output_shape: channels, and extents.
    autotune: cuDNN measures its algorithms and takes the fastest; else it predicts the fastest
    deterministic one."""

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    autotune: bool = False

    def __str__(self) -> str:
        some = (getattr(self, f.name) for f in fields(self))
        words = ("x".join(map(str, x)) if isinstance(x, tuple) else str(int(x)) for x in some)
        return " ".join((CALL_NAME, *words))

    def run(self, x: Any, w: Any, out: Any, tf32: bool) -> None:
        """Compute out. x, w, out: torch tensors of matching sizes on one device; tf32: fp32
        products may use tf32. On a CPU, as in Triton's interpreter, torch has another operator."""
        import torch

        count, channels, *extents = self.input_shape
        x, out = (
            _channels_last_view(x, count, extents, channels),
            _channels_last_view(out, count, self.output_shape[1:], self.output_shape[0]),
        )
        w = _channels_last_view(w, self.output_shape[0], self.window, channels // self.groups)
        one = (1,) * (x.dim() - 2 - len(extents))  # of one dimension: an image that is one high
        none = (0,) * len(one)
        step, pad, dilation = (*one, *self.stride), (*none, *self.pad), (*one, *self.dilation)
        ops: Any = torch.ops.aten  # whose operators have no types
        if x.is_cuda:
            how = self.groups, self.autotune, not self.autotune, tf32
            ops.cudnn_convolution.out(x, w, pad, step, dilation, *how, out=out)
        else:
            about = step, pad, dilation, False, [0] * len(step), self.groups
            ops.convolution.out(x, w, None, *about, out=out)


def parse_convolution(text: str) -> Convolution:
    """Parse a convolution. Raises ValueError for other text."""
    name, *words = text.split()
    if name != CALL_NAME or len(words) != len(fields(Convolution)):
        raise ValueError(
            f"{text!r} is not a convolution, such as {CALL_NAME} 1x8x9 4x7 3 1 0 1 1 0"
        )
    *sizes, groups, tried = words
    given, made, window, step, pad, dilation = (tuple(map(int, x.split("x"))) for x in sizes)
    return Convolution(given, made, window, step, pad, dilation, int(groups), tried == "1")


def _channels_last_view(x: Any, count: int, extents: Any, channels: int) -> Any:
    """Return the tensor with torch's order of dimensions, channels second, while memory is
    channels-last."""
    high = (1,) if len(extents) == 1 else ()
    shape = (count, *high, *extents, channels)
    assert x.numel() == prod(shape)
    return x.view(shape).movedim(-1, 1)
