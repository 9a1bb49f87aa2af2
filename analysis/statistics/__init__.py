"""What the panels compute with: one noun per file, pure functions, randomness only from a generator that is passed."""

from .budget import OPEN_BEYOND, Curve, tuning_curve
from .components import Split, chance_of_first, residual, split
from .crossed import Crossed, crossed_difference
from .ends import failing_end, worst_shown
from .feasible import feasibility
from .flat import WORST, Flatness, flatness
from .gaussian import Points, Process, fit, laplace
from .importance import PERMUTATIONS, Evidence, fit_quality, holm, randomisation_test, total_effects
from .interactions import Pair, pairs
from .interval import LEVEL, Interval, generator, rank_correlation, t_interval, wilson
from .profiles import Profile, profiles
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
from .slices import Slice, Width, chance_at_ends, near_levels, plateau, share_near, slices

__all__ = [
    "LEVEL", "OPEN_BEYOND", "PERMUTATIONS", "WORST", "Crossed", "Curve", "Difference", "Evidence", "Flatness",
    "Interval", "Pair", "Points", "Process", "Profile", "Slice", "Split", "Width", "chance_at_ends", "chance_of_better",
    "chance_of_first",
    "chance_on_average", "crossed_difference", "difference", "failing_end", "feasibility", "fit", "fit_quality",
    "flatness", "generator", "holm", "laplace", "mean_over_given", "mean_over_new", "near_levels", "pairs", "plateau",
    "pooled_sd", "profiles", "randomisation_test", "rank_correlation", "residual", "seeds_to_resolve", "share_near",
    "slices", "split", "t_interval", "total_effects", "tuning_curve", "wilson", "worst_shown",
]  # fmt: skip
