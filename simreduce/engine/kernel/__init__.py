"""The kernel: what happens to ops and bytes from one instant to the next."""
