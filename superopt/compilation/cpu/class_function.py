"""The call of a class of sizes that is the whole model, as one generated function: a call at new
sizes waits for all that it does besides its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.runtime.output_buffers import MIN_REUSED_BYTES, KeptArrays, new_array
from superopt.plan.program.size_formulas import tuple_text

if TYPE_CHECKING:
    from superopt.compilation.model.steps import ModelBinding
    from superopt.plan.program.image import LoadedProgram
    from superopt.plan.program.size_formulas import SizeFormulas

# From sizes and the model's inputs in order to its outputs by name; None for sizes of other classes
ClassFunction = Callable[[Mapping[str, int], Sequence[Any]], "dict[str, Any] | None"]


def build_class_function(
    code: LoadedProgram,
    formulas: SizeFormulas,
    dtypes: Sequence[np.dtype],
    binding: ModelBinding,
    kept: KeptArrays,
) -> ClassFunction:
    """Return the function of a program that is the whole model. For a model y[s0] = f(x[s0])

        def run(sizes, arrays):
            if count(sizes) != 1: return None
            try:
                s0 = sizes['n']
                if not (1 <= s0): return None
            except (KeyError, ZeroDivisionError): return None
            o0 = empty((s0,), d0) if s0 * 4 < 1048576 else new_array((s0,), d0, k0)
            call((arrays[0], o0, frombuffer(pack(s0), word_type)), 0, 0)
            return {'y': o0}

    dtypes: of its outputs. kept: arrays that may be used again for each.
    """
    f = formulas
    outputs = [_output_line(n, shape, dtypes[n]) for n, shape in enumerate(f.output_shapes)]
    words = f"frombuffer(pack({', '.join(f.words)}), word_type)"
    given = [f"arrays[{n}]" for n in binding.input_numbers]
    arguments = tuple_text([*given, *(f"o{n}" for n in range(len(outputs))), words])
    named = ", ".join(f"{name!r}: o{n}" for name, n in binding.output_numbers.items())
    lines = [
        "def run(sizes, arrays):",
        f"    if count(sizes) != {len(f.names)}: return None",
        "    try:",
        *(f"        s{n} = sizes[{name!r}]" for n, name in enumerate(f.names)),
        f"        if not ({' and '.join(f.guards) or 'True'}): return None",
        "    except (KeyError, ZeroDivisionError): return None",
        *(f"    t{n} = {text}" for n, text in enumerate(f.shared)),
        *outputs,
        f"    call({arguments}, {f.memory_bytes}, {f.workspace_bytes})",
        f"    return {{{named}}}",
    ]
    defined: dict[str, Any] = {
        "__builtins__": {}, "max": max, "min": min, "KeyError": KeyError,
        "ZeroDivisionError": ZeroDivisionError, "empty": np.empty, "new_array": new_array,
        "frombuffer": np.frombuffer, "word_type": np.dtype(np.int64),
        "pack": Struct(f"{len(f.words)}q").pack, "call": code.call, "count": len,
        **{f"d{n}": dtype for n, dtype in enumerate(dtypes)},
        **{f"k{n}": some for n, some in enumerate(kept)},
    }  # fmt: skip
    exec("\n".join(lines), defined)
    return defined["run"]  # type: ignore[no-any-return]


def _output_line(n: int, shape: Sequence[str], dtype: np.dtype) -> str:
    text = tuple_text(shape)
    size = " * ".join([*(f"({d})" for d in shape), str(dtype.itemsize)])
    large = f"new_array({text}, d{n}, k{n})"
    return f"    o{n} = empty({text}, d{n}) if {size} < {MIN_REUSED_BYTES} else {large}"
