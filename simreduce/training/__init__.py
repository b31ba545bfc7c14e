"""Training steps on SimPy processes: what one costs, and what many workers do to one another."""
