"""Check what a model declares: versions, types, sizes. None of it is trusted."""

from typing import Final

import onnx
import onnx.defs
import onnx.helper
import onnx_ir as ir

from superopt import guard
from superopt.errors import ModelError
from superopt.onnx_io.read.protos import declared_types, stored_tensors
from superopt.onnx_io.read.region_tensors import byte_size
from superopt.onnx_io.read.skeleton import FIXED_SIZE_DTYPES, Blob, blob_size, stub_index

# One tensor: what a processor of today can address at all.
MAX_TENSOR_BYTES: Final = 1 << 47

_STRING: Final = onnx.TensorProto.STRING
_DTYPES: Final = {0, _STRING, *FIXED_SIZE_DTYPES}
# Where ONNX stores elements if not in raw_data; COMPLEX64 and COMPLEX128 take two entries.
_STORAGE: Final = {
    "float_data": {"FLOAT": 1, "COMPLEX64": 2},
    "double_data": {"DOUBLE": 1, "COMPLEX128": 2},
    "int64_data": {"INT64": 1},
    "uint64_data": {"UINT64": 1, "UINT32": 1},
}


def check_versions(model: onnx.ModelProto, label: str) -> None:
    """Raise ModelError if there is no graph with outputs, or if onnx does not support a version."""
    if not model.HasField("graph"):
        raise ModelError(
            f"{label}: there is no graph in this model",
            "the file can be read as a protobuf message, but not as a model",
            "check that this is an ONNX file, and export it again",
        )
    if not model.graph.output:
        raise ModelError(
            f"{label}: the graph has no outputs",
            f"its {len(model.graph.node)} nodes compute nothing that anybody could ask for",
            "name the values that the model computes as outputs of its graph",
        )
    newest = onnx.IR_VERSION
    if not 0 < model.ir_version <= newest:
        problem = "is newer than" if model.ir_version > newest else "is none that"
        raise ModelError(
            f"{label}: IR version {model.ir_version} is not supported",
            f"it {problem} onnx {onnx.__version__} knows: 1 to {newest}",
            "install a newer onnx package, or export the model for an older one",
        )
    known = _newest_opsets()
    imports = list(model.opset_import)
    for function in model.functions:
        imports += function.opset_import
    for opset in imports:
        limit = known.get(opset.domain)
        if opset.version < 1 or (limit is not None and opset.version > limit):
            name = opset.domain or "ai.onnx"
            problem = "newer than" if opset.version > 0 else "none that"
            raise ModelError(
                f"{label}: opset {opset.version} of {name} is not supported",
                f"it is {problem} onnx {onnx.__version__} knows"
                + (f": 1 to {limit}" if limit else ""),
                "install a newer onnx package, or export the model with an older opset",
            )


def check_types(model: onnx.ModelProto, label: str) -> None:
    """Raise ModelError for a declared type that no tensor can have."""
    for declared_type, owner in declared_types(model):
        if problem := type_problem(declared_type):
            raise ModelError(
                f"{label}: the type of {owner} is not possible",
                problem,
                "correct it; where a size is not known, give it a name (dim_param) instead",
            )
    for info in model.graph.input:
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.elem_type == 0:
            raise ModelError(
                f"{label}: the type of input {info.name!r} is not known",
                "its elem_type is UNDEFINED",
                "declare the element type of every input",
            )


def type_problem(declared_type: onnx.TypeProto) -> str:
    """Return why no tensor can have this type, or an empty string."""
    match declared_type.WhichOneof("value"):
        case "tensor_type":
            kind: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor = declared_type.tensor_type
        case "sparse_tensor_type":
            kind = declared_type.sparse_tensor_type
        case _:
            return ""
    if kind.elem_type not in _DTYPES:
        return f"{kind.elem_type} is not an element type"
    dims = [dim.dim_value for dim in kind.shape.dim if dim.HasField("dim_value")]
    return _dims_problem(dims, FIXED_SIZE_DTYPES.get(kind.elem_type, ir.DataType.UINT8))


def _dims_problem(dims: list[int], dtype: ir.DataType) -> str:
    if any(dim < 0 for dim in dims):
        return f"its shape {_format_shape(dims)} has a negative size"
    if (size := byte_size(dtype, tuple(dims))) > MAX_TENSOR_BYTES:
        return f"its shape {_format_shape(dims)} needs {size} bytes, more than any machine has"
    return ""


def check_tensors(model: onnx.ModelProto, blobs: tuple[Blob, ...], label: str) -> None:
    """Raise ModelError for a tensor whose data does not agree with its shape and dtype."""
    for tensor, name, _ in stored_tensors(model):
        guard.check_time(f"reading {label}")
        what = f"{label}: the data of {name} is not valid"
        todo = "export the model again: the tensor is damaged"
        if tensor.data_type not in _DTYPES or tensor.data_type == 0:
            raise ModelError(what, f"{tensor.data_type} is not an element type", todo)
        dims = list(tensor.dims)
        dtype = FIXED_SIZE_DTYPES.get(tensor.data_type)
        if problem := _dims_problem(dims, dtype or ir.DataType.UINT8):
            raise ModelError(what, problem, todo)
        index = stub_index(tensor)
        entries = byte_size(ir.DataType.UINT8, tuple(dims))  # one per element
        stored, needed, unit = len(tensor.string_data), entries, "strings"
        if dtype is not None:
            needed, unit = byte_size(dtype, tuple(dims)), "bytes"
            stored = len(tensor.raw_data) if index is None else blob_size(blobs[index])
            if index is None and not tensor.HasField("raw_data"):
                stored, needed, unit = _typed_data_size(tensor, dtype, entries)
        if stored != needed:
            why = f"its shape {_format_shape(dims)} needs {needed} {unit}, and there are {stored}"
            raise ModelError(what, why, todo)


def _typed_data_size(
    tensor: onnx.TensorProto, dtype: ir.DataType, elements: int
) -> tuple[int, int, str]:
    """Return the number of entries stored outside raw_data, the number needed, and the field."""
    for field, dtypes in _STORAGE.items():
        if (each := dtypes.get(dtype.name)) is not None:
            return len(getattr(tensor, field)), elements * each, f"entries of {field}"
    if dtype.bitwidth in (2, 4):  # one byte of packed elements in each entry
        elements = byte_size(dtype, (elements,))
    return len(tensor.int32_data), elements, "entries of int32_data"


def _newest_opsets() -> dict[str, int]:
    newest = {"": onnx.defs.onnx_opset_version(), "ai.onnx": onnx.defs.onnx_opset_version()}
    for domain, version in onnx.helper.OP_SET_ID_VERSION_MAP:
        newest[domain] = max(version, newest.get(domain, 0))
    return newest


def _format_shape(dims: list[int]) -> str:
    """Format a shape for a message; the middle of a very long shape is elided."""
    if len(dims) > 8:
        return f"[{', '.join(map(str, dims[:4]))}, ..., {', '.join(map(str, dims[-3:]))}]"
    return str(dims)
