"""Make the demo model: corpus, network, training, export and checks."""
