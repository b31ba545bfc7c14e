"""Steps on meshes: tensor, pipeline, context, expert and data parallel ranks.

`ways` says which ranks share what, `pipeline` who takes turns when, `parts` what each rank computes
and exchanges, `compute` how long kernels take on GPUs, `costs` how long collectives do, `passes`
adds both up, `held` is the memory. `write` makes an execution of it all, `simulate` runs it, and
`question` reads what is asked.
"""
