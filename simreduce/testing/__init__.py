"""What our own tests use, for the tests of plugins: small machines, and the check of an algorithm.

`simreduce.testing.strategies` has hypothesis strategies for random machines and plans. It needs
hypothesis: `pip install "simreduce[testing]"`. The oracle in our own tests is not here: it checks
the engine, which an algorithm cannot break.
"""

from simreduce.testing.check import cable, check_algorithm, copy_plan, machine, node, pair, plan_of

__all__ = ["cable", "check_algorithm", "copy_plan", "machine", "node", "pair", "plan_of"]
