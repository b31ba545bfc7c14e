"""The flow between two nodes is that of networkx, on random graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from simreduce.engine.bounds import max_flow


@pytest.mark.parametrize("seed", range(60))
def test_the_flow_is_that_of_networkx(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 12))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for a, b in random.integers(0, n, (int(random.integers(0, n * n)), 2)).tolist():
        if a != b:
            graph.add_edge(a, b, capacity=int(random.integers(0, 1 << 30)) << 40)
    capacity = {a: {b: graph[a][b]["capacity"] for b in graph[a]} for a in graph if graph[a]}

    flow = max_flow(capacity, 0, n - 1)

    assert flow == nx.maximum_flow_value(graph, 0, n - 1)
