"""Compile what onnxruntime gives to the provider when a session is made (host_compiler.h)."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.model.compile_model import make_compiler, open_device
from superopt.errors import SuperoptError
from superopt.onnx_io.import_.dtypes import dtype_of
from superopt.onnx_io.read.source import Source
from superopt.ort_plugin import ort_table as slots
from superopt.ort_plugin.context_model import Part
from superopt.ort_plugin.export import choose_parts
from superopt.ort_plugin.ort_graph import GraphReader
from superopt.ort_plugin.ort_table import Handle, OrtTable
from superopt.te.expr.dtype import to_numpy

if TYPE_CHECKING:
    from superopt.compilation.frontend.compile_options import CompileOptions

LOGGER = logging.getLogger("superopt.ort_register")
ORT_VERSION = 23

Opener = Callable[[Source], Callable[[dict[str, Any]], Mapping[str, Any]]]


class CallTensor(ctypes.Structure):
    """call_tensor of host_compiler.h."""

    _fields_ = (
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("rank", c_int64),
        ("type", c_int64),
    )


class FusionOptions(ctypes.Structure):
    """OrtNodeFusionOptions."""

    _fields_ = (("version", ctypes.c_uint32), ("drop_constant_initializers", ctypes.c_bool))


_TEXT = (POINTER(c_char), c_size_t)
_Claim = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p, *_TEXT)
_Compile = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, POINTER(c_int64), *_TEXT)
_Run = ctypes.CFUNCTYPE(c_int, c_int64, POINTER(CallTensor), c_size_t, c_void_p, *_TEXT)
_Release = ctypes.CFUNCTYPE(None, c_int64)


class HostCompiler(ctypes.Structure):
    """host_compiler of host_compiler.h."""

    _fields_ = (("claim", _Claim), ("compile", _Compile), ("run", _Run), ("release", _Release))


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A part that is compiled. inputs: for each input of a call its name, or None if the part does
    not read it; outputs: of a call, in order."""

    call: Callable[[dict[str, Any]], Mapping[str, Any]]
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]


@dataclass(slots=True, eq=False)
class SessionCompiler:
    """Compiles parts of models for sessions of this process.

    library: the provider's. open_part: compiles a model. claimed: by thread, the parts that the
    last call of `claim` chose. compiled: by number.
    """

    library: Any
    options: CompileOptions
    open_part: Opener
    claimed: dict[int, list[Part]] = field(default_factory=dict)
    compiled: dict[int, CompiledGraph] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    functions: HostCompiler | None = None

    def install(self) -> None:
        """Let the provider call this compiler until Python ends."""
        self.functions = HostCompiler(
            _Claim(self._claim), _Compile(self._compile), _Run(self._run), _Release(self._release)
        )
        self.library.SuperoptSetCompiler(ctypes.byref(self.functions))
        atexit.register(self.library.SuperoptSetCompiler, None)

    def _claim(
        self, graph: Handle, support: Handle, api: Handle, ep_api: Handle, text: Any, size: int
    ) -> int:
        return _call_for_status(self._claim_parts, text, size, graph, support, api, ep_api)

    def _claim_parts(self, graph: Handle, support: Handle, api: Handle, ep_api: Handle) -> None:
        self.claimed.pop(threading.get_ident(), None)
        table = OrtTable(api)
        try:
            source, nodes = GraphReader(table).model(graph)
            compiler = make_compiler(source, self.options, open_device(self.options))
            parts, left = choose_parts(compiler, {})
        except SuperoptError as e:
            LOGGER.info("onnxruntime runs the model: %s", e)
            return
        except Exception:  # it must not prevent the session
            LOGGER.warning("onnxruntime runs the model: an error in superopt", exc_info=True)
            return
        for count, why in left:
            LOGGER.info("onnxruntime runs %d nodes: %s", count, why)
        options = FusionOptions(ORT_VERSION, True)
        claims = OrtTable(ep_api, api)
        for part in parts:
            chosen = (c_void_p * len(part.positions))(*(nodes[k] for k in part.positions))
            claims.call(
                slots.ADD_NODES, c_void_p(support), c_void_p(ctypes.addressof(chosen)),
                c_size_t(len(chosen)), c_void_p(ctypes.addressof(options)),
            )  # fmt: skip
        self.claimed[threading.get_ident()] = parts

    def _compile(
        self, graph: Handle, fused: Handle, api: Handle, number: Any, text: Any, size: int
    ) -> int:
        return _call_for_status(self._compile_part, text, size, fused, api, number)

    def _compile_part(self, fused: Handle, api: Handle, number: Any) -> None:
        reader = GraphReader(OrtTable(api))
        outputs = reader.names(fused, outputs=True)
        given = reader.names(fused)
        parts = self.claimed.get(threading.get_ident(), [])
        part = next((p for p in parts if {*outputs} <= {*p.outputs}), None)
        if part is None:
            raise RuntimeError(f"no part of the model computes {', '.join(outputs)}")
        parts.remove(part)
        read = {*part.inputs}
        made = CompiledGraph(
            self.open_part(part.source),
            tuple(name if name in read else None for name in given),
            tuple(outputs),
        )
        number[0] = next(self.numbers)
        self.compiled[number[0]] = made

    def _run(
        self, number: int, inputs: Any, count: int, context: Handle, text: Any, size: int
    ) -> int:
        return _call_for_status(self._run_graph, text, size, number, inputs, count, context)

    def _run_graph(self, number: int, inputs: Any, count: int, context: Handle) -> None:
        graph = self.compiled[number]
        feeds = {name: _view(inputs[n]) for n, name in enumerate(graph.inputs) if name is not None}
        found = graph.call(feeds)
        for n, name in enumerate(graph.outputs):
            y = np.asarray(found[name], order="C")
            shape = (c_int64 * max(y.ndim, 1))(*y.shape)
            at = self.library.SuperoptOutput(context, n, shape, y.ndim)
            if y.nbytes:
                if not at:
                    raise MemoryError(f"onnxruntime has no memory for {name}")
                ctypes.memmove(at, y.ctypes.data, y.nbytes)

    def _release(self, number: int) -> None:
        self.compiled.pop(number, None)


def load_library(path: Path) -> Any:
    """Return the provider's library in this process."""
    library = ctypes.CDLL(str(path))
    library.SuperoptSetCompiler.argtypes = [c_void_p]
    library.SuperoptSetCompiler.restype = None
    library.SuperoptOutput.argtypes = [c_void_p, c_size_t, c_void_p, c_size_t]
    library.SuperoptOutput.restype = c_void_p
    return library


def _call_for_status(function: Callable[..., None], text: Any, size: int, *args: Any) -> int:
    """Call a function; return 0, or -1 with the error's text written. Errors cannot leave a call
    from C."""
    try:
        function(*args)
        return 0
    except BaseException as e:
        message = (str(e) or type(e).__name__).encode()[: size - 1]
        ctypes.memmove(text, message + b"\0", len(message) + 1)
        return -1


def _view(t: CallTensor) -> np.ndarray:
    """Return an input as an array over onnxruntime's memory."""
    shape = t.shape[: t.rank]
    kind = dtype_of(t.type)
    assert kind is not None, t.type
    dtype = to_numpy(kind)
    size = prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    held = (c_char * size).from_address(t.data)
    return np.frombuffer(held, dtype).reshape(shape)
