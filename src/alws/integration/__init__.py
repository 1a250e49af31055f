"""Posteriors summed and integrated, observation by observation, and the climb that follows."""

from alws.integration.maximise import Climber, Found, NotIntegrable, Round
from alws.integration.starts import Maxima, climb_likelihood, precise_data, watcher
from alws.integration.verdict import Verdict

__all__ = [
    "Climber",
    "Found",
    "Maxima",
    "NotIntegrable",
    "Round",
    "Verdict",
    "climb_likelihood",
    "precise_data",
    "watcher",
]
