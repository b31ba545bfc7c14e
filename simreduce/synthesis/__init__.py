"""Plans made for the graph at hand: optima from max-flow, and packings of trees and rings that
reach them.

Pure functions of a `Network` (plain data). `optimum` says what no plan can beat, `trees` and
`rings` find shares that come up to it, `text` and `drawing` show them. Nothing here knows
topologies or plans.
"""
