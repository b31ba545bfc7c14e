"""Questions and their outcomes: rankings, sizes, searches, sweeps, capacity, accuracy."""
