#!/usr/bin/env python3
"""Partially equivalent programs: are the boxes exact, and what is proved of them, in which time?

    scripts/bench_partial.py [--parts exactness,families] [--markdown FILE]

exactness: pairs that enumeration finds: boxes against the comparison of every element, by another
    evaluator and other inputs.
families: those of rules/library/partial: boxes, as formulas of the sizes, and corrections, proved.
analysis: subgraphs at the sizes of models, and with --models all mutants of the windows of models:
    the time to find regions.
random: sizes of the families: mutants with corrections against the programs, on every element.
mutation, with --models FOLDER (../shared/models): the time to find mutants of a model's windows and
    subprograms, with an empty store and with a full one; and no kernels kept of earlier runs.
enumeration: what `rules generate --partial` finds, in the folder --mutants, of use to --models.
models, with --models: the compiled model with and without partial rules, and the better of
    onnxruntime and OpenVINO, in turns, one thread, for each of --batches.

What is asked for by --parts (else all) replaces its section of the file, and says on which machine.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from partial_enumeration import enumeration, table
from partial_subgraphs import given, subgraphs
from peers import drawn, in_turns

import superopt
from superopt import ort
from superopt.api.functions import generate_mutants
from superopt.cost.machine import this_machine
from superopt.generate.enumeration.serialize import enumerate_family, read_enumeration
from superopt.generate.families.registry import FAMILIES
from superopt.generate.generalize.term_graphs import term_value
from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model as read_model
from superopt.onnx_io.read.weightless import draw_weights
from superopt.partial.correct import sized_pairs, symbolic_boxes
from superopt.partial.correct.corrections import NoCorrection
from superopt.partial.correct.generalize import graph_inputs
from superopt.partial.correct.partial_rules import (
    CORRECTION_KINDS,
    corrected_value,
    load_pairs,
    partial_rule,
)
from superopt.partial.correct.split import split_pairs
from superopt.partial.enumerate.axis_moves import window_mutants
from superopt.partial.regions import boxes
from superopt.partial.regions.find import find_regions
from superopt.rulegen.window_mutants import find_windows
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F32
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved
from tests.support.partial.regions import by_floats

ENUMERATED = ("borders", "kernels", "pools")
TIMES = 5
FLOATS = 300  # inputs on which maxima are compared
MOST_MS = 50  # that regions of a subgraph should take


@dataclass
class Exact:
    """Of a family of pairs: how many, of how many the boxes are right, and milliseconds. bound: of
    the chance that an element is called equal and is not."""

    family: str
    bound: str
    right: int = 0
    ms: list[float] = field(default_factory=list)


def exact(name: str) -> list[Exact]:
    """Of products and sums; and of maxima, of which random inputs of any order have no bound."""
    family = FAMILIES[name]()
    rows = [Exact(name, "degree / 2^31, squared"), Exact(f"{name}, with maxima", "no bound")]
    for p in read_enumeration(enumerate_family((family, min(3, family.max_ops), 0))).partial:
        inputs = tuple(given(f"v{k}", *family.inputs[i]) for k, i in enumerate(p.equation.inputs))
        a, b = (term_value(s, family, inputs) for s in (p.equation.left, p.equation.right))
        begin = time.process_time()
        found = find_regions(a, b)
        row = rows[found.chance is None]
        row.ms.append(1e3 * (time.process_time() - begin))
        maxima = found.chance is None
        truth = by_floats(a, b, FLOATS) if maxima else everywhere(a, b, inputs)
        row.right += bool((found.mask() == truth).all())
    return rows


def exact_row(r: Exact) -> list[str]:
    ms = [f"{median(r.ms):.0f}", f"{max(r.ms):.0f}"]
    return [r.family, r.bound, str(len(r.ms)), str(r.right), *ms]


def everywhere(a: graph.Value, b: graph.Value, inputs: tuple[graph.Input, ...]) -> np.ndarray:
    """Which elements are equal, each of them compared."""
    same = np.ones(a.type.shape, bool)
    for seed in (101, 102):
        domain = PrimeField(seed)
        feeds = {i.name: domain.random(i.type, seed + k) for k, i in enumerate(inputs)}
        left, right = evaluate(graph.Graph(inputs, (a, b)), feeds, domain)
        same &= domain.elements_equal(np.asarray(left), np.asarray(right), F32)
    return same


def families(seconds: float) -> Iterator[list[str]]:
    for pair in load_pairs():
        begin = time.perf_counter()
        made = partial_rule(pair, Limits(seconds=seconds))
        took = time.perf_counter() - begin
        right = [symbolic_boxes.format_symbolic_box(p) for p in made.parts.equal]
        wrong = [symbolic_boxes.format_symbolic_box(p) for p in made.parts.different]
        ways = dict.fromkeys(c.kind for c in made.corrections if c.is_proved)
        proved = sum(isinstance(v, Proved) for _, v in made.claims)
        yield [
            pair.name, " ".join(right), " ".join(wrong) or "none",
            f"{proved} of {len(made.claims)}", ", ".join(ways) or "none", f"{took:.2f}",
        ]  # fmt: skip


def analysis() -> Iterator[list[str]]:
    for name, a, b in subgraphs():
        ms = []
        for _ in range(TIMES):
            begin = time.process_time()
            found = find_regions(a, b)
            ms.append(1e3 * (time.process_time() - begin))
        wrong = " ".join(map(boxes.format_box, found.different)) or "none"
        yield [
            name,
            f"{100 * found.equal_share:.1f} %",
            wrong,
            str(found.compared_elements),
            f"{median(ms):.0f}",
        ]


def of_windows(folder: Path, held: Path) -> Iterator[list[str]]:
    """The time for each mutant of each distinct window of a model, when it is first asked for; but
    not for Python's collections of what is no longer used, which come at any of them."""
    for path in filled(folder, 1, held):
        found = find_windows(import_model(read_model(path)).graph)
        ms = []
        for w in {w.key: w for w in found if w is not None}.values():
            gc.collect()
            gc.disable()
            for program in w.sample_values():
                for _, mutant in window_mutants(program):
                    begin = time.process_time()
                    find_regions(program, mutant)
                    ms.append(1e3 * (time.process_time() - begin))
            gc.enable()
        if ms:
            later = sum(x > MOST_MS for x in ms)
            yield [path.stem, str(len(ms)), f"{median(ms):.0f}", f"{max(ms):.0f}", str(later)]


