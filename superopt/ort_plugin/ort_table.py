"""onnxruntime's C API from Python: calls through its tables of function pointers (ort_api.h)."""

from __future__ import annotations

from contextlib import suppress
from ctypes import CFUNCTYPE, addressof, c_char_p, c_int, c_int64, c_size_t, c_void_p, string_at
from dataclasses import dataclass, field
from typing import Any

# Numbers of functions in OrtApi, and one of OrtEpApi.
STATUS_TEXT = 2
TENSOR_INFO_OF_TYPE = 55
ELEMENT_TYPE = 60
DIMENSION_COUNT = 61
DIMENSIONS = 62
SYMBOLIC_DIMENSIONS = 63
SHAPE_OF_VALUE = 65
TENSOR_DATA = 51
RELEASE_STATUS = 93
RELEASE_VALUE = 96
RELEASE_SHAPE = 99
READ_ATTRIBUTE = 272
VALUE_NAME = 289
VALUE_TYPE = 290
TENSOR_BYTES = 318
INITIALIZER_VALUE = 326
IS_CONSTANT_INITIALIZER = 331
IR_VERSION = 335
OPSET_COUNT = 336
OPSETS = 337
INPUT_COUNT, INPUTS = 338, 339
OUTPUT_COUNT, OUTPUTS = 340, 341
INITIALIZER_COUNT, INITIALIZERS = 342, 343
NODE_COUNT, NODES = 344, 345
NODE_NAME = 349
OPERATOR_TYPE = 350
OPERATOR_DOMAIN = 351
NODE_INPUT_COUNT, NODE_INPUTS = 353, 354
NODE_OUTPUT_COUNT, NODE_OUTPUTS = 355, 356
IMPLICIT_INPUT_COUNT = 357
ATTRIBUTE_COUNT, ATTRIBUTES = 359, 360
ATTRIBUTE_TENSOR = 362
ATTRIBUTE_TYPE = 363
ATTRIBUTE_NAME = 364
SUBGRAPH_COUNT = 365
ADD_NODES = 2

MAX_SLOTS = 366  # of OrtApi that are used
Handle = int  # an address of an object of onnxruntime


class OrtApiError(RuntimeError):
    """A function of onnxruntime's C API failed."""


@dataclass(frozen=True, slots=True)
class OrtTable:
    """A table of functions. address: of the table; main: that of OrtApi, if this is another."""

    address: int
    main: int = 0
    functions: dict[tuple[int, tuple[type, ...]], Any] = field(default_factory=dict)

    def call(self, slot: int, *args: Any) -> None:
        """Call a function that returns a status. args: ctypes values. Raises OrtApiError."""
        status = self._function(slot, args, c_void_p)(*args)
        if status:
            api = OrtTable(self.main) if self.main else self
            text = api._function(STATUS_TEXT, (c_void_p(),), c_char_p)(status)
            api.release(RELEASE_STATUS, status)
            raise OrtApiError((text or b"").decode("utf-8", "replace"))

    def release(self, slot: int, handle: Handle) -> None:
        self._function(slot, (c_void_p(),), None)(handle)

    def _function(self, slot: int, args: tuple[Any, ...], result: Any) -> Any:
        key = slot, (result, *map(type, args))
        found = self.functions.get(key)
        if found is None:
            at = (c_void_p * (slot + 1)).from_address(self.address)[slot]
            assert at is not None
            found = self.functions[key] = CFUNCTYPE(result, *map(type, args))(at)
        return found

    def handle(self, slot: int, *args: Any) -> Handle:
        """Return the object that a function writes; 0 for none."""
        out = c_void_p()
        self.call(slot, *args, c_void_p(addressof(out)))
        return out.value or 0

    def size(self, slot: int, handle: Handle) -> int:
        out = c_size_t()
        self.call(slot, c_void_p(handle), c_void_p(addressof(out)))
        return out.value

    def number(self, slot: int, handle: Handle, kind: Any = c_int) -> int:
        out = kind()
        self.call(slot, c_void_p(handle), c_void_p(addressof(out)))
        return int(out.value)

    def text(self, slot: int, handle: Handle) -> str:
        """Return the string that a function points to."""
        at = self.handle(slot, c_void_p(handle))
        return string_at(at).decode("utf-8", "replace") if at else ""

    def handles(self, count_slot: int, list_slot: int, handle: Handle) -> list[Handle]:
        """Return a list of objects; 0 for those that are missing."""
        count = self.size(count_slot, handle)
        out = (c_void_p * max(count, 1))()
        self.call(list_slot, c_void_p(handle), c_void_p(addressof(out)), c_size_t(count))
        return [at or 0 for at in out[:count]]

    def attribute_bytes(self, handle: Handle, kind: int) -> bytes:
        """Return the value of an attribute as onnxruntime writes it to memory."""
        needed = c_size_t()
        at = c_void_p(addressof(needed))
        with suppress(OrtApiError):  # it reports that there is no room, and the size
            self.call(READ_ATTRIBUTE, c_void_p(handle), c_int(kind), c_void_p(), c_size_t(), at)
        out = (c_int64 * (needed.value // 8 + 1))()
        where = c_void_p(addressof(out))
        self.call(READ_ATTRIBUTE, c_void_p(handle), c_int(kind), where, c_size_t(needed.value), at)
        return string_at(addressof(out), needed.value)
