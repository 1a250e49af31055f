"""The methods of §4.7 that ALWS is compared with."""
