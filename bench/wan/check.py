"""What the laboratory itself gives: round trip, lost packets, bytes a second of one TCP connection."""

import subprocess
import sys
import time
from pathlib import Path

from lab import Lab

SECONDS = 5
ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 9))
print("ready", flush=True)
while True:
    data, who = s.recvfrom(2048); s.sendto(data, who)
"""
PING = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.5)
times = []
for _ in range(int(sys.argv[2])):
    at = time.monotonic(); s.sendto(b"x" * 100, (sys.argv[1], 9))
    try: s.recv(2048); times.append(time.monotonic() - at)
    except TimeoutError: pass
times.sort()
print(len(times), times[len(times) // 2] * 1000 if times else 0)
"""
SINK = """
import socket, sys
s = socket.create_server((sys.argv[1], 9)); print("ready", flush=True)
c, _ = s.accept()
while c.recv(1 << 16): pass
"""
SOURCE = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 9)); end = time.monotonic() + float(sys.argv[2])
data = bytes(1 << 14)
while time.monotonic() < end: s.send(data)
"""


def run(asked):
    relay = str(Path(asked.bin) / "slackline-wan-relay")
    for path, ends in [("server", (1, 0)), ("peers", (1, 2))]:
        with Lab(2, asked.rate, asked.rtt, asked.loss, path, asked.cc, asked.queue_ms, relay) as lab:
            near, far = ends
            python = lambda host, code, *more, lab=lab, far=far: lab.popen(  # noqa: E731
                host, [sys.executable, "-c", code, lab.address(far), *map(str, more)],
                stdout=subprocess.PIPE, text=True,
            )
            python(far, ECHO).stdout.readline()
            count = 100 if asked.loss == 0 else 400
            back, middle = python(near, PING, count).communicate()[0].split()
            python(far, SINK).stdout.readline()
            source = python(near, SOURCE, SECONDS)
            time.sleep(1)
            before, began = lab.counters(near)[0], time.monotonic()
            time.sleep(SECONDS - 1.5)
            moved, seconds = lab.counters(near)[0] - before, time.monotonic() - began
            source.wait()
        print(f"{path}: round trip {float(middle):.1f} ms (median), {back} of {count} came back, "
              f"TCP {asked.cc} sends {moved * 8 / seconds / 1e6:.1f} Mbit/s")
