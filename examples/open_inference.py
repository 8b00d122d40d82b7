"""Requests and responses of the Open Inference Protocol, version 2, as arrays; used by serve.py.

JSON has a flat or nested list for each tensor; a body of type application/x-npz has the arrays of
`numpy.savez`, by the names of inputs or outputs.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

NPZ = "application/x-npz"
INTEGERS = [f"{u}INT{n}" for u in ("", "U") for n in (8, 16, 32, 64)]
FLOATS = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}
DATATYPES = {"BOOL": "bool", **{name: name.lower() for name in INTEGERS}, **FLOATS}
NAMES = {dtype: name for name, dtype in DATATYPES.items()}


def describe(exe: Any, name: str) -> dict[str, Any]:
    """Return the metadata of a model: a size that a request chooses is -1."""
    inputs = []
    for p in exe.input_ports:
        shape = [d if isinstance(d, int) else -1 for d in p.shape or ()]
        inputs.append({"name": p.name, "datatype": NAMES.get(str(p.dtype), "?"), "shape": shape})
    outputs = [{"name": output} for output in exe.output_names]
    return {"name": name, "platform": "superopt", "inputs": inputs, "outputs": outputs}


def arrays_of_json(body: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a request. Raises ValueError, KeyError or TypeError if it has none."""
    found = {}
    for t in json.loads(body)["inputs"]:
        dtype = np.dtype(DATATYPES[t["datatype"]])
        found[str(t["name"])] = np.array(t["data"], dtype).reshape([int(d) for d in t["shape"]])
    return found


def json_response(model: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the body of a response. NaN and infinity are written as Python's json does."""
    outputs = [
        {"name": k, "datatype": NAMES[str(a.dtype)], "shape": a.shape, "data": a.ravel().tolist()}
        for k, a in arrays.items()
    ]
    return json.dumps({"model_name": model, "outputs": outputs}).encode()


def arrays_of_npz(body: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a body. Raises ValueError if it is no .npz file, or has objects."""
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as found:
            return dict(found)
    except Exception as error:  # zipfile and numpy raise errors of many kinds
        raise ValueError(f"not an .npz file: {error}") from None


def npz_of_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()