def fuzzed(count: int) -> tuple[int, int, int]:
    """Corrected mutants; of these wrong ones; and pairs that have no correction at some sizes."""
    rng = Random(0)
    pairs = [p for own in load_pairs() for p in (own, *split_pairs(own))]
    made = wrong = without = 0
    while made < count:
        pair = rng.choice(pairs)
        some = sized_pairs.pair_at(
            pair, {n: rng.randint(1, 9) for n in sized_pairs.size_names(pair)}
        )
        if some is None:
            continue
        found = find_regions(some.program, some.mutant)
        for how in CORRECTION_KINDS:
            try:
                fixed = corrected_value(how, some, found)
            except NoCorrection:
                without += 1
                continue
            made += 1
            given_ = tuple(graph_inputs(some.program, fixed))
            wrong += not everywhere(some.program, fixed, given_).all()
    return made, wrong, without


MODELS = ("bert_base_12l", "csrnet", "inception_v3", "resnet18")
MORE = ("mobilenet_v2", "resnet50", "squeezenet1_1")  # that are mutated, too


def filled(folder: Path, batch: int, out: Path, names: Sequence[str] = MODELS) -> Iterator[Path]:
    """The models with drawn weights, for this batch."""
    for name in names:
        model = draw_weights(folder / f"{name}.onnx")
        del model.graph.value_info[:]
        for v in (*model.graph.input, *model.graph.output):
            v.type.tensor_type.shape.dim[0].dim_value = batch
        reshaped(model, batch)
        path = out / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        yield path


