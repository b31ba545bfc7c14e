"""What a finished run says: a result, its critical path, its floors and its rates over time."""
