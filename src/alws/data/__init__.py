"""Data: generators of the synthetic sets."""

from alws.data.pinwheel import pinwheel

__all__ = ["pinwheel"]
