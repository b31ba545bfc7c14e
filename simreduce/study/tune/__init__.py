"""Searching for the best setting: candidates, and their ranking."""
