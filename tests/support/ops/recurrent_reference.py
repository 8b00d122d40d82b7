"""LSTM, GRU and RNN in float64, written from ONNX's definition of these operators.

Where this leaves open what is meant, as onnxruntime has it: sums of gates are clipped, a cell state
is not; the last states of a sequence of no steps are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
Function = Callable[[np.ndarray], np.ndarray]

# Each function of x, alpha and beta; then the numbers that it takes, with their defaults.
FUNCTIONS: dict[str, tuple[Callable[..., np.ndarray], dict[str, float]]] = {
    "Affine": (lambda x, alpha, beta: alpha * x + beta, {"alpha": 1.0, "beta": 0.0}),
    "Elu": (lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(x)), {"alpha": 1.0}),
    "HardSigmoid": (
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        {"alpha": 0.2, "beta": 0.5},
    ),
    "LeakyRelu": (lambda x, alpha: np.where(x >= 0, x, alpha * x), {"alpha": 0.01}),
    "Relu": (lambda x: np.maximum(x, 0), {}),
    "ScaledTanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), {"alpha": 1, "beta": 1}),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), {}),
    "Softplus": (lambda x: np.log1p(np.exp(x)), {}),
    "Softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "Tanh": (np.tanh, {}),
    "ThresholdedRelu": (lambda x, alpha: np.where(x >= alpha, x, 0), {"alpha": 1.0}),
}


def functions(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[Function]:
    """The functions, of which those that have an alpha take the next one, and so with betas."""
    rest = {"alpha": iter(alphas), "beta": iter(betas)}
    out: list[Function] = []
    for name in names:
        f, defaults = FUNCTIONS[name]
        numbers = {k: next(rest[k], d) for k, d in defaults.items()}
        out.append(lambda x, f=f, numbers=numbers: f(x, **numbers))  # type: ignore[misc]
    return out


def expected(
    kind: str,
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    b: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    h: np.ndarray | None = None,
    c: np.ndarray | None = None,
    p: np.ndarray | None = None,
    *,
    direction: str = "forward",
    layout: int = 0,
    clip: float = np.inf,
    input_forget: int = 0,
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    **_: Any,
) -> list[np.ndarray]:
    """Y, Y_h and, of an LSTM, Y_c."""
    some = (x, w, r, b, h, c, p)
    x, w, r, b, h, c, p = (None if a is None else a.astype(np.float64) for a in some)  # type: ignore[misc]
    if layout:
        x = x.swapaxes(0, 1)
        h, c = (None if a is None else a.swapaxes(0, 1) for a in (h, c))
    steps, batch, _ = x.shape
    directions, _, hidden = r.shape
    names = list(activations or DEFAULTS[kind] * directions)
    each = len(DEFAULTS[kind])
    made = functions(names, activation_alpha, activation_beta)
    bound = [lambda v, f=f: f(np.clip(v, -clip, clip)) for f in made]  # type: ignore[misc]
    lengths = np.full(batch, steps) if lengths is None else lengths
    y = np.zeros((steps, directions, batch, hidden))
    last = np.zeros((2, directions, batch, hidden))
    for d in range(directions):
        backward = direction == "reverse" or d == 1
        f = bound[d * each : (d + 1) * each]
        bias = np.zeros(2 * w.shape[1]) if b is None else b[d]
        wb, rb = np.split(bias, 2)
        for n in range(batch):
            state = np.zeros(hidden) if h is None else h[d, n]
            cell = np.zeros(hidden) if c is None else c[d, n]
            peep = np.zeros((3, hidden)) if p is None else p[d].reshape(3, hidden)
            order = range(lengths[n])
            for t in reversed(order) if backward else order:
                xs = x[t, n] @ w[d].T + wb
                if kind == "RNN":
                    state = f[0](xs + state @ r[d].T + rb)
                elif kind == "GRU":
                    xz, xr, xh = np.split(xs, 3)
                    (rz, rr, rh), (bz, br, bh) = np.split(r[d], 3), np.split(rb, 3)
                    z = f[0](xz + state @ rz.T + bz)
                    reset = f[0](xr + state @ rr.T + br)
                    if linear_before_reset:
                        new = f[1](xh + reset * (state @ rh.T + bh))
                    else:
                        new = f[1](xh + (reset * state) @ rh.T + bh)
                    state = (1 - z) * new + z * state
                else:
                    i, o, g, e = np.split(xs + state @ r[d].T + rb, 4)  # gates i, o, f, c
                    i = f[0](i + peep[0] * cell)
                    g = 1 - i if input_forget else f[0](g + peep[2] * cell)
                    cell = g * cell + i * f[1](e)
                    o = f[0](o + peep[1] * cell)
                    state = o * made[d * each + 2](cell)
                y[t, d, n] = state
            last[:, d, n] = (state, cell) if lengths[n] else (0 * state, 0 * cell)
    out = [y, last[0], last[1]][: 3 if kind == "LSTM" else 2]
    if layout:
        out = [y.transpose(2, 0, 1, 3), *(a.swapaxes(0, 1) for a in out[1:])]
    return out
