"""A TCP proxy for KV data connections that damages what a prefill worker sends to a decode worker.

It stands where the decode worker says that it listens (--advertise) and forwards to where it really
does (--kv-listen). Towards the decode worker it reads the stream frame by frame
(kvcache/transport/frame.h has the layout) and does what `Faults` says; the way back is not touched.

By hand: kv_fault_proxy.py 127.0.0.2:7072 127.0.0.1:7072 --flips-per-mib 1
"""

import argparse
import heapq
import itertools
import random
import selectors
import socket
import struct
import threading
import time

HEADER_BYTES = 64
MAGIC = b"BTKV"
SLICE_INLINE = 6
MIB = 1 << 20
READ_BYTES = 1 << 18
# Behind a cut the sender's own buffers fill; what the proxy holds itself stays small.
IDLE_S = 0.05


class Faults:
    """The faults that a proxy makes in the stream; may be changed while it runs."""

    def __init__(self, seed=1):
        self.seed = seed
        self.flips_per_mib = 0.0  # bits turned over, anywhere in the stream
        self.late_share = 0.0  # of slice frames: a copy follows `late_s` later
        self.hold_share = 0.0  # of slice frames: sent only `late_s` later
        self.late_s = 0.5
        self.bytes_per_s = 0  # 0 = as fast as it goes
        self.is_cut = False  # nothing reaches the decode worker; its own words still pass


class Counts:
    """Counts of what the proxy did, over all connections."""

    def __init__(self):
        self.connections = 0
        self.bytes = 0
        self.frames = 0
        self.flips = 0
        self.late = 0
        self.held = 0

    def as_dict(self):
        return dict(vars(self))


class FrameReader:
    """Cuts a stream into frames; what is no frame is handed on as it came."""

    def __init__(self):
        self.buffer = bytearray()

    def feed(self, data):
        """The (kind, bytes) of each frame that is complete now."""
        self.buffer += data
        frames = []
        while len(self.buffer) >= HEADER_BYTES:
            if self.buffer[:4] != MAGIC:
                frames.append((0, bytes(self.buffer)))
                self.buffer.clear()
                break
            (payload,) = struct.unpack_from("<I", self.buffer, 44)
            size = HEADER_BYTES + payload
            if len(self.buffer) < size:
                break
            frames.append((self.buffer[6], bytes(self.buffer[:size])))
            del self.buffer[:size]
        return frames


class Damage:
    """Applies `Faults` to the frames of one connection; gives the bytes to send and when."""

    def __init__(self, faults, counts, seed):
        self.faults = faults
        self.counts = counts
        self.random = random.Random(seed)
        self.waiting = []  # heap of (time, order, frame)
        self.order = itertools.count()
        self.until_flip = None  # bytes that still pass before the next one

    def take(self, kind, frame, now):
        """The bytes to send at once for one frame."""
        faults = self.faults
        self.counts.frames += 1
        if kind == SLICE_INLINE:
            draw = self.random.random()
            if draw < faults.hold_share:
                self.counts.held += 1
                heapq.heappush(self.waiting, (now + faults.late_s, next(self.order), frame))
                return b""
            if draw < faults.hold_share + faults.late_share:
                self.counts.late += 1
                heapq.heappush(self.waiting, (now + faults.late_s, next(self.order), frame))
        return self.flip(frame)

    def due(self, now):
        """The bytes of frames whose time has come."""
        out = b""
        while self.waiting and self.waiting[0][0] <= now:
            out += heapq.heappop(self.waiting)[2]
        return out

    def flip(self, data):
        if self.faults.flips_per_mib <= 0:
            self.until_flip = None
            return data
        mean = MIB / self.faults.flips_per_mib
        if self.until_flip is None:
            self.until_flip = int(self.random.uniform(0, mean))
        damaged = None
        at = self.until_flip
        while at < len(data):
            damaged = damaged or bytearray(data)
            damaged[at] ^= 1 << self.random.randrange(8)
            self.counts.flips += 1
            at += 1 + int(self.random.expovariate(1 / mean))
        self.until_flip = at - len(data)
        return data if damaged is None else bytes(damaged)


