#!/usr/bin/env python3
"""Models on a GPU, each as one CUDA graph, beside torch's modes: checked, tuned, timed.

    scripts/bench_gpu.py --models ../shared/models --out FOLDER [--only NAME,...] [--tune N]
                         [--precision fp16,tf32] [--batch 1,16] [--streams N]
                         [--shard-seconds 480] [--again]
    scripts/bench_gpu.py --out FOLDER --table [--md FILE]    (needs no GPU)

A run is a shard, and leaves FOLDER/shard_N.json, which is written after each step: the model by
itself, and each of torch's modes whose time is not known yet in turns with it. It ends before
`--shard-seconds` are over, and exits with 75 where something is left: run again it goes on there. A
step during which it was killed begins anew, once. Torch's times that
docs/benchmarks/gpu_peers.json has for this GPU and this version of torch are not taken again, but
with `--again`; new ones are added to it.

Times are medians of events around some replays, in ms; so is that of whole calls, with tensors on
the device as inputs, which torch's compiled modes are timed with, too. Outputs are compared with
the model's in float64, on the processor, of inputs that each run draws anew, after memory was
filled with what is no number: the largest difference by the output's rms, which is an error where
it is more than FAR. `--tune N` measures N ways to compute each problem first, kept in FOLDER/store.
It exits with 1 where a step failed. Of the user's store nothing is taken, nor of what Triton
keeps: each process begins with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_peers
from gpu_checks import accuracy, drawn, event_ms, exact, far, folder, in_turns, most, poison
from gpu_table import limit, table, why

LEFT = 75  # the exit code where something is left (EX_TEMPFAIL of sysexits.h)
TRIES = 2  # of a step that was killed
OWN = "own"  # the step that needs no peer
# Differences of outputs from those in float64, by their rms, beyond which a model is wrong: in some
# of these nets halves and tf32 differ by up to a hundredth.
FAR = {"fp32": 1e-3, "tf32": 0.03, "fp16": 0.03, "bf16": 0.25}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, how floats are kept or multiplied, and how many inputs at a time."""

    name: str
    precision: str
    batch: int

    def __str__(self) -> str:
        return f"{self.name} {self.precision} {self.batch}"

    @property
    def steps(self) -> tuple[str, ...]:
        return (OWN, *gpu_peers.wanted(self.name, self.precision))


@dataclass(slots=True)
class Journal:
    """What shards have found on one GPU: cases by their names, each with `peers` by mode and
    `beside`, our time in turns with each; and what failed.

    path: this shard's own file, which holds only what it added, and the step that it is at."""

    on: str
    path: Path
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    began: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path, on: str) -> Journal:
        """Of all shards of a folder that were on this GPU; its own is a new one."""
        there = sorted(folder.glob("shard_*.json"))
        last = max((int(p.stem.removeprefix("shard_")) for p in there), default=0)
        out = cls(on, folder / f"shard_{last + 1:03}.json")
        begun: Counter[str] = Counter()
        for p in there:
            held = json.loads(p.read_text())
            if held["on"] == on:
                begun.update(held["began"])
                for name, case in held["cases"].items():
                    _add(out.cases.setdefault(name, {}), case)
        for key, times in begun.items():
            case, step = key.rsplit(" ", 1)
            if times >= TRIES:
                text = f"was ended {times} times before it was over"
                _add(out.cases.setdefault(case, {}), {"failed": {step: text}})
        return out

    def left(self, case: Case) -> list[str]:
        """The steps of a case that are to be done."""
        found = self.cases.get(str(case), {})
        failed, peers = found.get("failed", {}), found.get("peers", {})
        if OWN in failed:
            return []
        done = {*failed, *peers, *([OWN] if "ms" in found else [])}
        return [s for s in case.steps if s not in done]

    def begin(self, case: Case, step: str) -> None:
        self.began.append(f"{case} {step}")
        self._write()

    def end(self, case: Case, step: str, found: Mapping[str, Any]) -> None:
        for some in (self.cases, self.own):
            _add(some.setdefault(str(case), {}), found)
        self.began.remove(f"{case} {step}")
        self._write()

    def _write(self) -> None:
        text = json.dumps({"on": self.on, "cases": self.own, "began": self.began}, indent=1)
        whole = self.path.with_suffix(".new")
        whole.write_text(text + "\n")
        whole.replace(self.path)  # a shard that is killed leaves a whole file


