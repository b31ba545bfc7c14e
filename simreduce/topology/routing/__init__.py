"""Routing: from two nodes of a topology to the links that a transfer between them crosses.

`router` puts together `search` (the best path), `rails` (the GPUs' own NICs), `nvlink`, `reach` and
`staging` (copies through hosts), `equal_machines` (searched for two of them), `spread` (equal-cost
paths), and the rules by which networks give routes without a search: `rule` is their protocol,
`fat_tree`, `dragonfly` and `torus` implement it.
"""
