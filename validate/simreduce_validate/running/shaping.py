"""The commands that shape links of known rate: queues and TCP. `namespaces` runs them."""

from __future__ import annotations

from simreduce_validate.running.links import ETHERNET, SMALL, Links

NETWORK = "10.77.7"
_TURN = 0.25e-3
"""Seconds that a port takes for the packets that the kernel shapes at once."""

_LATE = 0.06e-3
"""Seconds for which a port makes up at full speed after it was idle or the timer late. More hides
bandwidth from short transfers. So do the packets at once, as the last of a transfer pass when those
before them have taken their time.
"""

_FEWEST, _MOST = 6, 40
"""Packets at once. The kernel takes 64 KiB. With four at once, 2 MiB reduced by four workers at 200
Mbit/s kept two cores 78 % busy and lost 10 % of the rate; with six 40 %, and it lost 1 %. Eight
hide more from short transfers: of 128 KiB, the strategy predicted to be fastest took 13 % more than
the fastest, with six 9 %.
"""

_IN_FLIGHT = 768 * 1024
"""Bytes of socket buffer of one connection without a delay. A sender that waits for a core must not
leave its link idle: with a quarter of this, a busy machine lost a tenth of the rate. Every queue
has room for four times as much, so nothing is lost.
"""


def address(port: int) -> str:
    """Of a worker, inside the namespaces."""
    return f"{NETWORK}.{port + 1}"


def shaping(links: Links, port: int, device: str, other: str) -> list[str]:
    """The commands of tc for one end of a cable. `other` is the field that names the other
    end: `dst` for what a worker sends, `src` for what it gets.

    All that goes to or comes from one other worker is a queue of its own, and the queues take
    turns: links are shared fairly between pairs, as they are in the simulation. What is `SMALL`
    goes first: acknowledgements, as two-way transfers would throttle each other else, and requests
    for data, which would wait behind what the other way has queued.
    """
    rate = links.rate_of(port)
    largest = segments(links) * (links.mtu + ETHERNET)
    burst = max(round(rate * _LATE), links.mtu + ETHERNET)
    bits, some = f"{round(rate * 8)}bit", f"burst {burst} cburst {burst}"
    htb = f"htb rate {bits} {some} quantum {largest}"
    head, ip = f"dev {device} parent", f"filter add dev {device} parent 1: protocol ip"
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 0",
        f"class add {head} 1: classid 1:1 {htb}",
        f"class add {head} 1:1 classid 1:2 {htb} prio 0",
        f"qdisc add {head} 1:2 handle 2: bfifo limit {1 << 20}",
        f"{ip} prio 1 u32 match u16 0 {0x10000 - SMALL:#x} at 2 flowid 1:2",
    ]
    for peer in range(links.ports):
        if peer != port:
            minor, limit = f"{peer + 16:x}", 4 * in_flight(links)
            shape = f"htb rate 8kbit burst 2000 ceil {bits} cburst {burst} quantum {largest} prio 1"
            lines += [
                f"class add {head} 1:1 classid 1:{minor} {shape}",
                f"qdisc add {head} 1:{minor} handle {minor}: bfifo limit {limit}",
                f"{ip} prio 2 u32 match ip {other} {address(peer)}/32 flowid 1:{minor}",
            ]
    return lines


def segments(links: Links) -> int:
    """Packets that the kernel shapes at once, about `_TURN` of the slowest port: many hide
    bandwidth from short transfers, and few cost the cores that the workers need.
    """
    slowest = min((links.rate, *links.slow.values()))
    return min(max(int(slowest * _TURN / (links.mtu + ETHERNET)), _FEWEST), _MOST)


def in_flight(links: Links) -> int:
    """Bytes of socket buffer of one connection: the kernel counts about twice the data, and the way
    there and back must fit.
    """
    fastest = max((links.rate, *links.slow.values()))
    return _IN_FLIGHT + round(4 * fastest * 2 * links.delay)


def tcp_settings(links: Links) -> dict[str, str]:
    """By name in /proc/sys/net/ipv4: connections that are never idle for TCP, and that lose
    nothing.
    """
    room = in_flight(links)
    return {
        "tcp_slow_start_after_idle": "0",
        "tcp_no_metrics_save": "1",
        "tcp_congestion_control": "reno",  # any kernel lets a namespace choose it
        "tcp_wmem": f"4096 {room} {room}",
        "tcp_rmem": f"4096 {4 * room} {4 * room}",
    }


def route_settings(links: Links) -> str:
    """Of the one route: a retransmission timer longer than any queue, and a window that opens at
    once.
    """
    slowest = min((links.rate, *links.slow.values()))
    room = in_flight(links)
    wait = max(5, round(1e3 * (2 * links.delay + links.ports * room / slowest)))
    return f"rto_min {wait}ms initcwnd 32"
