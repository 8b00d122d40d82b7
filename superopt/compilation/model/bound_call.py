"""Calls on fixed arrays (`Executable.bind`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.frontend.input_arrays import sorted_sizes
from superopt.compilation.model.model_programs import closed_error
from superopt.compilation.model.size_classes import bind_size_class
from superopt.errors import UsageError

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.runtime.output_buffers import ArraySpec

Run = Callable[[], object]


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class BoundCall:
    """A call of a compiled model on fixed arrays. `call()` returns `outputs`.

    Attributes:
        inputs: The arrays that a call reads, by name.
        outputs: The arrays that a call writes, by name, in the model's order.
        is_direct: True if the kernels write to `outputs`; else each call copies them.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: dict[str, Any]
    run: Run
    is_direct: bool

    def __call__(self) -> dict[str, Any]:
        self.run()
        return self.outputs

    def __repr__(self) -> str:
        given = ", ".join(f"{name}: {_array_text(a)}" for name, a in self.inputs.items())
        return f"<BoundCall ({given}) => ({', '.join(self.outputs)})>"


def bind_arrays(
    exe: Executable, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> BoundCall:
    """See `Executable.bind`."""
    if exe.is_closed:
        raise closed_error()
    arrays = exe.input_arrays(inputs)
    for port in exe.input_ports:
        if port.name in inputs:
            _check_array("input", port.name, inputs[port.name])
    _check_outputs(exe.output_names, outputs)
    held = {p.name: a for p, a in zip(exe.input_ports, arrays, strict=True)}
    check_disjoint(held, outputs)
    sizes = exe.infer_sizes(arrays)
    with exe.exclusive():
        key = sorted_sizes(sizes)
        if key not in exe.variants:
            bind_size_class(exe, key, compile_new=True)
        step = exe.runnable(sizes).bound_step
        specs = None if step is None else step.named_output_specs()
        if step is None or specs is None:
            found: dict[str, Any] = {**dict.fromkeys(exe.output_names), **outputs}
            out = BoundCall(held, found, _copying_call(exe, held, outputs, found), False)
        else:
            check_specs(outputs, specs)
            out = BoundCall(held, *step.bind(arrays, outputs), True)
        exe.bound_calls.add(out)
        return out


def _copying_call(
    exe: Executable,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, np.ndarray],
    results: dict[str, Any],
) -> Run:
    """Return a function that runs the model, and copies the results to the given outputs."""

    def run() -> None:
        out = exe.run(inputs)
        check_specs(outputs, {name: (a.shape, a.dtype) for name, a in out.items()})
        for name, array in outputs.items():
            np.copyto(array, out[name])
        results.update({**out, **outputs})

    return run


def _check_outputs(names: Sequence[str], outputs: Mapping[str, Any]) -> None:
    """Raise UsageError for arrays that no output can be written to."""
    if not isinstance(outputs, Mapping):
        raise UsageError(
            f"outputs are a {type(outputs).__name__}", "outputs are given by name", "pass a dict"
        )
    for name, array in outputs.items():
        if name not in names:
            raise UsageError(
                f"no output {name!r}", f"the outputs are {', '.join(names)}", "remove it"
            )
        _check_array("output", name, array)
        if not array.flags.writeable:
            raise UsageError(
                f"output {name!r} is read-only", "the kernels write to it", "pass a writable array"
            )


def _check_array(kind: str, name: str, array: object) -> None:
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"{kind} {name!r} is a {type(array).__name__}", "only numpy arrays can be bound",
            "pass a numpy array",
        )  # fmt: skip
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise UsageError(
            f"{kind} {name!r} has shape {list(array.shape)} and strides {list(array.strides)}",
            "a bound array must be contiguous and aligned",
            "bind a copy: np.ascontiguousarray(x)",
        )


def check_specs(outputs: Mapping[str, np.ndarray], specs: Mapping[str, ArraySpec]) -> None:
    """Raise UsageError for arrays that do not have the shapes and types of the outputs."""
    for name, array in outputs.items():
        shape, dtype = specs[name]
        if array.dtype != dtype or array.shape != shape:
            wanted = f"{dtype}{list(shape)}"
            raise UsageError(
                f"output {name!r} is {_array_text(array)}",
                f"for these inputs the model's is {wanted}",
                f"pass np.empty({shape}, {str(dtype)!r})",
            )


def check_disjoint(inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray]) -> None:
    """Raise UsageError if an output overlaps another array: kernels may write outputs before they
    have read all inputs."""
    fed = ((("output", o), ("input", i)) for o in outputs.items() for i in inputs.items())
    both = ((("output", a), ("output", b)) for a, b in combinations(outputs.items(), 2))
    for (kind, (name, array)), (other_kind, (other_name, other)) in (*fed, *both):
        if isinstance(other, np.ndarray) and np.may_share_memory(array, other):
            raise UsageError(
                f"{kind} {name!r} overlaps {other_kind} {other_name!r}",
                "kernels may write outputs before they have read all inputs",
                "bind an array of its own",
            )


def _array_text(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else repr(array)
