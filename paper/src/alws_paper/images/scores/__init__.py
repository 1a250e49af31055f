"""Distances between generated and real images, and the networks whose features they are of."""
