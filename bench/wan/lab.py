"""A small wide-area network on one Linux machine, for measurements. Needs root.

Host 0 is where servers would stand, hosts 1 to N are workers. Each host is a network namespace whose
only interface, eth0, leads to a hub namespace that routes between them:

    host i  eth0 ══ [relay] ══ wI  hub  w0 ══ eth0  host 0

Rates come from the token bucket filter: one at eth0 for what the host sends, one at wI for what it
receives. Delay and loss come from `slackline-wan-relay`, which carries packets between two TUN
interfaces, so no kernel module is needed. Without delay and loss the two ends are a veth pair.

Nothing here has a name on the machine: a namespace lives as long as the sleeping process that holds
it, and every process started here is killed by the kernel when this one ends, however it ends. There
is nothing to clean up, also after SIGKILL. Use it from the main thread: the kernel counts the death
of the thread that started a process.
"""

import ctypes
import fcntl
import os
import re
import signal
import struct
import subprocess
import time

PR_SET_PDEATHSIG = 1
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
INTERNET_MTU, LOCAL_MTU = 1500, 9000
# Host 0 stands in a data centre.
SERVER_RATE = "1gbit"
LIBC = ctypes.CDLL(None, use_errno=True)
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits(rate):
    """Bits a second of `20mbit`."""
    found = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", rate)
    if not found:
        raise ValueError(f"a rate is a number and kbit, mbit or gbit, or none; got {rate!r}")
    return float(found[1]) * UNITS[found[2]]


def die_with_parent():
    """Between fork and exec of a child: it is killed when its parent is gone."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def need_root():
    if os.geteuid() != 0:
        raise SystemExit("bench-wan: network namespaces need root; run it as root")


class Lab:
    """The network while it stands; a context manager.

    rate: of every worker's link, each way, in IP bytes; "none" leaves it unshaped.
    rtt_ms, loss: of the path between two programs that talk: round trip, and share of packets lost
    each way. `path` says who talks: "server" is worker and host 0, where the worker's link has all of
    it; "peers" is worker and worker, where each of the two links has half of the delay and the
    sender's has the loss.
    """

    def __init__(self, workers, rate="none", rtt_ms=0.0, loss=0.0, path="server", cc="cubic",
                 queue_ms=50.0, relay=None, seed=1):
        self.hosts = workers + 1
        self.rate, self.rtt_ms, self.loss, self.path = rate, rtt_ms, loss, path
        self.cc, self.queue_ms, self.relay, self.seed = cc, queue_ms, relay, seed
        self.relayed = rtt_ms > 0 or loss > 0
        self.mtu = LOCAL_MTU if rate == "none" and not self.relayed else INTERNET_MTU
        self.children, self.relays = [], []

    def __enter__(self):
        need_root()
        # So that `finally` runs when somebody stops us politely.
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(143)))
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            if child.poll() is None:
                child.kill()
        for child in self.children:
            child.wait()

    def address(self, host):
        return f"10.98.0.{host + 1}"

    def popen(self, host, argv, **more):
        """Starts a program in a host."""
        return self._start(self._inside(self.holders[host]) + argv, **more)

    def is_whole(self):
        """Whether every relay still runs."""
        return all(relay.poll() is None for relay in self.relays)

    def counters(self, host):
        """Bytes of IP packets that a host has sent and received."""
        pid = self.holders[host].pid
        with open(f"/proc/{pid}/net/dev", encoding="ascii") as file:
            line = next(line for line in file if line.strip().startswith("eth0:"))
        fields = line.split(":")[1].split()
        sent, received = int(fields[8]), int(fields[0])
        if not self.relayed:
            # A veth counts 14 bytes of Ethernet header a packet, a TUN interface none.
            sent, received = sent - 14 * int(fields[9]), received - 14 * int(fields[1])
        return sent, received

    def _build(self):
        self.hub = self._namespace()
        self.holders = [self._namespace() for _ in range(self.hosts)]
        everywhere = (
            "ip link set lo up\n"
            f"echo {self.cc} > /proc/sys/net/ipv4/tcp_congestion_control\n"
            "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save\n"
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6\n"
        )
        for holder in [self.hub, *self.holders]:
            self._sh(holder, everywhere)
        self._sh(self.hub, "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for host in range(self.hosts):
            relayed = host > 0 and self.relayed
            ends = self._tunnels(host) if relayed else self._veth(host)
            self._addresses(host)
            if relayed:
                self._join(host, ends)
            rate = self.rate if host > 0 or self.rate == "none" else SERVER_RATE
            self._shape(self.holders[host], "eth0", rate)
            self._shape(self.hub, f"w{host}", rate)

    def _namespace(self):
        holder = self._start(["unshare", "--net", "sleep", "infinity"])
        ours = os.readlink("/proc/self/ns/net")
        for _ in range(500):
            if os.readlink(f"/proc/{holder.pid}/ns/net") != ours:
                return holder
            time.sleep(0.01)
        raise RuntimeError("unshare --net made no namespace within 5 s")

    def _start(self, argv, **more):
        child = subprocess.Popen(argv, preexec_fn=die_with_parent, **more)
        self.children.append(child)
        return child

    @staticmethod
    def _inside(holder):
        return ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]

    def _sh(self, holder, script):
        command = ["sh", "-ec", script] if holder is None else [*self._inside(holder), "sh", "-ec", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{script.strip()}: {done.stderr.strip()}")
        return done.stdout

    def _veth(self, host):
        there, hub = self.holders[host].pid, self.hub.pid
        self._sh(None, f"ip link add w{host} netns {hub} mtu {self.mtu} type veth "
                       f"peer name eth0 netns {there} mtu {self.mtu}")

    def _tunnels(self, host):
        """Two TUN interfaces and a relay process that holds both."""
        ends = []
        for name, holder in [("eth0", self.holders[host]), (f"w{host}", self.hub)]:
            # Made here under a name of this process, then given away: the file stays ours.
            ours = f"slw{os.getpid() % 100000}x{host}"
            end = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", ours.encode(), IFF_TUN | IFF_NO_PI))
            self._sh(None, f"ip link set {ours} netns {holder.pid}")
            self._sh(holder, f"ip link set {ours} name {name} mtu {self.mtu} txqueuelen 10000")
            ends.append(end)
        return ends

    def _join(self, host, ends):
        """Starts the relay between two interfaces, which are up: reading from others fails."""
        crossings = 2 if self.path == "server" else 4
        loss_down = self.loss if self.path == "server" else 0.0
        delay_us = round(self.rtt_ms * 1000 / crossings)
        self.relays.append(self._start(
            [self.relay, str(delay_us), str(self.loss), str(loss_down), str(self.seed * 1000 + host)],
            stdin=ends[0], stdout=ends[1],
        ))
        for end in ends:
            os.close(end)

    def _addresses(self, host):
        mine, hub = self.address(host), "10.98.0.254"
        self._sh(self.holders[host], f"ip addr add {mine}/32 dev eth0\nip link set eth0 up\n"
                                     f"ip route add {hub} dev eth0\nip route add default via {hub}")
        self._sh(self.hub, f"ip addr add {hub}/32 dev w{host}\nip link set w{host} up\n"
                           f"ip route add {mine} dev w{host}")

    def _shape(self, holder, device, rate):
        if rate == "none":
            return
        burst = max(int(bits(rate) / 8 * 0.002), 6144)
        queue = burst + max(int(bits(rate) / 8 * self.queue_ms / 1000), 12000)
        self._sh(holder, f"tc qdisc add dev {device} root tbf rate {rate} burst {burst} limit {queue}")
