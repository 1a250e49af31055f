"""Neural processes, §4.5: functions inferred from a few of their values."""

from alws_paper.neural_process.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
