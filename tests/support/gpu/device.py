"""Whether tests of a GPU's kernels run there, or in Triton's interpreter on the processor.

Where the environment has SUPEROPT_TEST_GPU=1 they are the same tests, on a device: `pytest -m gpu`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

REAL = os.environ.get("SUPEROPT_TEST_GPU") == "1"


def cached_programs(exe: Any) -> list[Any]:
    """Return the programs of an executable that came from the disk cache."""
    return [v.only_step for v in exe.variants.values() if v.options is not None]


def choose(patch: pytest.MonkeyPatch) -> None:
    """Have Triton interpret kernels, which it decides when it is imported, or not; skip the test
    where the extra is not installed."""
    if REAL:
        patch.delenv("TRITON_INTERPRET", raising=False)
    else:
        patch.setenv("TRITON_INTERPRET", "1")
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"the extra gpu is not installed: no {name}")
    if not REAL:
        speed_up_interpreter(patch)


def speed_up_interpreter(patch: pytest.MonkeyPatch) -> None:
    """Have Triton's interpreter do the same in a fraction of its time.

    It computes integer sums and products a second time, in 64 bits, for an overflow check that it
    then skips, as its option `debug` is off. It calls a reduction's function for each element. It
    makes a table of all types whenever it needs numpy's type for one, and computes what follows
    from a shape for each tensor of it. Before each call of a function within a kernel it replaces
    the operations of Triton's language, which it has replaced for the kernel.
    """
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    patch.setattr(interpreter.ReduceOps, "generic_reduce", reduce_pairs)
    patch.setattr(interpreter, "_get_np_dtype", numpy_types(interpreter._get_np_dtype))
    patch.setattr(interpreter, "_patch_lang", patch_once(interpreter))
    core = interpreter.tl.core
    patch.setattr(core.tensor, "__init__", tensor_init(core.tensor.__init__))
    patch.setattr(core.block_type, "__init__", block_type_init(core.block_type.__init__))


def numpy_types(own: Callable[[Any], np.dtype]) -> Callable[[Any], np.dtype]:
    """The interpreter's function, asked once for each element type."""
    known: dict[str, np.dtype] = {}

    def numpy_type(dtype: Any) -> np.dtype:
        name = getattr(dtype, "element_ty", dtype).name if dtype.is_block() else dtype.name
        if name not in known:
            known[name] = own(dtype)
        return known[name]

    return numpy_type


def patch_once(interpreter: Any) -> Callable[[Any], Any]:
    """The interpreter's function that replaces the operations of Triton's language, where they are
    not replaced yet. It also lets static_print be Python's print."""
    own = interpreter._patch_lang
    modules = {id(m): m for m in (interpreter.tl, interpreter.tl.core)}

    def patch_lang(fn: Any) -> Any:
        used = [modules[id(x)] for x in fn.__globals__.values() if id(x) in modules]
        if used and all(m.static_print is print for m in used):
            return interpreter._LangPatchScope()
        return own(fn)

    return patch_lang


def tensor_init(own: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """The constructor of Triton's tensors, which computes what a type implies once."""
    known: dict[str, dict[str, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        if (implied := known.get(type.name)) is None:
            own(self, handle, type)
            known[type.name] = dict(vars(self))
        else:
            vars(self).update(implied, handle=handle, type=type, dtype=type.scalar)

    return init


def block_type_init(own: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """The constructor of Triton's block types, which checks each shape once."""
    known: dict[tuple[object, ...], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Sequence[Any]) -> None:
        key = (element_ty.name, *shape)
        if (implied := known.get(key)) is None:
            own(self, element_ty, shape)
            known[key] = dict(vars(self))
        else:
            vars(self).update(implied, element_ty=element_ty)

    return init


def reduce_pairs(reduction: Any, operands: Sequence[Any]) -> list[Any]:
    """Return what the interpreter's generic_reduce does, for an axis that is given and not kept.

    Neighbours along the axis are combined, all pairs by one call, until one is left, as a GPU does:
    for an associative function the order of operands, which are a power of two, stays.
    """
    assert reduction.axis is not None
    assert not reduction.keep_dims
    dtypes = [x.dtype for x in operands]
    arrays = [np.moveaxis(x.handle.data, reduction.axis, 0) for x in operands]
    shape = arrays[0].shape[1:]
    while (count := len(arrays[0])) > 1:
        pairs = [a[part::2].reshape(-1) for part in (0, 1) for a in arrays]
        given = [reduction.to_tensor(a, t) for a, t in zip(pairs, 2 * dtypes, strict=True)]
        result = reduction.combine_fn.fn(*given)
        results = result if isinstance(result, tuple) else (result,)
        arrays = [x.handle.data.reshape(count // 2, *shape) for x in results]
    return [reduction.to_tensor(a.reshape(shape), t) for a, t in zip(arrays, dtypes, strict=True)]
