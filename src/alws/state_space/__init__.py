"""Models of sequences."""

from alws.state_space.model import Given, Path, StateSpace, sequences

__all__ = ["Given", "Path", "StateSpace", "sequences"]
