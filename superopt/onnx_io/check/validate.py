"""Validate a model without reading its weights."""

from superopt import guard
from superopt.errors import ModelError
from superopt.onnx_io.check.calls import check_calls, check_expanded_size
from superopt.onnx_io.check.checker_errors import to_model_error
from superopt.onnx_io.check.checker_server import run_checker
from superopt.onnx_io.check.declarations import check_tensors, check_types, check_versions
from superopt.onnx_io.check.structure import check_depth, check_names
from superopt.onnx_io.read.source import Source


def validate(source: Source) -> None:
    """Raise ModelError unless the model is valid.

    Rejects whatever `onnx.checker.check_model(full_check=True)` rejects, and also versions that the
    onnx package does not support, data that does not match its shape, and sizes that no machine can
    hold. Custom domains and local functions are accepted.
    """
    label = source.label
    model = source.skeleton.shared_proto
    check_versions(model, label)
    check_depth(model, label)
    nodes = check_expanded_size(model, label)
    guard.check_time(f"reading {label}")
    check_types(model, label)
    check_tensors(model, source.skeleton.blobs, label)
    check_names(model, label)
    check_calls(model, label)
    data = source.skeleton.data
    seconds = 3 + nodes // 20_000 + len(data) // (20 << 20)
    if (found := run_checker(data, seconds)) is not None:
        raise to_model_error(found, model, label)


def is_structurally_valid(source: Source) -> bool:
    """True if the model is structurally valid: complete, of a feasible size, with all names
    defined, and with a path if it has external data. A runtime may accept such a model although
    ONNX's checker rejects it."""
    label, model = source.label, source.skeleton.shared_proto
    try:
        check_versions(model, label)
        check_depth(model, label)
        check_expanded_size(model, label)
        check_tensors(model, source.skeleton.blobs, label)
        check_names(model, label)
    except ModelError:
        return False
    return source.path is not None or not source.has_external_data
