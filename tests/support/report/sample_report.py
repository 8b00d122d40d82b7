"""Reports for tests: one of each shape that the writers must cope with."""

from dataclasses import replace

from superopt.report.data.attribution import AblatedPart, Ablation, WaterfallStage
from superopt.report.data.graph_change import GraphChange, GraphNode, StepNodes
from superopt.report.data.report import (
    REPORT_VERSION,
    CheckResult,
    Latency,
    OutputError,
    Rejected,
    Report,
    SearchStats,
    Step,
    UnusedRules,
    WorstStep,
)
from tests.support.report.sample_rules import HOSTILE_NAME, HOSTILE_RULE, ONCE

# Two products are added; the result has one product and a split.
GRAPH = GraphChange(
    ("x",),
    ("out",),
    (
        GraphNode("/abs", "Abs", ("x",), ("r",), ""),
        GraphNode("/h1", "MatMul", ("r", "w1"), ("h1_i",), ""),
        GraphNode("/h2", "MatMul", ("r", "w2"), ("h1_f",), ""),
        GraphNode("/sum", "Add", ("h1_i", "h1_f"), ("s",), ""),
        GraphNode("", "Softmax", ("s",), ("out",), "axis=-1"),
    ),
    (
        GraphNode("/abs", "Abs", ("x",), ("r",), ""),
        GraphNode("matmul", "MatMul", ("r", "w"), ("matmul_out",), ""),
        GraphNode("split", "Split", ("matmul_out",), ("h1_i", "h1_f"), "axis=1"),
        GraphNode("/sum", "Add", ("h1_i", "h1_f"), ("s",), ""),
        GraphNode("", "Softmax", ("s",), ("out",), "axis=-1"),
    ),
    ((0, 0), (3, 3), (4, 4)),
    (
        StepNodes((1, 2), (1, 2)),
        StepNodes((1, 2), (2,)),
        StepNodes((2,), (1,)),
        StepNodes((), (3,)),
    ),
)
MACHINE = "AMD EPYC 7B13, 2 cores"
RUNTIME = "onnxruntime 1.31.1"
BEFORE = Latency(4210.0, 4150.5, 4302.25, 210, 2, RUNTIME, MACHINE)
AFTER = Latency(1975.0, 1931.0, 2010.0, 210, 2, RUNTIME, MACHINE)

FASTER = Report(
    version=REPORT_VERSION,
    model_name="nasrnn.onnx",
    model_sha256="3f" * 32,
    optimized_sha256="a1" * 32,
    nodes_before=320,
    nodes_after=215,
    operators=(("Concat", 10, 12), ("MatMul", 80, 20), ("Split", 0, 5), ("Tanh", 230, 178)),
    opaque=(("topk_1", "TopK: no tensor expression (opset 11)"),),
    cost_before_us=3900.0,
    cost_after_us=1800.0,
    latency_before=BEFORE,
    latency_after=AFTER,
    speedup=(2.05, 2.13, 2.2),
    steps=(
        Step(
            "merge-matmul",
            "rule",
            ("h1_i", "h1_f"),
            960.0,
            "A",
            "E1",
            "(MatMul(x, a), MatMul(x, b))",
            "Split(MatMul(x, Concat(a, b, axis=1)), axis=1, sizes=(512, 512))",
        ),
        Step(
            "merge-matmul",
            "rule",
            ("h2_i", "h2_f"),
            962.0,
            "A",
            "E1",
            "(MatMul(x, a), MatMul(x, b))",
            "Split(MatMul(x, Concat(a, b, axis=1)), axis=1, sizes=(512, 512))",
        ),
        Step(
            "fold-constant", "fold", ("w_all",), 210.0, "C", "E0", "Concat(a, b, axis=1)", "w_all"
        ),
        Step("split-add", "rule", ("s",), -31.5, "C", "E0", "Split(Add(x, y))", "Add(Split(x), y)"),
    ),
    rules=(ONCE,),
    rejected=(
        Rejected("matmul-chain", ("h3",), "cost", "saves -12 us on this machine", 1),
        Rejected(
            "bn-fold", ("h4",), "condition", "constant(scale): scale is computed at run time", 7
        ),
    ),
    left_out=(
        UnusedRules("tier", ("cast-same",)),
        UnusedRules("unseen", ("relu-relu", "relu-abs")),
    ),
    check=CheckResult(
        True,
        5,
        (OutputError("out", 3.1e-07, 4e-08, 2.2e-07, 2.9e-07, 3e-08, 2e-07, 1e-4, 1e-5, True, ""),),
        "compared with the original in float64",
        (),
    ),
    worst_step=WorstStep(
        2, 2, 4, ("merge-matmul",), ("h2_i", "h2_f"), "out", "normal", 2.95e-07, 3.08e-07
    ),
    worst_step_note="",
    search=SearchStats(12345, 1020.4, 12.1, "budget", 3, 41, 220),
    notes=("Rules of tier C are tested, not proved.",),
    machine=MACHINE,
    changed=True,
    versions=(("superopt", "0.1.0"), ("onnx", "1.23.2"), ("onnxruntime", "1.31.1")),
    graph=GRAPH,
)

