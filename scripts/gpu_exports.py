"""Twelve models of torchvision, timm and transformers, exported to ONNX by torch.

Weights are drawn, and transformers have few layers. scripts/gpu_kernel_errors.py compares them
kernel by kernel on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH, LENGTH, SIDE, VOCABULARY = 3, 128, 224, 1000


def export(name: str, folder: Path) -> Path:
    """Write the model as ONNX, with its weights beside it; the path of the graph.

    Raises KeyError for a name that EXPORTS does not have, ImportError where its library is not
    installed."""
    import torch

    torch.manual_seed(1)
    net, inputs = EXPORTS[name]()
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Single(net.eval()), inputs, str(path), input_names=["x"], output_names=["y"],
            dynamo=True, verbose=False,
        )  # fmt: skip
    return path


def _Single(net: Any) -> Any:
    """The net with its first output alone."""
    import torch

    class Single(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            out = self.net(x)
            return out if isinstance(out, torch.Tensor) else out[0]

    return Single()


def _image(batch: int = 2) -> tuple[Any]:
    import torch

    return (torch.randn(batch, 3, SIDE, SIDE),)


def _tokens() -> tuple[Any]:
    import torch

    return (torch.randint(0, VOCABULARY, (BATCH, LENGTH)),)


def _torchvision(name: str) -> Callable[[], tuple[Any, tuple[Any]]]:
    def make() -> tuple[Any, tuple[Any]]:
        import torchvision

        return getattr(torchvision.models, name)(weights=None), _image()

    return make


def _timm(name: str, **how: Any) -> Callable[[], tuple[Any, tuple[Any]]]:
    def make() -> tuple[Any, tuple[Any]]:
        import timm

        return timm.create_model(name, pretrained=False, **how), _image()

    return make


def _transformer(name: str, **config: Any) -> Callable[[], tuple[Any, tuple[Any]]]:
    """A text model; config: of what is not the library's default."""

    def make() -> tuple[Any, tuple[Any]]:
        import transformers

        settings = getattr(transformers, f"{name}Config")
        ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        made = settings(vocab_size=VOCABULARY, use_cache=False, **ids, **config)
        return getattr(transformers, f"{name}Model")(made), _tokens()

    return make


EXPORTS: dict[str, Callable[[], tuple[Any, tuple[Any]]]] = {
    "resnet18": _torchvision("resnet18"),
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "efficientnet_b0": _torchvision("efficientnet_b0"),
    "convnext_tiny": _torchvision("convnext_tiny"),
    "vit_small": _timm("vit_small_patch16_224", depth=2),
    "swin_tiny": _timm("swin_tiny_patch4_window7_224"),
    "mixer_small": _timm("mixer_s16_224"),
    "gpt2": _transformer("GPT2", n_layer=2),
    "bert": _transformer("Bert", num_hidden_layers=2),
    "albert": _transformer(
        "Albert",
        num_hidden_layers=2,
        hidden_size=768,
        intermediate_size=3072,
        num_attention_heads=12,
    ),
    "llama": _transformer(
        "Llama",
        num_hidden_layers=2,
        hidden_size=512,
        intermediate_size=1376,
        num_attention_heads=8,
        num_key_value_heads=4,
    ),
    "distilbert": _transformer("DistilBert", n_layers=2),
}
