"""Sizes of the image step that the benchmarks measure."""

LATENT, HIDDEN, PIXELS, FEATURES, SLEEP, BATCH, HELD_OUT = 16, 512, 1024, 300, 2000, 100, 200
RIDGE = 0.1
