"""Routing: from two nodes of a topology to the links that a transfer between them crosses.

`router` puts together `search` (the best path), the GPUs' own NICs, `staging` (NVLinks, the reach
of GPUs, copies through hosts), `equal_machines` (searched for two of them), `switching` (equal-cost
paths), and `rules`, by which fat trees, dragonflies and tori give routes without a search.
"""
