"""Array arithmetic, loops compiled to machine code, and worker processes."""
