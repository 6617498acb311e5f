"""A long cable between two bridges: python cable.py DELAY LOSS

It makes the devices cable0 and cable1. A packet that enters one leaves the other DELAY seconds
later, except for a share LOSS of them, which is drawn with a fixed seed. (A kernel with netem can
do this by itself; many small ones have none.)
"""

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def device(name):
    """Make a TAP device and return its file descriptor."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return end


def main(delay, loss):
    """Carry packets until the process is killed."""
    ends = device("cable0"), device("cable1")
    other = dict(zip(ends, reversed(ends), strict=True))
    print("ready", flush=True)
    draw, waiting = random.Random(0), deque()
    while True:
        rest = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], rest)[0]:
            packet = os.read(end, 65536)
            if draw.random() >= loss:
                waiting.append((time.monotonic() + delay, other[end], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            os.write(end, packet)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
