"""Posteriors summed and integrated, observation by observation, and the climb that follows."""

from alws.maximum.choice import find_maximum, judge
from alws.maximum.curvature import Information, observed_information
from alws.maximum.filtered import climb_filtered
from alws.maximum.maximise import Climber, Found, NotIntegrable, Round
from alws.maximum.paths import climb_particles
from alws.maximum.scoring import Scoring, impossible
from alws.maximum.starts import Maxima, climb_likelihood, precise_data, watcher
from alws.maximum.verdict import Verdict
from alws.maximum.weighted import Weighted, weighted_expectation, weighted_log_likelihood

__all__ = [
    "Climber",
    "Found",
    "Information",
    "Maxima",
    "NotIntegrable",
    "Round",
    "Scoring",
    "Verdict",
    "Weighted",
    "climb_filtered",
    "climb_likelihood",
    "climb_particles",
    "find_maximum",
    "impossible",
    "judge",
    "observed_information",
    "precise_data",
    "watcher",
    "weighted_expectation",
    "weighted_log_likelihood",
]
