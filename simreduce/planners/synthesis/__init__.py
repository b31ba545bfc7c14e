"""Trees and rings for a given graph: best rates by maximum flow, and packings that reach them.

Pure functions of a `Network` (plain data). `optimum` has the best rates, `trees` and `rings` pack
trees and rings whose shares add up to them, `relays` finds paths for all-to-alls, `timetable`
orders their chunks, `text` prints them. Nothing here knows topologies or plans.
"""
