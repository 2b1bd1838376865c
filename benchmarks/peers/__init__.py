"""Searchers of other projects, run by their own code, for comparison with Foretune's."""

from foretune.registry import load
from foretune.search.searcher import Searcher
from peers import kernel_tuner
from peers.smac import SMACSearcher

PEERS: dict[str, type[Searcher]] = {
    "smac": SMACSearcher,
    "kt_genetic_algorithm": kernel_tuner.GeneticAlgorithm,
    "kt_diff_evo": kernel_tuner.DifferentialEvolution,
    "kt_pso": kernel_tuner.ParticleSwarm,
    "kt_simulated_annealing": kernel_tuner.SimulatedAnnealing,
    "kt_dual_annealing": kernel_tuner.DualAnnealing,
    "kt_adaptive_tabu_greywolf": kernel_tuner.AdaptiveTabuGreyWolf,
    "kt_hybrid_vndx": kernel_tuner.HybridVNDX,
    "kt_bayes_opt": kernel_tuner.BayesOpt,
}
"""SMAC3 (extra ``smac``) and the strategies of Kernel Tuner (extra ``bench``)."""


def find_searcher(name: str) -> type[Searcher]:
    """Return a searcher of another project, or a registered one.

    Raises:
        UnknownName: there is none of that name.
    """
    found: type[Searcher] = PEERS[name] if name in PEERS else load("searchers", name)
    return found
