"""Text and documents of validations, calibrations and their accuracy. Pure functions."""
