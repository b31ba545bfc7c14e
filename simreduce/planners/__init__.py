"""How a reduction is planned: algorithms, packing, strategies, NCCL's and MSCCL's choices."""
