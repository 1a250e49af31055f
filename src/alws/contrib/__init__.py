"""What no default and no experiment uses: other estimates, weighted regressions, wide starts."""

from alws.contrib.implicit import ImplicitNetwork
from alws.contrib.importance import Importance
from alws.contrib.over_dispersion import over_dispersed
from alws.contrib.reweighted import Reweighted
from alws.contrib.shift import DensityRatio, MeanMatching, Shift

__all__ = [
    "DensityRatio",
    "ImplicitNetwork",
    "Importance",
    "MeanMatching",
    "Reweighted",
    "Shift",
    "over_dispersed",
]
