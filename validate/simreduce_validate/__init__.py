"""Plans on real devices, and published measurements to hold predictions against."""
