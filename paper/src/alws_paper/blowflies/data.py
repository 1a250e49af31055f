"""Nicholson's blowflies: a laboratory population with limited food, counted every second day.

A. J. Nicholson (1954), An outline of the dynamics of animal populations; the 180 counts that the
literature on simulation-based inference uses since Wood (2010).
"""

from importlib import resources

import numpy as np
from jaxtyping import Float


def blowfly_counts() -> Float[np.ndarray, "180"]:
    """The 180 counts, 60 to 8921 flies.

    Example: `blowfly_counts()[:3]` is 948, 942, 911.
    """
    text = resources.files("alws_paper.blowflies").joinpath("blowfly.csv").read_text()
    return np.loadtxt(text.splitlines(), delimiter=",", skiprows=1, usecols=1)
