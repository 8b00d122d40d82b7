"""The result of `superopt.optimize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superopt.optimization.result import OptimizedModel

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable


class Optimized(OptimizedModel):
    """The result of `superopt.optimize`.

    Attributes:
        report: All results as plain data: steps, latencies in microseconds, errors, notes.
        changed: Whether the model differs from the input.

    Example:
        >>> result = superopt.optimize("model.onnx", budget=8, cost="roofline")
        >>> isinstance(result.changed, bool), result.report.model_name
        (True, 'model.onnx')
    """

    __slots__ = ()

    def compile(self, **options: Any) -> Executable:
        """Compile the model: `superopt.compile(self.model, ...)`, by default for the threads, the
        GPU and its precision, and with the store of `optimize`.

        Args:
            options: As for `superopt.compile`.

        Example:
            >>> exe = superopt.optimize("model.onnx", target="cpu", budget=8).compile()
            >>> exe(x=np.zeros((4, 6), np.float32))["p"].shape
            (4, 5)
        """
        from superopt.api.compilation import compile

        request = self._result.request
        usual: dict[str, Any] = {"threads": request.threads, "store": request.store}
        if request.target == "cuda":
            usual |= {"target": "cuda", "precision": request.precision}
        return compile(self.model, **{**usual, **options})
