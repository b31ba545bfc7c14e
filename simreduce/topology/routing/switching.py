"""What the switches of a machine do with transfers: which of equal paths they take, and what a full
link does to those that are not for it.

Congestion. A flow is *held* at the resource that limits it, unless it has all that its source
offers. One of three holds for all links between switches:

    isolated  a flow that is held slows nobody else: what it does not use, others have.
              Back-pressure by flow, as Slingshot's (De Sensi et al. 2020, arXiv 2008.08886, section
              II-D); also what congestion control comes to where it works
    tree      a flow that is held stops the links that it has passed: credits of InfiniBand, or PFC
              of Ethernet, are given to a link and not to a flow. Who shares such a link gets the
              part of its own offer that the held flow gets of its own
    lossy     a flow that is held is sent all the same, and what cannot go on is dropped there: the
              links that it has passed carry all that was offered

`congested` is the part of the time that this is so: 1 without any congestion control, 0 as if
isolated. Rates are the mean of both, which no link is too narrow for. What a slowed flow gives up
goes to nobody. The rules are in `engine/kernel/congestion.py`.

Not modelled: how long a tree takes to grow and to drain, the size of buffers, several virtual
lanes, what a drop costs besides its bytes (timeouts, going back N), paths that are chosen by how
full they are (`split` uses all, also those that are stopped), receivers that are held by what is no
link (their memory or cores), and the links of hosts, whose NICs take turns among connections.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

FIRST, HASHED, SPLIT = CHOICES = ("first", "hashed", "split")
"""Values of `equal_cost`; see `spread`."""
ISOLATED, TREE, LOSSY = CONGESTIONS = ("isolated", "tree", "lossy")
"""Values of `congestion`."""
KEYS = ("equal_cost", "seed", "queue_pairs", "congestion", "congested")
"""What users call the fields of `Switching`."""


@dataclass(frozen=True, slots=True)
class Switching:
    """What holds for all switches of a topology.

    `seed` is that of the hash, and `queue_pairs` over how many paths each two ends spread what they
    send, both of hashed paths.
    """

    choice: str = SPLIT
    seed: int = 0
    queue_pairs: int = 1
    congestion: str = ISOLATED
    congested: float = 1.0

    @property
    def isolated(self) -> bool:
        """Whether no flow feels that another is held."""
        return self.congestion == ISOLATED or self.congested == 0.0

    @property
    def stated(self) -> dict[str, str | int | float]:
        """By the keys of users, `equal_cost` and what else is not the default and has a meaning."""
        values = dict(zip(KEYS, astuple(self), strict=True))
        usual = dict(zip(KEYS, astuple(DEFAULT), strict=True))
        idle = ["seed", "queue_pairs"] if self.choice != HASHED else []
        idle += ["congested"] if self.congestion == ISOLATED else []
        return {
            key: value
            for key, value in values.items()
            if key == KEYS[0] or (value != usual[key] and key not in idle)
        }


DEFAULT = Switching()
"""What a network does of which nothing else is known."""
