"""How far predictions are from published timings of NCCL."""
