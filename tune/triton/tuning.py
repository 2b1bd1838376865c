"""Choosing a configuration for one problem: what to measure next, when to stop, what to take."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.store import Choice
from foretune.tune.store.subject import How
from foretune.tune.triton.belief import Beliefs
from foretune.tune.triton.call import Call
from foretune.tune.triton.estimate import tile_edges
from foretune.tune.triton.knowledge import LEAST_FIT, Judgement, Knowledge
from foretune.tune.triton.memory import Memory
from foretune.tune.triton.options import Options
from foretune.tune.triton.rows import Rows

MOST_CANDIDATES = 2048
"""Of more, half are those that are believed fastest, the others random."""
EXPERIENCED = 12
"""Problems after which a kernel is known: only then the model's word is enough."""
CHECKED = 6
"""Measurements of every problem before that; of the first more, most of a large space."""
LIST = 64
"""Candidates beyond which the first problem is measured more often."""
WORTH = 0.1
"""Expected gain of one more measurement, relative to the accepted regret, below which it is not
made: what is left to lose is then spread over many candidates, each unlikely to be the best."""


class Tuning:
    """The choice among the candidates of one call.

    Args:
        call: what is to be run.
        configs: the candidates.
        options: how to decide.
        memory: what was measured before.
        beliefs: what is thought of what was not.
        knowledge: makes one of both.
    """

    def __init__(
        self,
        call: Call,
        configs: Sequence[Configuration],
        options: Options,
        memory: Memory,
        beliefs: Beliefs,
        knowledge: Knowledge,
    ) -> None:
        self.call = call
        self.all = configs
        self._options, self._memory = options, memory
        self._beliefs, self._knowledge = beliefs, knowledge
        self.fresh = 0
        """Measurements of this search."""
        self._tried: set[Configuration] = set()
        self._stood: Choice | None = None
        self._held_back: list[Measurement] = []
        self._code: dict[Configuration, dict[str, float]] = {}
        self._runs: list[Measurement] = []
        self._judgement: Judgement | None = None

    def remembered(self) -> Choice | None:
        """Return the choice that was made before, if it rests on enough."""
        choice = self._stood = self._memory.choice(self.call, self.all)
        if choice is None or self._failed(choice.config):
            return None
        if choice.how == "all":
            return choice
        options = self._options
        if options.budget == "all":
            return None
        sure = choice.how == "verified" or choice.regret <= options.regret
        spent = options.budget != "auto" and choice.measured >= int(options.budget)
        return choice if sure or spent else None

    @property
    def judgement(self) -> Judgement:
        """What is known now."""
        if self._judgement is None:
            self._runs = [*self._memory.measurements(self.call), *self._held_back]
            self._judgement = self._knowledge.judge(*self._judged, self._runs)
        return self._judgement

    def forget_judgement(self) -> None:
        """Judge anew: the memory has changed."""
        self._judgement = None

    @property
    def candidates(self) -> Rows:
        """What is judged: all, or those of very many that look best, and some others."""
        return self._judged[0]

    @property
    def needs_power(self) -> bool:
        """Whether the objective can only be measured with a power meter."""
        return self._options.goal.needs_power

    @property
    def best(self) -> Configuration:
        """The candidate to take now; of equally fast ones that of the lower quantile."""
        judgement, configs = self.judgement, self.candidates.configs
        fastest = judgement.objective == judgement.objective[judgement.best]
        tied = [configs[int(i)] for i in np.flatnonzero(fastest)]
        if len(tied) < 2:
            return configs[judgement.best]
        quantiles = {m.config: m.time_ms_samples for m in self.measured()}
        return min(tied, key=lambda c: quantiles[c])

    def next(self) -> Configuration | None:
        """Return the candidate to measure; None when enough is known."""
        judgement = self.judgement
        tried = np.array([c in self._tried for c in self.candidates.configs])
        if self._enough(judgement, tried):
            return None
        # what only the estimate speaks for is checked: every other one is unlike all before
        look_around = judgement.measured < self._least() and judgement.measured % 2 == 1
        number = judgement.farthest(tried) if look_around else judgement.next(tried)
        return None if number is None else self.candidates.configs[number]

    def promising(self, n: int) -> list[Configuration]:
        """Return the ``n`` unmeasured candidates that are expected to be fastest."""
        judgement = self.judgement
        open_ones = np.isnan(judgement.objective)
        order = np.argsort(np.where(open_ones, judgement.log_mean, np.inf), kind="stable")
        count = min(max(n, 0), int(open_ones.sum()))
        return [self.candidates.configs[int(i)] for i in order[:count]]

    def add(self, measurement: Measurement) -> None:
        """Take in a measurement of a candidate.

        Failures are kept back until something ran: where nothing does, the call is at fault.
        """
        static = {**measurement.static, **self._static(measurement.config)}
        measurement = dataclasses.replace(measurement, static=static)
        self.fresh += 1
        self._tried.add(measurement.config)
        self._judgement = None
        self._held_back.append(measurement)
        if any(m.ok for m in (*self._held_back, *self.measured())):
            self.keep_failures()

    def keep_failures(self) -> None:
        """Remember what was kept back."""
        self._memory.record(self.call, self._held_back)
        self._held_back = []
        self._judgement = None

    def least_bad(self) -> Configuration:
        """Return the first candidate that did not crash; the first where all did."""
        crashed = {m.config for m in self.measured() if m.status is Status.RUNTIME_ERROR}
        return next((c for c in self.all if c not in crashed), self.all[0])

    def note(self, config: Configuration, code: Mapping[str, float]) -> None:
        """Take in what the code of a candidate shows."""
        if code:
            self._code.setdefault(config, {}).update(code)
            self.__dict__.pop("_judged", None)
            self._judgement = None

    def knows_code(self, config: Configuration) -> bool:
        """Whether the machine code of a candidate was looked at."""
        return "instructions" in self._code.get(config, {})

    @property
    def in_the_dark(self) -> bool:
        """Whether nothing is known of the kernel, not even by the names of its knobs."""
        return self._least() >= LEAST_FIT and not any(map(tile_edges, self.all))

    def measured(self) -> list[Measurement]:
        """Return what was measured of this problem's candidates, now or before."""
        own = set(self.all)
        _ = self.judgement
        return [m for m in self._runs if m.problem == self.call.problem and m.config in own]

    def choose(self) -> Choice:
        """Settle the choice: for this process and, unless it was settled before, for all."""
        judgement = self.judgement
        measured = judgement.measured
        how: How = "all" if measured == len(self.all) else "measured" if measured else "predicted"
        regret = judgement.regret if math.isfinite(judgement.regret) else math.nan
        choice = Choice(self.best, measured, 0.0 if how == "all" else regret, how)
        return self._memory.choose(self.call, self.all, choice, self._stood)

    def unmeasured(self) -> list[Configuration]:
        """Return the candidates whose objective nobody knows, in the order of the list."""
        judgement = self.judgement
        known = ~np.isnan(judgement.objective)
        told = {c for c, k in zip(self.candidates.configs, known, strict=True) if k}
        return [c for c in self.all if c not in told]

    @property
    def nothing_runs(self) -> bool:
        """Whether every candidate was tried and failed."""
        return bool(np.isposinf(self.judgement.objective).all())

    def _enough(self, judgement: Judgement, tried: np.ndarray) -> bool:
        """Whether measuring is over: sure enough, no longer worth it, or not allowed."""
        options, budget = self._options, self._options.budget
        if budget == "all":
            return False
        runs = bool(np.isfinite(judgement.objective).any())
        if budget == 0 or (isinstance(budget, int) and self.fresh >= budget and runs):
            return True
        if judgement.measured < min(self._least(), len(self.all)):
            return False
        worth_it = judgement.gain(tried) > WORTH * options.regret
        return judgement.regret <= options.regret or not worth_it

    def _failed(self, config: Configuration) -> bool:
        """Whether a candidate is known not to run on this problem."""
        problem, runs = self.call.problem, self._memory.measurements(self.call)
        return any(m.config == config and m.problem == problem and not m.ok for m in runs)

    def _least(self) -> int:
        """Return how many candidates are measured even where the model is sure of itself."""
        elsewhere = {m.problem for m in self._runs if m.ok and m.problem != self.call.problem}
        if len(elsewhere) >= EXPERIENCED or self._beliefs.predicts:
            return 0
        first = LEAST_FIT + 2 * max(math.ceil(math.log2(len(self.all) / LIST)), 0)
        return CHECKED if elsewhere else first

    @cached_property
    def _judged(self) -> tuple[Rows, np.ndarray]:
        """Return the candidates to judge, and how likely each is to run."""
        rows = self._rows(self.all)
        believed = self._beliefs.of(rows)
        if len(rows) <= MOST_CANDIDATES or self._options.budget == "all":
            return rows, believed.p_valid
        half = MOST_CANDIDATES // 2
        order = np.argsort(believed.log_value - np.log(np.maximum(believed.p_valid, 1e-3)))
        others = np.random.default_rng(0).choice(order[half:], half, replace=False)
        known = {m.config for m in self._memory.measurements(self.call)}
        tried = [i for i, c in enumerate(self.all) if c in known]
        chosen = np.unique(np.concatenate([order[:half], others, np.array(tried, dtype=int)]))
        return rows.take(chosen), believed.p_valid[chosen]

    def _rows(self, configs: Sequence[Configuration]) -> Rows:
        statics = [self._static(c) for c in configs]
        return Rows([self.call.problem] * len(configs), list(configs), statics)

    def _static(self, config: Configuration) -> dict[str, float]:
        """Return what is known of a candidate without running it."""
        programs = self.call.programs(config)
        known = {} if math.isnan(programs) else {"programs": programs}
        return {**known, **self._code.get(config, {})}
