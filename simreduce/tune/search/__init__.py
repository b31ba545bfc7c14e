"""The best setting of a job for what a target can be told, found by bounds and simulations."""
