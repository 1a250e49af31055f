"""The six sets of images of §4.7, and the loaders of those that only this section has."""
