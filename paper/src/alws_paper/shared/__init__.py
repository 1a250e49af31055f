"""What several sections use: autoencoders, bounds, MMD, layers, data files, training."""