class KvFaultProxy:
    """Listens at `listen`, connects to `target`; both (host, port). Threads of its own."""

    def __init__(self, listen, target, faults=None):
        self.target = target
        self.faults = faults or Faults()
        self.counts = Counts()
        self.stopping = threading.Event()
        self.sockets = set()
        self.lock = threading.Lock()  # guards sockets
        self.listener = socket.create_server(listen)
        self.address = self.listener.getsockname()
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def stop(self):
        self.stopping.set()
        self.listener.close()
        self.break_connections()

    def break_connections(self):
        """Ends all connections with a reset, as a lost host would look after a while."""
        with self.lock:
            for one in self.sockets:
                try:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def _accept(self):
        self.listener.settimeout(0.2)
        while not self.stopping.is_set():
            try:
                source, _ = self.listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.counts.connections += 1
            threading.Thread(target=self._serve, args=(source,), daemon=True).start()

    def _serve(self, source):
        try:
            target = socket.create_connection(self.target, timeout=1)
        except OSError:
            source.close()
            return
        pair = (source, target)
        for one in pair:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(None)
        with self.lock:
            self.sockets.update(pair)
        back = threading.Thread(target=self._copy, args=(target, source), daemon=True)
        back.start()
        try:
            self._damage(source, target)
        except OSError:
            pass
        for one in pair:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        back.join()
        with self.lock:
            self.sockets.difference_update(pair)
        for one in pair:
            one.close()

    def _copy(self, source, target):
        """The way back, untouched."""
        try:
            while data := source.recv(READ_BYTES):
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _damage(self, source, target):
        reader = FrameReader()
        damage = Damage(self.faults, self.counts, self.faults.seed + self.counts.connections)
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            while not self.stopping.is_set():
                if self.faults.is_cut:
                    time.sleep(IDLE_S)
                    continue
                wait_s = IDLE_S
                if damage.waiting:
                    wait_s = max(0.0, min(wait_s, damage.waiting[0][0] - time.monotonic()))
                if selector.select(wait_s):
                    data = source.recv(READ_BYTES)
                    if not data:
                        return
                    for kind, frame in reader.feed(data):
                        self._send(target, damage.take(kind, frame, time.monotonic()))
                self._send(target, damage.due(time.monotonic()))

    def _send(self, target, data):
        if not data:
            return
        # Data that was read before a cut waits for the end of the cut, like packets on a broken
        # way.
        while self.faults.is_cut and not self.stopping.is_set():
            time.sleep(IDLE_S)
        target.sendall(data)
        self.counts.bytes += len(data)
        if self.faults.bytes_per_s:
            time.sleep(len(data) / self.faults.bytes_per_s)


def parse_address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("listen", type=parse_address, help="HOST:PORT that others are told")
    parser.add_argument("target", type=parse_address, help="HOST:PORT of the decode worker")
    parser.add_argument("--flips-per-mib", type=float, default=0.0)
    parser.add_argument("--late-share", type=float, default=0.0, help="of slices, sent twice")
    parser.add_argument("--hold-share", type=float, default=0.0, help="of slices, sent late")
    parser.add_argument("--late-s", type=float, default=0.5)
    parser.add_argument("--bytes-per-s", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    faults = Faults(args.seed)
    for name in ("flips_per_mib", "late_share", "hold_share", "late_s", "bytes_per_s"):
        setattr(faults, name, getattr(args, name))
    proxy = KvFaultProxy(args.listen, args.target, faults)
    try:
        while True:
            time.sleep(5)
            print(proxy.counts.as_dict(), flush=True)
    except KeyboardInterrupt:
        proxy.stop()


if __name__ == "__main__":
    main()