UNCHANGED = replace(
    FASTER,
    model_name="resnet18.onnx",
    optimized_sha256=FASTER.model_sha256,
    nodes_before=69,
    nodes_after=69,
    operators=(("Conv", 69, 69),),
    opaque=(),
    cost_after_us=FASTER.cost_before_us,
    latency_after=None,
    speedup=None,
    steps=(),
    rules=(),
    check=None,
    worst_step=None,
    worst_step_note="nothing was rewritten",
    changed=False,
    notes=(),
    graph=None,
)

UNTIMED = replace(FASTER, latency_before=None, latency_after=None, speedup=None, search=None)

HOSTILE = replace(
    FASTER,
    model_name=HOSTILE_NAME,
    operators=((HOSTILE_NAME, 1, 2),),
    opaque=((HOSTILE_NAME, HOSTILE_NAME),),
    rules=(HOSTILE_RULE,),
    left_out=(UnusedRules("opset", (HOSTILE_NAME,)),),
    worst_step=WorstStep(
        1, 3, 4, (HOSTILE_NAME,), (HOSTILE_NAME,), HOSTILE_NAME, HOSTILE_NAME, 1e-7, 2e-7
    ),
    steps=tuple(
        replace(s, rule=HOSTILE_NAME, where=(HOSTILE_NAME,), before=HOSTILE_NAME)
        for s in FASTER.steps
    ),
    rejected=tuple(
        replace(r, rule=HOSTILE_NAME, detail=HOSTILE_NAME, where=(HOSTILE_NAME,))
        for r in FASTER.rejected
    ),
    notes=(HOSTILE_NAME,),
    machine=HOSTILE_NAME,
    versions=((HOSTILE_NAME, HOSTILE_NAME),),
    graph=replace(
        GRAPH,
        inputs=(HOSTILE_NAME,),
        before=tuple(
            GraphNode(HOSTILE_NAME, HOSTILE_NAME, (HOSTILE_NAME,), (f"{HOSTILE_NAME}{n}",), "")
            for n in range(len(GRAPH.before))
        ),
    ),
)
# The same result with measured stages, and with what each part gains.
ABLATED = replace(
    FASTER,
    waterfall=(
        WaterfallStage("original", "original", 4000.0, True, 0, (3900.0, 4100.0)),
        WaterfallStage("folding and simplification", "folding", 4000.0, True, 0, (3900.0, 4100.0)),
        WaterfallStage("merge-matmul", "rule", 1900.0, True, 2, (1800.0, 2000.0)),
        WaterfallStage("split-add", "rule", 1975.0, True, 1),
        WaterfallStage("result", "result", 1975.0, True),
    ),
    ablation=Ablation(
        (
            AblatedPart(
                "merge-matmul", "rule", 2, 1, (1.9, 2.0, 2.1), None, "with 1 dependent step"
            ),
            AblatedPart("split-add", "rule", 1, 0, (0.9, 0.96, 1.01)),
            AblatedPart("constant folding", "folding", 0, 0, None, None, "not timed: no time left"),
        ),
        75,
        3,
        ("onnxruntime's own optimizations are in all of them",),
    ),
)
# Predicted for a GPU that is not here.
PREDICTED = replace(
    UNTIMED,
    cost_source="predicted for the kernels of an NVIDIA H100 in fp16: not measured here",
    waterfall=(
        WaterfallStage("kernels alone", "original", 9.0, False),
        WaterfallStage("fusion of operators into kernels", "decision", 8.0, False),
        WaterfallStage("merge-matmul", "rule", 5.5, False, 2),
        WaterfallStage("not predicted", "rest", 6.0, False),
        WaterfallStage("result", "result", 6.0, False),
    ),
    ablation=Ablation((AblatedPart("merge-matmul", "rule", 2, 0, None, 1.5),), 0, 0),
)

ALL = {
    "faster": FASTER,
    "unchanged": UNCHANGED,
    "untimed": UNTIMED,
    "hostile": HOSTILE,
    "ablated": ABLATED,
    "predicted": PREDICTED,
}
