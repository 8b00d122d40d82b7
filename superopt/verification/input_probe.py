"""Search for inputs on which a model runs, and its results on them in ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from superopt import ort
from superopt.check.random_inputs import INPUT_KINDS, Feeds, input_kinds, random_feeds
from superopt.errors import UsageError
from superopt.loading import representative_sizes
from superopt.loading.request import Request
from superopt.onnx_io.import_.model import Model
from superopt.verification.ort_session import OrtSession, Results

MAX_PROBE_PART = 0.25  # of the budget: a slower model is checked on one set of inputs only
AddNote = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class InputSet:
    """One set of inputs, the runtime's results on it (None: it did not run), and whether every
    candidate must be checked on it, however little time there is."""

    feed: Feeds
    results: Results | None
    is_required: bool


@dataclass(slots=True)
class Probe:
    """Tries inputs. Remembers why ONNX Runtime rejected the model, and the fastest run.

    empty_result: the last inputs and results where no output had elements.
    """

    model: Model
    request: Request
    session: OrtSession
    refusal: str
    run_us: float = 0.0
    sizes: Mapping[str, int] | None = None
    failure: str = ""
    empty_result: tuple[Feeds, Results] | None = None

    def input_sets(self, sizes: Mapping[str, int], add_note: AddNote) -> Iterator[InputSet]:
        given = self.request.inputs
        if given is not None:
            yield InputSet(*self._run_given_inputs(given, sizes), True)
        begin = time.monotonic()
        first = self._first_set(sizes, add_note)
        if first is None:
            return
        yield first
        if time.monotonic() - begin > MAX_PROBE_PART * self.request.budget and not self.refusal:
            add_note("the original runs slowly: it was checked on one set of inputs only")
            return
        self.sizes = first.feed.sizes
        if self.model.size_bindings:
            yield from self._sets_at_other_sizes(self.sizes, add_note)
        for kind in input_kinds(self.model.graph)[1:]:
            if self.request.stop():
                return
            found = self._run_random_inputs(self.sizes, kind)
            if found is not None:
                yield InputSet(*found, False)
            else:
                add_note(f"the original does not run on {kind} inputs, which were not checked")

    def _run_given_inputs(
        self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> tuple[Feeds, Results | None]:
        defaults = {
            i.name: v.const_value.numpy()
            for i, v in self.model.input_defaults.items()
            if v.const_value is not None
        }
        feed = Feeds("given", {**defaults, **arrays}, sizes)
        got = self._try_run(feed)
        if isinstance(got, ort.Failure):
            raise UsageError(
                f"{self.model.source.label} does not run on the given inputs",
                got.message,
                "pass inputs that onnxruntime accepts, or omit --inputs",
            )
        return feed, got

    def _first_set(self, sizes: Mapping[str, int], add_note: AddNote) -> InputSet | None:
        """Return the first set at the representative sizes, or at others if the model does not run
        there."""
        asked = bool(self.request.shapes)
        why = ""
        empty: InputSet | None = None
        for tried in (sizes, *(() if asked else representative_sizes.alternative_sizes(sizes))):
            found = self._run_random_inputs(tried, INPUT_KINDS[0])
            if found is not None:
                if tried is not sizes:
                    add_note(
                        "the model does not run at"
                        f" {representative_sizes.sizes_text(self.model, sizes)}; costs are for"
                        f" {representative_sizes.sizes_text(self.model, tried)} instead"
                    )
                return InputSet(*found, True)
            why = self.failure
            if self.empty_result is not None:
                empty = empty or InputSet(*self.empty_result, True)
            if not self.model.size_bindings:
                break
        if empty is not None:
            return empty
        if asked and why:
            raise UsageError(
                f"{self.model.source.label} does not run at "
                f"{representative_sizes.sizes_text(self.model, sizes)}",
                why,
                "set other sizes with --shape",
            )
        add_note(f"no inputs were found on which the model runs: {why}; pass some with --inputs")
        return None

    def _sets_at_other_sizes(
        self, sizes: Mapping[str, int], add_note: AddNote
    ) -> Iterator[InputSet]:
        """Yield a set at other sizes, and one where every size is 1."""
        for tried in representative_sizes.alternative_sizes(sizes):
            found = None if tried == sizes else self._run_random_inputs(tried, INPUT_KINDS[0])
            if found is not None:
                yield InputSet(*self._with_sizes_in_label(*found), True)
                break
        else:
            add_note(
                f"the model runs at {representative_sizes.sizes_text(self.model, sizes)} only, "
                "where it was checked"
            )
        ones = dict.fromkeys(sizes, 1)
        found = None if ones == sizes else self._run_random_inputs(ones, INPUT_KINDS[0])
        if found is not None:
            yield InputSet(*self._with_sizes_in_label(*found), False)

    def _with_sizes_in_label(
        self, feed: Feeds, results: Results | None
    ) -> tuple[Feeds, Results | None]:
        kind = f"{feed.kind} at {representative_sizes.sizes_text(self.model, feed.sizes)}"
        return Feeds(kind, feed.arrays, feed.sizes), results

    def _run_random_inputs(
        self, sizes: Mapping[str, int], kind: str
    ) -> tuple[Feeds, Results | None] | None:
        """Return random inputs of a kind and the model's results; None if it does not run."""
        self.empty_result = None
        for tame in (False, True):
            try:
                feed = next(
                    random_feeds(
                        self.model.graph, sizes, self.request.seed, [kind], zero_integers=tame
                    )
                )
            except (TypeError, KeyError, MemoryError) as e:
                self.failure = f"no inputs can be drawn: {e}"
                return None
            got = self._try_run(feed)
            if not isinstance(got, ort.Failure):
                if (
                    got is None
                    or kind != INPUT_KINDS[0]
                    or sizes == self.sizes
                    or not _is_empty(got)
                ):
                    return feed, got
                self.failure, self.empty_result = "its results are empty", (feed, got)
                return None
            self.failure = got.message
        return None

    def _try_run(self, feed: Feeds) -> Results | ort.Failure | None:
        """Return the model's results; None if there is no runtime for it, Failed if it fails."""
        if self.refusal:
            return None
        begin = time.perf_counter()
        got = self.session.run(feed)
        if isinstance(got, ort.Failure):
            if got.kind != "error":  # it crashed or timed out, and would again
                self.refusal = got.message
                return None
            return got
        us = (time.perf_counter() - begin) * 1e6
        self.run_us = min(self.run_us or us, us)
        return got


def _is_empty(results: Results) -> bool:
    return all(isinstance(a, np.ndarray) and a.size == 0 for a in results.values())
