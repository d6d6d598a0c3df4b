"""How the demo model is made: corpus, network, training, export and checks."""
