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

NAME = "conv"


@dataclass(frozen=True, slots=True)
class Convolution:
    """input_shape: images, channels, and their extents; output_shape: channels, and extents.
    autotune: cuDNN measures its algorithms and takes the fastest; else it predicts the fastest
    deterministic one."""

    given: tuple[int, ...]
    made: tuple[int, ...]
    window: tuple[int, ...]
    step: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    tried: bool

    def __str__(self) -> str:
        some = (getattr(self, f.name) for f in fields(self))
        words = ("x".join(map(str, x)) if isinstance(x, tuple) else str(int(x)) for x in some)
        return " ".join((NAME, *words))

    def run(self, x: Any, w: Any, out: Any, tf32: bool) -> None:
        """Compute out. x, w, out: torch tensors of matching sizes on one device; tf32: fp32
        products may use tf32. On a CPU, as in Triton's interpreter, torch has another operator."""
        import torch

        count, channels, *extents = self.given
        x, out = _last(x, count, extents, channels), _last(out, count, self.made[1:], self.made[0])
        w = _last(w, self.made[0], self.window, channels // self.groups)
        one = (1,) * (x.dim() - 2 - len(extents))  # of one dimension: an image that is one high
        none = (0,) * len(one)
        step, pad, dilation = (*one, *self.step), (*none, *self.pad), (*one, *self.dilation)
        ops: Any = torch.ops.aten  # whose operators have no types
        if x.is_cuda:
            how = self.groups, self.tried, not self.tried, tf32
            ops.cudnn_convolution.out(x, w, pad, step, dilation, *how, out=out)
        else:
            about = step, pad, dilation, False, [0] * len(step), self.groups
            ops.convolution.out(x, w, None, *about, out=out)


def parsed(text: str) -> Convolution:
    """Parse a convolution. Raises ValueError for other text."""
    name, *words = text.split()
    if name != NAME or len(words) != len(fields(Convolution)):
        raise ValueError(f"{text!r} is not a convolution, such as {NAME} 1x8x9 4x7 3 1 0 1 1 0")
    *sizes, groups, tried = words
    given, made, window, step, pad, dilation = (tuple(map(int, x.split("x"))) for x in sizes)
    return Convolution(given, made, window, step, pad, dilation, int(groups), tried == "1")


def _last(x: Any, count: int, extents: Any, channels: int) -> Any:
    """Return the tensor with torch's order of dimensions, channels second, while memory is
    channels-last."""
    high = (1,) if len(extents) == 1 else ()
    shape = (count, *high, *extents, channels)
    assert x.numel() == prod(shape)
    return x.view(shape).movedim(-1, 1)
