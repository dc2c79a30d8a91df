"""Tries the mutants of one area: in a fork of a process that has collected its tests, or with a new import."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mutation.areas import AREAS, ELSEWHERE, files_of_area, tests_of
from benchmarks.mutation.mutants import Mutant, change
from benchmarks.mutation.score import Tried
from benchmarks.mutation.select import chosen_tests, statement_lines
from benchmarks.mutation.trial import Trial, tried
from benchmarks.mutation.warm import TrialRequest, WarmTests

LEAST_LIMIT_SECONDS, BASELINE_MULTIPLE = 20.0, 5.0
IMPORT_SECONDS = 60.0  # more, where all is imported anew


class AreaTrials:
    """In a copy of the checkout, by so many `tests`; `failures` is what fails without any mutant, and is left out."""

    def __init__(self, copy: Path, scratch: Path, area: str, modules: Sequence[str]) -> None:
        self._copy, self._log, self._area = copy, scratch / "fresh.log", AREAS.get(area, ELSEWHERE)
        files = files_of_area(copy, area, [*modules])
        self._warm = WarmTests(copy, files, modules, scratch / "warm.log")
        collected = self._warm.collected
        self.failures, self.tests = list(collected.failures), len(collected.names) - len(collected.failed)
        for module in modules if collected.names else ():
            Path(importlib.util.cache_from_source(str(copy / module))).unlink(missing_ok=True)
            if not any(name.partition("::")[0] in tests_of(copy, module) for name in collected.names):
                self.failures.append(f"{module}: no test of its own")
        print(f"{area}: {len(collected.names)} tests in {sum(collected.seconds):.0f} s", flush=True)

    def of(self, mutant: Mutant) -> Tried | None:
        """The mutant with its outcome; None where the operator changes nothing."""
        changed = change(self._copy, mutant)
        return None if changed is None else Tried(mutant, changed, self._trial(mutant, changed.text))

    def close(self) -> None:
        """End the process of the tests."""
        self._warm.close()

    def _trial(self, mutant: Mutant, text: str) -> Trial:
        path = self._copy / mutant.module
        old = path.read_text(encoding="utf-8")
        lines = statement_lines(old, mutant.line)
        if not set(lines) & set(self._warm.collected.at_import[mutant.module]):
            tests, limit = self._chosen(mutant, lines)
            trial = self._warm.tried(TrialRequest(mutant.module, text, tests, limit))
            if trial is not None:
                return trial
        tests, limit = self._chosen(mutant, None)
        path.write_text(text, encoding="utf-8")
        try:
            names = [self._warm.collected.names[test] for test in tests]
            return tried(names, self._log, limit_seconds=limit + IMPORT_SECONDS)
        finally:
            path.write_text(old, encoding="utf-8")

    def _chosen(self, mutant: Mutant, lines: range | None) -> tuple[list[int], float]:
        collected = self._warm.collected
        own = tests_of(self._copy, mutant.module)
        tests = chosen_tests(collected, mutant.module, lines, own, own_all=self._area.starts_ranks)
        seconds = sum(collected.seconds[test] for test in tests)
        return tests, max(LEAST_LIMIT_SECONDS, BASELINE_MULTIPLE * seconds)
