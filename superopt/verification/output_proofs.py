"""Proofs of each output of two models: by definition, and by chains of rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.report.data.report import OutputVerdict, Verdict
from superopt.report.formatting.phrases import count_text, steps_text
from superopt.verification.rule_chains import find_rule_chain
from superopt.verifier.compare.regions import compare_graphs
from superopt.verifier.compare.related_constants import Relation, relate_constants
from superopt.verifier.prove import ASSUMPTIONS, Limits
from superopt.verifier.verdict import Proved, Unknown

MAX_PROOF_SECONDS = 20.0  # limit for one proof
MAX_PROOF_WORK = 200_000
MAX_RELATING_PART = 0.5  # of the time, at most, for relating computed constants
DEFINEDNESS_TEXT = "where both are defined"
BOUNDS_TEXT = "by bounds of the difference over the reals and of float32 rounding"
CHAIN_ASSUMPTIONS = (
    *ASSUMPTIONS,
    "computed constants are equal within a few units in the last place",
)


@dataclass(frozen=True, slots=True)
class OutputProofs:
    """The proved outputs; part_count: number of proofs; assumptions: of all of them; folded_notes:
    about constants that differ in the second model. steps: by which quantized outputs may differ in
    float32, at most; 0 if that is not known. only_steps: True if some output is proved by that
    alone."""

    outputs: list[OutputVerdict]
    part_count: int = 0
    assumptions: tuple[str, ...] = ()
    folded_notes: tuple[str, ...] = ()
    steps: int = 0
    only_steps: bool = False

    def verdict(self) -> Verdict:
        """Return the verdict of the proofs alone."""
        notes = (
            *self.folded_notes,
            *((f"assumed: {'; '.join(self.assumptions)}",) if self.assumptions else ()),
        )
        if all(o.decision == "proved" for o in self.outputs):
            parts = count_text(max(self.part_count, 1), "part")
            said = (
                f"every element of {count_text(len(self.outputs), 'output')}, {DEFINEDNESS_TEXT},"
                f" by definition, in {parts}"
            )
            if self.only_steps:
                count = count_text(len(self.outputs), "output")
                said = f"equal within {steps_text(self.steps)}: {count}, {BOUNDS_TEXT}"
            elif self.steps:
                said += f"; in float32 within {steps_text(self.steps)}"
            said = "; ".join((said, *self.folded_notes))
            return Verdict(
                "proved",
                said,
                None,
                notes[len(self.folded_notes) :],
                tuple(self.outputs),
                proved_steps=self.steps,
            )
        left = [o for o in self.outputs if o.decision != "proved"]
        reason = f"{count_text(len(left), 'output')} of {len(self.outputs)} not proved"
        return Verdict("unknown", reason, None, notes, tuple(self.outputs))

    def verdict_with_trials(self, numeric: Verdict) -> Verdict:
        """Return the verdict of proofs and numeric comparison. A proof is about real numbers: if
        floats differ, the models differ."""
        refuted = {
            o.name: o.note for o in (numeric.check.outputs if numeric.check else ()) if not o.passed
        }
        outputs = tuple(
            OutputVerdict(
                o.name,
                "refuted",
                refuted[o.name] + ("; over the reals equal" if o.decision == "proved" else ""),
            )
            if o.name in refuted
            else o
            for o in self.outputs
        )
        if numeric.decision == "differs":
            return replace(numeric, outputs=outputs)
        mine = self.verdict()
        if mine.decision == "proved":
            reason = mine.reason
            if numeric.steps:
                most = steps_text(numeric.steps)
                reason += f"; rounded, quantized outputs differ by at most {most}"
            notes = (*mine.notes, *numeric.notes)
            return replace(
                mine, reason=reason, check=numeric.check, notes=notes, steps=numeric.steps
            )
        return replace(numeric, notes=(*mine.notes, *numeric.notes), outputs=outputs)


def prove_by_definition(
    first: ir_graph.Graph,
    second: ir_graph.Graph,
    names: Sequence[str],
    seconds: float,
    seed: int,
    stop: Callable[[], bool],
) -> OutputProofs:
    """Try to prove each output from the operators' definitions, for at most `seconds`. `second` is
    over the inputs of `first`, see `model_interface.graph_on_inputs_of`."""
    end = time.monotonic() + seconds
    a, b = (fold_constants(graph).graph for graph in (first, second))
    b, relations = relate_constants(a, b, MAX_RELATING_PART * seconds)
    left = max(end - time.monotonic(), 0.0)
    limits = Limits(seconds=min(MAX_PROOF_SECONDS, seconds), work=MAX_PROOF_WORK)
    found = compare_graphs(a, b, limits, left, seed, stop)
    outputs = [
        OutputVerdict(name, "unknown", v.reason)
        if isinstance(v, Unknown)
        else OutputVerdict(
            name,
            "proved",
            "it is the same value" if v is None else f"by definition, {DEFINEDNESS_TEXT}",
        )
        for name, v in zip(names, found.outputs, strict=True)
    ]
    proofs = [r.verdict for r in found.regions] + [v for v in found.outputs if v is not None]
    assumed = dict.fromkeys(a for v in proofs if isinstance(v, Proved) for a in v.scope.assumes)
    return OutputProofs(
        outputs, len(found.regions), tuple(assumed), _folded_constant_notes(relations)
    )


def _folded_constant_notes(relations: Sequence[Relation]) -> tuple[str, ...]:
    """Return notes about constants that were moved, or computed ahead of time."""
    moved = sum(r.ulps is None for r in relations)
    ulps = [r.ulps for r in relations if r.ulps is not None]
    said = []
    if moved:
        said.append(f"{count_text(moved, 'constant')} with the same elements in another order")
    if ulps:
        most = f"{max(ulps):.2g}" if max(ulps) else "0"
        said.append(f"{count_text(len(ulps), 'folded constant')} equal within {most} ulp")
    return tuple(said)


def prove_by_chains(
    first: ir_graph.Graph,
    second: ir_graph.Graph,
    proof: OutputProofs,
    deadline: float,
    on_output: Callable[[str], None],
    stop: Callable[[], bool],
) -> OutputProofs:
    """Also prove outputs by chains of proved rules from one model to the other, until the
    deadline."""
    graphs = [fold_constants(graph).graph for graph in (first, second)]
    outputs = list(proof.outputs)
    open_ = [k for k, o in enumerate(outputs) if o.decision != "proved"]
    for n, k in enumerate(open_):
        on_output(outputs[k].name)
        seconds = (deadline - time.monotonic()) / (len(open_) - n)
        chain = find_rule_chain(graphs[0], graphs[1], k, seconds, stop)
        if isinstance(chain, str):
            outputs[k] = replace(outputs[k], reason=f"{outputs[k].reason}; by rules: {chain}")
        else:
            said = f"by {count_text(len(chain), 'rewrite')}: {', '.join(chain)}; {DEFINEDNESS_TEXT}"
            outputs[k] = OutputVerdict(outputs[k].name, "proved", said)
    chained = any(o.decision == "proved" for o in (outputs[k] for k in open_))
    assumed = dict.fromkeys((*proof.assumptions, *(CHAIN_ASSUMPTIONS if chained else ())))
    return replace(proof, outputs=outputs, assumptions=tuple(assumed))
