"""From a plan on a machine to the arrays that the kernel runs."""
