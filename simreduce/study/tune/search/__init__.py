"""The best setting of a job for a target, found by bounds and simulations."""
