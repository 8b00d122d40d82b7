"""Quantized models that bench_quantized.py measures: by onnxruntime's tools, from float models of a
folder and from quantized_nets.py, whose weights and inputs are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from decoder_models import Size, growing_decoder
from quantized_nets import lstm_tagger, minilm, t5_encoder, vit_tiny, yolov8n

STATIC = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "inception_v3")
DYNAMIC = ("bert_base_12l", "bert_2l_dynamic", "llama_block")
SIZES = {"batch": 1, "sequence": 128}
CALIBRATION_INPUTS = 4
MIN_PRODUCTS = 4  # of a transformer that is quantized
BLOCK = 32  # weights of 4 bits that share a scale
EXACT, ROUNDED = 0, 4  # accuracy_level of MatMulNBits: activations of float32, or of 8 bits
PROMPT, PAST = 64, 128  # tokens


@dataclass(frozen=True)
class QuantizedModel:
    """A model's file, and the sizes of its symbols. rounds_activations: products with weights of 4
    bits may round their other operand to 8 bits."""

    name: str
    path: Path
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    rounds_activations: bool = False


def folder_models(source: Path, folder: Path) -> Iterator[QuantizedModel | ValueError]:
    """Yield the models of a folder that are there, quantized; an error for one that is not."""
    for name in (*STATIC, *DYNAMIC):
        path = source / f"{name}.onnx"
        if not path.exists():
            continue
        prepared, made = folder / f"{name}.float.onnx", folder / path.name
        _prepare(path, prepared)
        try:
            (_quantize_dynamically if name in DYNAMIC else _quantize_statically)(prepared, made)
        except ValueError as e:
            yield e
            continue
        yield QuantizedModel(name, made)


def drawn_models(folder: Path, names: str = "") -> Iterator[QuantizedModel]:
    """Yield models that are built here. names: a part of their names."""
    for name, (net, quantize) in NETS.items():
        if names not in name:
            continue
        whole, made = folder / f"{name}.float.onnx", folder / f"{name}.onnx"
        onnx.save(net(), whole)
        _prepare(whole, whole)
        quantize(whole, made)
        yield QuantizedModel(name, made, rounds_activations=quantize is _quantize_blocks_rounded)
    for level in (EXACT, ROUNDED):
        for name, (tokens, past) in {"prompt": (PROMPT, 0), "token": (1, PAST)}.items():
            whole_name = f"gpt2 4 bits level {level} {name}"
            if names not in whole_name:
                continue
            path = folder / f"{whole_name}.onnx"
            onnx.save(growing_decoder(Size(block=BLOCK, accuracy_level=level)), path)
            sizes = {"batch_size": 1, "sequence_length": tokens, "past_sequence_length": past}
            sizes["past_sequence_length + sequence_length"] = past + tokens
            yield QuantizedModel(whole_name, path, sizes, level == ROUNDED)


def _prepare(source: Path, target: Path) -> None:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(source, target, skip_symbolic_shape=True)


def _quantize_dynamically(source: Path, target: Path, **options: object) -> None:
    """Raise ValueError if the tool quantizes hardly anything."""
    from onnxruntime import quantization as tools

    fold_transposes(source)
    tools.quantize_dynamic(source, target, weight_type=tools.QuantType.QInt8, **options)
    names = [n.op_type for n in onnx.load(target).graph.node]
    count = names.count("MatMulInteger")
    if count < MIN_PRODUCTS and "DynamicQuantizeLSTM" not in names and not options:
        raise ValueError(f"{source}: onnxruntime's tool quantized only {count} products")


def _quantize_products(source: Path, target: Path) -> None:
    _quantize_dynamically(source, target, op_types_to_quantize=["MatMul"])


def _quantize_statically(source: Path, target: Path, per_channel: bool = True) -> None:
    from onnxruntime import quantization as tools

    (port,) = onnx.load(source, load_external_data=False).graph.input
    shape = [d.dim_value or 1 for d in port.type.tensor_type.shape.dim]
    is_float = port.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    rng = np.random.default_rng(0)
    inputs = iter(
        [
            {
                port.name: rng.standard_normal(shape).astype(np.float32)
                if is_float
                else rng.integers(0, 1000, shape)
            }
            for _ in range(CALIBRATION_INPUTS)
        ]
    )

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(inputs, None)

    tools.quantize_static(
        source, target, Reader(), quant_format=tools.QuantFormat.QDQ, per_channel=per_channel,
        activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
    )  # fmt: skip


def _quantize_tensors(source: Path, target: Path) -> None:
    _quantize_statically(source, target, per_channel=False)


def _quantize_blocks(source: Path, target: Path, level: int = EXACT) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(
        onnx.load(source), block_size=BLOCK, is_symmetric=True, accuracy_level=level
    )
    made.process()
    made.model.save_model_to_file(str(target))


def _quantize_blocks_rounded(source: Path, target: Path) -> None:
    _quantize_blocks(source, target, ROUNDED)


def fold_transposes(path: Path) -> None:
    """Transpose constants ahead of time: the tool quantizes only products with constants."""
    m = onnx.load(path)
    held = {t.name: t for t in m.graph.initializer}
    for n in [n for n in m.graph.node if n.op_type == "Transpose" and n.input[0] in held]:
        perm = next(a.ints for a in n.attribute if a.name == "perm")
        array = onnx.numpy_helper.to_array(held[n.input[0]]).transpose(perm)
        m.graph.initializer.append(onnx.numpy_helper.from_array(array.copy(), n.output[0]))
        m.graph.node.remove(n)
    onnx.save(m, path)


Quantize = Callable[[Path, Path], None]
NETS: Mapping[str, tuple[Callable[[], onnx.ModelProto], Quantize]] = {
    "yolov8n": (yolov8n, _quantize_statically),
    "yolov8n per tensor": (yolov8n, _quantize_tensors),
    "vit_tiny": (vit_tiny, _quantize_statically),
    "minilm QDQ": (minilm, _quantize_statically),
    "minilm": (minilm, _quantize_dynamically),
    "t5_encoder": (t5_encoder, _quantize_dynamically),
    "t5_encoder 4 bits level 0": (t5_encoder, _quantize_blocks),
    "t5_encoder 4 bits level 4": (t5_encoder, _quantize_blocks_rounded),
    "lstm": (lstm_tagger, _quantize_dynamically),
    "lstm of floats between integers": (lstm_tagger, _quantize_products),
}
