"""Models of sequences, and their likelihood."""

from alws.state_space.filters import increments
from alws.state_space.kinds import Filter, find_filter
from alws.state_space.likelihood import LogLikelihood, sequence_log_likelihood
from alws.state_space.model import Given, Path, StateSpace, sequences
from alws.state_space.particles import particle_increments, particle_scores
from alws.state_space.windows import View

__all__ = [
    "Filter",
    "Given",
    "LogLikelihood",
    "Path",
    "StateSpace",
    "View",
    "find_filter",
    "increments",
    "particle_increments",
    "particle_scores",
    "sequence_log_likelihood",
    "sequences",
]
