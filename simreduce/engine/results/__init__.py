"""Results of finished runs, with critical paths, floors and rates over time."""
