"""The torch side of `models`: heads on frozen features (`heads`), trained open_clip towers (`clip`) and their needs.

`twins` are two encoders that start as one. `weights` reads and checks the weights that a run starts from, `pack` makes
the arrays that towers read, `crops` cuts training pictures at random, `locking` says which parameters are trained.
"""

from mmts_ray.towers.heads import Heads, drop, linear, uniform

__all__ = ["Heads", "drop", "linear", "uniform"]
