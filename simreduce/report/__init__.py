"""Tables and documents: pure functions of results."""
