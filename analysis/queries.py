"""What each query of the test split scored in confirmed runs, where they kept it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from mmts_ray import results

from .choice import Candidate
from .statistics import Crossed, crossed_difference
from .tables import Study

GROUPS = ("head", "mid", "tail")


@dataclass(frozen=True, eq=False)
class Pair:
    """Ranks of two configurations on the same queries: rows are runs, columns are queries."""

    first_SQ: np.ndarray
    second_SQ: np.ndarray
    paired: bool  # row i of both is the same seed
    member: pd.DataFrame  # bool columns, one row per query: in a head, mid, tail group

    def recall(self, k: int, group: str, comparisons: int) -> Crossed | None:
        """First minus second: share of a group's queries whose right caption is among the first k."""
        inside = self.member[group].to_numpy()
        first, second = self.first_SQ[:, inside] < k, self.second_SQ[:, inside] < k
        return crossed_difference(first, second, paired=self.paired, comparisons=comparisons)


def pair(study: Study, first: Candidate, second: Candidate) -> Pair | None:
    """The two on common seeds, or unpaired when they share fewer than two; None unless all their runs kept the same
    queries.
    """
    shared = first.done.index.intersection(second.done.index).sort_values()
    both = len(shared) >= 2
    tables: list[list[pd.DataFrame]] = []
    for candidate in (first, second):
        trials = candidate.done.loc[shared, "trial"] if both else candidate.done["trial"]
        read = [results.read_ranks(study.path, str(trial)) for trial in trials]
        tables.append([t for t in read if t is not None and {"image", "i2t", *GROUPS} <= set(t)])
        if len(read) < 2 or len(tables[-1]) < len(read):
            return None
    known = tables[0][0][["image", *GROUPS]]
    if not all(table[["image", *GROUPS]].equals(known) for arm in tables for table in arm):
        return None
    ranks = [np.stack([table["i2t"].to_numpy() for table in arm]) for arm in tables]
    asked = (ranks[0] >= 0).all(0) & (ranks[1] >= 0).all(0)  # a query without a right answer has rank -1
    return Pair(ranks[0][:, asked], ranks[1][:, asked], both, known.loc[asked, list(GROUPS)])