def _add(to: dict[str, Any], more: Mapping[str, Any]) -> None:
    """One step's findings to those of a case: tables by mode grow, all else is replaced."""
    for key, x in more.items():
        to[key] = {**to.get(key, {}), **x} if isinstance(x, dict) else x


def shard(
    cases: list[Case], journal: Journal, seconds: float, prepared: Callable[[Case], Any],
    do: Callable[[Case, str, Any], dict[str, Any]], clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Do what is left, as long as it should end in time: a step is taken to last as long as the
    longest one so far. prepared: makes of a case what all of its steps need; it is part of the
    first one's time. How many steps are left."""
    begin, longest = clock(), 0.0
    for case in cases:
        ready = None
        for step in journal.left(case):
            since = clock()
            if since - begin + longest > seconds:
                return sum(len(journal.left(c)) for c in cases)
            journal.begin(case, step)
            try:
                ready = prepared(case) if ready is None else ready
                found = do(case, step, ready)
            except Exception as e:
                found = {"failed": {step: f"{type(e).__name__}: {str(e)[:600]}"}}
            journal.end(case, step, found)
            longest = max(longest, clock() - since)
            print(f"{case}, {step}: {_shown(found)} ({clock() - since:.1f} s)", flush=True)
            if OWN in found.get("failed", {}):
                break
    return sum(len(journal.left(c)) for c in cases)


def _shown(found: Mapping[str, Any]) -> str:
    return json.dumps({k: x for k, x in found.items() if k not in ("slowest", "tuning")})


# --- on the device ---


@dataclass(frozen=True, slots=True)
class Bench:
    """Steps of cases as they are done. models: the folder of fill.py; tune: ways to measure;
    streams: see `cuda.compile`."""

    models: Path
    out: Path
    tune: int
    streams: int | None = None
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    exact: dict[tuple[str, int], list[np.ndarray]] = field(default_factory=dict)
    folder: Path = field(default_factory=folder)

    def path(self, case: Case) -> Path:
        """The case's model, made once."""
        path = self.folder / f"{case.name}_{case.batch}.onnx"
        if path.exists():
            return path
        new = path.with_suffix(".new")
        if case.name == "llama_layers":
            from gpu_nets import llama_layers

            llama_layers(new, case.batch)
        else:
            import onnx

            sys.path.insert(0, str(self.models))
            from fill import fill

            onnx.save(batched(fill(case.name), case.batch), new)
        return new.replace(path)

    def ready(self, case: Case) -> dict[str, Any]:
        """The compiled model: it, its inputs, and what was seen on the way."""
        from superopt.compilation.cuda import load_compiler, plan_settings
        from superopt.cost.gpu_features import problem_numbers
        from superopt.cost.store import Store
        from superopt.cost.tuning_records import gpu_target, measured_options
        from superopt.kernels.runtime.gpu_device import device_name
        from superopt.onnx_io.read.source import read_model

        begin = time.perf_counter()
        store = self.out / "store" if self.tune else self.folder / "store"
        source = read_model(self.path(case))
        many = plan_settings.DEFAULT_STREAMS if self.streams is None else self.streams
        exe = load_compiler.compile_model(source, case.precision, store=store, streams=many)
        feeds = drawn(exe, np.random.default_rng(self.seed))
        sizes = exe.infer_sizes(exe.input_arrays(feeds))
        made, rows = exe.variant(sizes), []
        exe.run(feeds)  # what is timed reads them: until then inputs are zeros
        compiled = time.perf_counter() - begin
        before = event_ms(made.only_step.gpu_program)
        if self.tune:
            with Store.open(store) as held:
                exe.tune(sizes, max_options=self.tune, store=held)
                on = exe.device
                target = gpu_target(device_name(on.torch_device), on.dot_precision)
                times: dict[str, dict[str, float]] = {}
                for t in measured_options(held, target):
                    times.setdefault(t.problem, {})[str(t.option)] = t.seconds * 1e6
            for key, p in exe.variant(sizes).program.problems.items():
                rows.append([str(p.tensor.type), problem_numbers(p), times.get(key, {})])
            exe.run(feeds)
        seconds = time.perf_counter() - begin
        return {
            "exe": exe, "feeds": feeds, "run": exe.variant(sizes).only_step.gpu_program,
            "compiled": compiled, "untuned": before, "seconds": seconds, "tuning": rows,
        }  # fmt: skip

    def do(self, case: Case, step: str, ready: Mapping[str, Any]) -> dict[str, Any]:
        if step == OWN:
            return self.alone(case, ready)
        ours, theirs = in_turns(
            ready["run"], gpu_peers.call(case.name, case.precision, case.batch, step)
        )
        return {"peers": {step: theirs}, "beside": {step: ours}}

    def timed(self, ready: Mapping[str, Any]) -> dict[str, Any]:
        """How long the graph takes, and a call."""
        from superopt.kernels.runtime.gpu_device import to_device

        exe, feeds = ready["exe"], ready["feeds"]
        held = {name: to_device(x, exe.device.torch_device) for name, x in feeds.items()}
        return {"ms": event_ms(ready["run"]), "calls": event_ms(lambda: exe.run(held))}

    def alone(self, case: Case, ready: Mapping[str, Any]) -> dict[str, Any]:
        from superopt.kernels.triton.module import vendor_name

        exe, feeds, run = (ready[k] for k in ("exe", "feeds", "run"))
        times, bound = self.timed(ready), most(case.precision)
        parts = exe.profile(feeds, seconds=0.2).parts
        slow = sorted(parts, key=lambda p: -p.seconds)[:10]
        error = self.checked(case, exe, feeds)  # last: the processor is busy for a while then
        out = {
            **times, "error": error, "seed": self.seed,
            "compile s": ready["compiled"], "kernels": len(run.launches),
            "vendor": Counter(vendor_name(x) for c in run.calls if (x := c.kernel.library)),
            "limit": limit(parts, bound), "why": why(parts, bound),
            "slowest": [f"{p.seconds * 1e6:.1f} us, {p.how}, {p.type}" for p in slow],
        }  # fmt: skip
        if case.batch == 1:
            out["accuracy"] = accuracy(exe)
        if self.tune:
            keys = ("untuned", "seconds", "tuning")
            out |= {k: ready[k] for k in keys}
        return out

    def checked(self, case: Case, exe: Any, feeds: Mapping[str, Any]) -> float:
        """The outputs' largest difference from those in float64, by each one's rms. Raises
        ArithmeticError where it is too large."""
        made = exe.variant(exe.infer_sizes(exe.input_arrays(feeds)))
        poison(made)
        got = exe.run(feeds)
        key = case.name, case.batch
        if key not in self.exact:
            self.exact[key] = exact(exe.model.graph, feeds)
        pairs = zip(got.values(), self.exact[key], strict=True)
        found = float(np.max([far(a, b) for a, b in pairs]))  # what is no number stays none
        if not found <= FAR[case.precision]:
            raise ArithmeticError(f"outputs are {found:.1e} of their rms from those in float64")
        return found


def _first(name: str, by: dict[str, Any]) -> str:
    """The constant that holds a shape's first number."""
    while name in by and by[name].op_type in ("Concat", "Unsqueeze"):
        name = by[name].input[0]
    return name


def batched(model: Any, n: int) -> Any:
    """The model for so many inputs at a time, where its first dimensions say how many there are;
    so do those of shapes that are written into it."""
    from onnx import numpy_helper

    given = {i.name for i in model.graph.initializer}
    for v in model.graph.input:
        if v.name not in given:
            v.type.tensor_type.shape.dim[0].dim_value = n
    for v in model.graph.output:
        v.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    by = {out: x for x in model.graph.node for out in x.output}
    read = {_first(x.input[1], by) for x in model.graph.node if x.op_type == "Reshape"}
    held = [i for i in model.graph.initializer if i.name in read]
    made = {x.output[0]: x.attribute[0].t for x in model.graph.node if x.op_type == "Constant"}
    for t in (*held, *(made[x] for x in read if x in made)):
        shape = numpy_helper.to_array(t).copy()
        if n != 1 and shape.size and shape.flat[0] == 1:
            shape.flat[0] = n
            t.CopyFrom(numpy_helper.from_array(shape, t.name))
    return model


def shards(folder: Path) -> Iterator[tuple[str, Journal]]:
    """What was found, by where."""
    held = {json.loads(p.read_text())["on"] for p in folder.glob("shard_*.json")}
    for on in sorted(held):
        yield on, Journal.read(folder, on)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--models", type=Path)
    given.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    given.add_argument("--only", default=",".join(gpu_peers.NINE))
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--batch", default="1,16")
    given.add_argument("--tune", type=int, default=0, metavar="N")
    given.add_argument("--streams", type=int, help="for branches, at most")
    given.add_argument("--shard-seconds", type=int, default=480)
    given.add_argument("--peers", type=Path, default=gpu_peers.KNOWN, metavar="FILE.json")
    given.add_argument("--again", action="store_true", help="take torch's known times again")
    given.add_argument("--table", action="store_true", help="print what was found, only")
    given.add_argument("--md", type=Path, metavar="FILE", help="write the table there, too")
    how = given.parse_args()
    how.out.mkdir(parents=True, exist_ok=True)
    left = 0
    if not how.table:
        if how.models is None:
            given.error("--models: where fill.py is")
        if how.shard_seconds > 0:
            signal.alarm(how.shard_seconds)  # which ends the process, whatever it waits for
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        on = gpu_peers.where()
        journal = Journal.read(how.out, on)
        if not how.again:
            for case, times in gpu_peers.known(how.peers, on).items():
                _add(journal.cases.setdefault(case, {}), {"peers": times})
        cases = [
            Case(name, precision, int(batch))
            for batch in how.batch.split(",")
            for precision in how.precision.split(",")
            for name in how.only.split(",")
        ]
        bench = Bench(how.models, how.out, how.tune, how.streams)
        os.environ["TRITON_CACHE_DIR"] = str(bench.folder / "triton")
        left = shard(cases, journal, 0.95 * how.shard_seconds, bench.ready, bench.do)
        signal.alarm(0)
        # Those of shards before, which may have been killed, are older than what is there.
        for some, new in ((journal.cases, False), (journal.own, True)):
            taken = {c: x["peers"] for c, x in some.items() if x.get("peers")}
            if taken:
                gpu_peers.keep(how.peers, on, taken, new)
    texts = []
    for on, journal in shards(how.out):
        for case, times in gpu_peers.known(how.peers, on).items():
            if case in journal.cases:  # what was taken in turns with ours stands
                own = journal.cases[case].get("peers", {})
                _add(journal.cases[case], {"peers": {**times, **own}})
        texts.append(f"# {on}\n\n{table(journal.cases)}")
    print(*texts, sep="\n")
    if how.md is not None:
        how.md.write_text("\n".join(texts))
    if left:
        print(f"{left} steps are left: run it again", file=sys.stderr)
        sys.exit(LEFT)
    failed = {
        c: x.get("failed") for _, journal in shards(how.out) for c, x in journal.cases.items()
    }
    wrong = [c for c, x in failed.items() if x]
    if wrong:
        print(f"failed: {', '.join(wrong)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