def reshaped(model: onnx.ModelProto, batch: int) -> None:
    """Shapes that it is given, joined of numbers, begin with the batch (BERT's do with 1)."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([batch]), "the batch"))
    made = {n.output[0]: n for n in model.graph.node}
    for n in model.graph.node:
        shape = made.get(n.input[1]) if n.op_type == "Reshape" else None
        if shape is not None and shape.op_type == "Concat":
            shape.input[0] = "the batch"


def mutation(folder: Path, held: Path) -> Iterator[list[str]]:
    for path in filled(folder, 1, held, sorted((*MODELS, *MORE))):
        os.environ["SUPEROPT_CACHE"] = str(held / f"{path.stem}.kernels")
        took = []
        for _ in range(2):
            out, store = held / f"{path.stem}.mutants", held / f"{path.stem}.db"
            begin, own = time.perf_counter(), time.process_time()
            (made,) = generate_mutants(out, model=path, store=store).families
            took += [time.perf_counter() - begin, time.process_time() - own]
        yield [
            path.stem, str(made.enumerated), str(made.corrected), str(made.proved),
            *(f"{s:.1f}" for s in took),
        ]  # fmt: skip


def models(folder: Path, batch: int, seconds: float, held: Path) -> Iterator[list[str]]:
    """Each in turns with itself without partial rules, then with the peers."""
    for path in filled(folder, batch, held):
        session = ort.load_session(path, 1)
        feeds = drawn(session, 1, {})
        both = [superopt.compile(path, threads=1, partial=p, shapes=()) for p in (True, False)]
        took: list[list[float]] = [[], []]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(took[0]) < TIMES:
            for exe, ms in zip(both, took, strict=True):
                begin = time.perf_counter()
                exe.run(feeds)
                ms.append(1e3 * (time.perf_counter() - begin))
        with_, without = (median(ms[1:]) for ms in took)
        peers = in_turns(both[0], session, path, feeds, 1, seconds)
        yield [
            path.stem, str(batch), f"{with_:.2f}", f"{without:.2f}", f"{without / with_:.2f}",
            f"{peers['ratio']:.2f}", f"{peers['error']:.0e}",
        ]  # fmt: skip


Options = argparse.Namespace


def exactness_part(_: Options) -> Iterator[str]:
    rows = [r for name in ENUMERATED for r in exact(name)]
    total, right = sum(len(r.ms) for r in rows), sum(r.right for r in rows)
    yield (
        f"{total} pairs of graphs at small shapes, which enumeration found to be "
        f"equal in parts; of {right} the boxes are those of the comparison of every element. "
        "ms are the process's own. "
        "*bound*: of the chance that an element is called equal and is not."
    )
    head = ["family", "bound", "pairs", "right", "ms, median", "ms, most"]
    yield table(head, [exact_row(r) for r in rows])


def families_part(given_: Options) -> Iterator[str]:
    made = list(families(given_.seconds))
    whole = [r for r in made if r[3].split(" of ")[0] == r[3].split(" of ")[1]]
    fine = sum(r[4] != "none" for r in made)
    yield (
        f"{len(made)} programs and mutants of symbolic sizes; of {len(whole)} all "
        f"boxes are proved for all sizes, and of {fine} a correction (of what is right everywhere, "
        "the mutant) is. Seconds are of everything: regions at four sizes, formulas, proofs."
    )
    yield table(["family", "right on", "wrong on", "boxes proved", "corrections proved", "s"], made)


def analysis_part(given_: Options) -> Iterator[str]:
    yield f"Regions of subgraphs at their sizes: the process's own ms, the median of {TIMES} runs."
    yield table(["subgraph", "right", "wrong on", "elements compared", "ms"], list(analysis()))
    if given_.models:
        yield (
            "Of all mutants of the distinct windows of a model, at the channels that stand for any:"
            f" the process's own ms, and how many took more than {MOST_MS}."
        )
        head = ["model", "mutants", "ms, median", "ms, most", f"above {MOST_MS} ms"]
        yield table(head, list(of_windows(given_.models, Path(tempfile.mkdtemp()))))


def random_part(given_: Options) -> Iterator[str]:
    made, wrong, without = fuzzed(given_.fuzz)
    yield (
        f"{made} corrected mutants of the families, and of their splits, at random sizes "
        f"from 1 to 9: {wrong} differ from their program on any element. {without} times "
        "there was no such correction (the mutant is equal nowhere, or is no window over what lies "
        "side by side)."
    )


def mutation_part(given_: Options) -> Iterator[str]:
    yield (
        "Mutants of all windows and subprograms of a model; those that are priced below their "
        "programs are proved. Seconds with an empty store and without any kernel of earlier runs, "
        "and with a full store: on the clock, and the process's own."
    )
    head = ["model", "right in parts", "corrected", "cheaper, and proved"]
    head += [f"{store}, {of}" for store in ("empty", "full") for of in ("clock", "own")]
    yield table(head, list(mutation(given_.models, Path(tempfile.mkdtemp()))))


def models_part(given_: Options) -> Iterator[str]:
    yield (
        "Compiled, one thread, medians in ms; and the better peer's time by ours "
        "(*peer*). *error*: the largest difference from onnxruntime's output, by its rms."
    )
    head = ["model", "batch", "with", "without", "without / with", "peer", "error"]
    how = given_.model_seconds, Path(tempfile.mkdtemp())
    yield table(head, [r for b in given_.batches for r in models(given_.models, b, *how)])


PARTS = {
    "exactness": exactness_part, "families": families_part, "analysis": analysis_part,
    "random": random_part, "mutation": mutation_part,
    "enumeration": lambda o: enumeration(o.mutants, o.models), "models": models_part,
}  # fmt: skip
OF_MODELS = ("mutation", "models")
HEAD = (
    "# Partially equivalent programs\n\nBy `scripts/bench_partial.py`, each section on its machine."
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=Path)
    options.add_argument("--parts", type=lambda s: s.split(","), default=list(PARTS))
    options.add_argument("--seconds", type=float, default=20.0, help="for a proof")
    options.add_argument("--fuzz", type=int, default=1000, help="corrected mutants to be tried")
    options.add_argument("--models", type=Path, metavar="FOLDER")
    options.add_argument("--mutants", type=Path, metavar="FOLDER")
    options.add_argument("--model-seconds", type=float, default=4.0)
    options.add_argument("--batches", type=lambda s: [*map(int, s.split(","))], default=[1, 16])
    given_ = options.parse_args()
    if unknown := set(given_.parts) - PARTS.keys():
        options.error(f"there is no part {', '.join(sorted(unknown))}: name {', '.join(PARTS)}")
    out: dict[str, str] = {}
    if given_.markdown and given_.markdown.exists():
        some = re.split(r"^## ", given_.markdown.read_text(encoding="utf-8"), flags=re.M)[1:]
        out = {x.split()[0].lower(): x.strip() for x in some}
    for name in (n for n in given_.parts if given_.models or n not in OF_MODELS):
        told = [name.capitalize(), f"On {this_machine().text}."]
        for text in PARTS[name](given_):
            told.append(text)
            print(text, end="\n\n", flush=True)
        out[name] = "\n\n".join(told)
        if given_.markdown:  # as it comes: what is measured last may fail
            text = "\n\n".join([HEAD, *(f"## {out[n]}" for n in PARTS if n in out)])
            given_.markdown.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
