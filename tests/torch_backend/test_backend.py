"""Modules through torch.compile: what superopt compiles, and what torch runs, with the reason."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from superopt.errors import UsageError

torch = pytest.importorskip("torch", reason="no torch")
pytest.importorskip("onnxscript", reason="no onnxscript, by which torch exports ONNX")
backend_ = pytest.importorskip("superopt.torch_backend.backend")
superopt_backend, nn = backend_.superopt_backend, torch.nn

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def layers(width: int = 16) -> Any:
    return nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width)).eval()


class Convolutions(nn.Module):
    """A residual block, normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.a(x)))
        return {"pooled": (y + self.b(y)).mean((2, 3)), "none": None, "image": y}


def attention(q: Any, k: Any, v: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def close(got: Any, wanted: Any, error: float = 1e-4) -> None:
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for name in wanted:
            close(got[name], wanted[name], error)
    elif isinstance(wanted, tuple | list):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            close(a, b, error)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(got, wanted, rtol=error, atol=error)
    else:
        assert got == wanted


def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets each graph that is compiled."""
    made: list[Any] = []
    compile_graph = backend_.compile_graph

    def record_graph(*args: Any) -> Any:
        made.append(compile_graph(*args))
        return made[-1]

    monkeypatch.setattr(backend_, "compile_graph", record_graph)
    return made


x = torch.arange(12.0).reshape(3, 4) / 7
COMPILED: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "layers": (layers(), (torch.randn(5, 16),)),
    "convolutions": (Convolutions().eval(), (torch.randn(2, 3, 12, 12),)),
    "attention": (attention, tuple(torch.randn(3, 1, 4, 7, 8))),
    "float16": (lambda a: torch.softmax(a + 1, 1), (x.half(),)),
    "bfloat16": (lambda a: (a * 2).relu(), (x.bfloat16(),)),
    "float64": (lambda a: (a.exp(), a.sum()), (x.double(),)),
    "int64": (lambda a: (a + 1) * 3 - a // 2, (torch.arange(-6, 6),)),
    "bool": (lambda a: torch.where(a > 0.5, a, -a) * (a < 1), (x,)),
    "not contiguous": (lambda a: a @ a.T + 1, (x.T,)),
    "scalar": (lambda a, b: a * b + 2.5, (x, torch.tensor(0.5))),
    "a number": (lambda a, n: a * n, (x, 3)),
    "no elements": (lambda a: a.relu() + 1, (torch.zeros(0, 4),)),
    "an input as output": (lambda a: (a, a + 1, None), (x,)),
    "nested": (lambda a: {"y": [a + 1, (a * 2,)], "n": a.shape[0]}, (x,)),
    "a float": (lambda a, n: a * n, (x, 0.3)),
    "embedding": (nn.Embedding(20, 6).eval(), (torch.tensor([[1, 19], [0, 3]]),)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", COMPILED)
def test_results_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, args = COMPILED[name]
    made = graphs(monkeypatch)
    with torch.no_grad():
        wanted = f(*args)
        compiled = torch.compile(f, backend=superopt_backend, fullgraph=True)
        for _ in range(2):
            close(compiled(*args), wanted, 1e-2 if "float16" in name else 1e-4)
    assert len(made) == 1


class InTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, a: Any) -> Any:
        return self.norm(a) * 2


def changes_argument(a: Any) -> Any:
    return a.add_(1) * 2


IN_TORCH: dict[str, tuple[Function, tuple[Any, ...], str]] = {
    "gradients": (layers(), (torch.randn(5, 16),), "gradients are needed"),
    "an argument": (changes_argument, (x,), "it changes an argument in place"),
    "buffers": (InTraining().train().requires_grad_(False), (x,), "it changes an argument"),
    "a view": (lambda a: (a[1:], a + 1), (x,), "is a view of an argument"),
    "random": (lambda a: nn.functional.dropout(a, 0.5, True), (x + 1,), "differs from torch's"),
    "no form in ONNX": (lambda a: torch.linalg.svdvals(a @ a.T) + 1, (x,), ""),
}


@pytest.mark.parametrize("name", IN_TORCH)
def test_what_torch_runs_is_said(name: str) -> None:
    """Results, changes of arguments and gradients are those of torch."""
    f, args, why = IN_TORCH[name]
    copies = [a.clone() for a in args]
    with torch.set_grad_enabled(name == "gradients"):
        compiled = torch.compile(f, backend=superopt_backend)
        with pytest.warns(RuntimeWarning, match=rf"superopt: a graph of .* in torch.*{why}"):
            got = compiled(*args)
        if name != "random":
            close(got, f(*copies))
        for a, b in zip(args, copies, strict=True):
            close(a, b)


def test_gradients_flow() -> None:
    f, a = layers(), torch.randn(2, 16, requires_grad=True)
    compiled = torch.compile(f, backend=superopt_backend)
    with pytest.warns(RuntimeWarning, match="gradients are needed"):
        compiled(a).sum().backward()
    assert a.grad is not None
    assert f[0].weight.grad is not None


def test_one_program_serves_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, f = graphs(monkeypatch), Convolutions().eval()
    with torch.no_grad():
        compiled = torch.compile(f, backend=superopt_backend, dynamic=True)
        for n, size in ((2, 12), (3, 20), (7, 9), (2, 31)):
            a = torch.randn(n, 3, size, size)
            close(compiled(a), f(a))
    assert len(made) == 1
    assert len(made[0].given.sizes) == 2


def test_other_weights_are_compiled_again() -> None:
    f, a = layers(), torch.randn(5, 16)
    others = layers().state_dict()
    with torch.no_grad():
        compiled = torch.compile(f, backend=superopt_backend)
        close(compiled(a), f(a))
        f[0].weight.mul_(1.5)  # as an optimizer does
        close(compiled(a), f(a))
        f.load_state_dict(others)
        close(compiled(a), f(a))
        f[2].bias.data = torch.ones(16)
        close(compiled(a), f(a))


def test_other_floats_are_compiled_again() -> None:
    """With dynamic shapes attributes as eps are arguments."""
    f, a = nn.LayerNorm(4).eval(), torch.randn(5, 4)
    with torch.no_grad():
        compiled = torch.compile(f, backend=superopt_backend, dynamic=True)
        for eps in (1e-5, 0.5):
            f.eps = eps
            close(compiled(a), f(a))


def test_inference_mode() -> None:
    with torch.inference_mode():
        f, a = layers(), torch.randn(5, 16)
        compiled = torch.compile(f, backend=superopt_backend)
        close(compiled(a), f(a))
        close(compiled(a), f(a))


def test_weights_are_not_copied_for_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ONNX model's initializers are in the memory of the parameters."""
    seen: list[Any] = []
    export_graph = backend_.export_graph

    def record_model(*args: Any) -> Any:
        seen.append(export_graph(*args))
        return seen[-1]

    monkeypatch.setattr(backend_, "export_graph", record_model)
    f = nn.Linear(64, 32, bias=False).eval()
    with torch.no_grad():
        torch.compile(f, backend=superopt_backend)(torch.randn(3, 64))
    places = {v.const_value.numpy().ctypes.data for v in seen[0].graph.initializers.values()}
    assert f.weight.data_ptr() in places


def test_results_are_separate() -> None:
    f, a = layers(), torch.randn(5, 16)
    with torch.no_grad():
        compiled = torch.compile(f, backend=superopt_backend)
        first = compiled(a)
        kept = first.clone()
        compiled(a + 1)
        torch.testing.assert_close(first, kept, rtol=0, atol=0)
        first.zero_()
        torch.testing.assert_close(compiled(a), kept, rtol=0, atol=0)


def test_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graphs(monkeypatch)

    def f(a: Any) -> Any:
        b = (a * 2).relu()
        torch._dynamo.graph_break()
        return b.exp() + 1

    with torch.no_grad():
        close(torch.compile(f, backend=superopt_backend)(x), f(x))
    assert len(made) == 2


def test_threads() -> None:
    f = layers()
    inputs = [torch.randn(5, 16) for _ in range(6)]
    with torch.no_grad():
        compiled = torch.compile(f, backend=superopt_backend)
        compiled(inputs[0])
        wanted = [f(a) for a in inputs]
    wrong: list[int] = []

    def run(n: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(compiled(inputs[n]), wanted[n], atol=1e-4):
                    wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    made, f, a = graphs(monkeypatch), layers(), torch.randn(5, 16)
    with torch.no_grad():
        torch.compile(f, backend=superopt_backend, options={"threads": 2})(a)
        assert made[0].exe.device.kernel_threads == 2
        torch._dynamo.reset()
        for options, what in (({"tile": 3}, "no option 'tile'"), ({"fallback": "x"}, "fallback")):
            with pytest.raises(Exception, match=what) as e:
                torch.compile(f, backend=superopt_backend, options=options)(a)
            assert isinstance(e.value, UsageError) or "UsageError" in str(e.value)


def test_wrong_results_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that were wrong is noticed at the first call."""
    to_tensor = "superopt.torch_backend.compiled_graph.to_tensor"
    monkeypatch.setattr(to_tensor, lambda a: torch.from_numpy(a) * 1.01)
    f, a = layers(), torch.randn(5, 16)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="differs from torch's by"):
        close(torch.compile(f, backend=superopt_backend)(a), f(a))


def test_entry_point() -> None:
    """torch finds the backend by its name where superopt is installed."""
    from importlib.metadata import entry_points

    found = [e for e in entry_points(group="torch_dynamo_backends") if e.name == "superopt"]
    if not found:
        pytest.skip("superopt is not installed")
    assert found[0].load() is superopt_backend
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        close(torch.compile(layers(), backend="superopt")(torch.zeros(2, 16)).shape, (2, 16))
