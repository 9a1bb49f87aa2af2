"""What the panels compute with: one noun per file, pure functions, randomness only from a generator that is passed."""

from .crossed import Crossed, crossed_difference
from .ends import failing_end, worst_shown
from .interval import LEVEL, Interval, generator, rank_correlation, t_interval, wilson
from .seeds import (
    Difference,
    chance_of_better,
    chance_on_average,
    difference,
    mean_over_given,
    mean_over_new,
    pooled_sd,
    seeds_to_resolve,
)

__all__ = [
    "LEVEL", "Crossed", "Difference", "Interval", "chance_of_better", "chance_on_average", "crossed_difference",
    "difference", "failing_end", "generator", "mean_over_given", "mean_over_new", "pooled_sd", "rank_correlation",
    "seeds_to_resolve", "t_interval", "wilson", "worst_shown",
]  # fmt: skip
