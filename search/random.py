"""Random search: uniform, without repetition. What every searcher has to beat."""

from foretune.search.searcher import Searcher


class RandomSearcher(Searcher):
    """Proposes configurations uniformly at random."""

    def _propose(self, n: int) -> list[int]:
        return self.random_indices(n)
