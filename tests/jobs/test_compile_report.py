"""What `superopt compile` reports."""

from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.jobs.compile_report import report_compilation
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.sequence_models import audio_net


def test_it_names_the_sizes_of_inputs_only() -> None:
    """Shape inference names sizes of results that it does not know, such as those of an LSTM whose
    number of steps is computed."""
    made = report_compilation(read_model(audio_net()), CompileOptions("cpu", 1), {"time": 20})
    assert made.sizes == (("time", 20),)
