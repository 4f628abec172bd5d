"""A real Kubernetes of one or two nodes on this machine: etcd, API server, controllers, scheduler,
CoreDNS, and for each node kubelet, kube-proxy, containerd and runc, each node in a network
namespace of its own, all state in one folder.

What it is not: a cluster with a network plugin that enforces NetworkPolicy, with GPUs, with cloud
load balancers or with storage drivers. Root only. Everything is stopped and removed by `down`.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# program -> Debian package
NEEDED = {
    "etcd": "etcd-server",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
NEEDED_BY_NODES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "gcc": "gcc",
}
TOOLS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm3", "helm4")
TOOLS_OF_NODES = ("kubelet", "kube-proxy", "coredns")
NAMESPACE = "batonlab"  # of the network, with the node's number
CGROUP = "batonlab"
PAUSE = "localhost/pause:1"
PAUSE_SOURCE = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void end(int s) { (void)s; exit(0); }
int main() { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""


def bin_folder():
    return Path(os.environ.get("BATON_K8S_BIN", Path.home() / ".cache/baton/k8s"))


def why_not(num_nodes=2):
    """Why there can be no cluster here; None when there can. One without nodes, an API server and
    its controllers, needs less."""
    if os.geteuid() != 0:
        return "needs root (network namespaces, mounts, control groups)"
    needed = NEEDED | (NEEDED_BY_NODES if num_nodes else {})
    missing = sorted({package for tool, package in needed.items() if shutil.which(tool) is None})
    if num_nodes and not Path("/usr/lib/cni/bridge").exists():
        missing.append("containernetworking-plugins")
    if missing:
        return f"packages are missing: {' '.join(missing)} (scripts/deps.sh --k8s)"
    tools = TOOLS + (TOOLS_OF_NODES if num_nodes else ())
    absent = [tool for tool in tools if not (bin_folder() / tool).exists()]
    if absent:
        return f"{' '.join(absent)} not built (tests/k8s/tools.sh)"
    if num_nodes and Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "control groups of version 2: the two kubelets' roots are made for version 1"
    tried = subprocess.run(["ip", "netns", "add", "batonlab-try"], capture_output=True, text=True,
                           check=False)  # fmt: skip
    if tried.returncode != 0:
        return f"no network namespaces here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", "batonlab-try"], check=True)
    return None


def wait_until(condition, limit_s, what):
    """Until `condition()` is true; fails after `limit_s` with `what` it waited for."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s} s: {what}")
        time.sleep(0.1)


class Lab:
    """See the file comment. Use as a context manager: `with Lab(2) as lab:`."""

    def __init__(self, num_nodes):
        self.num_nodes = num_nodes
        self.folder = Path(tempfile.mkdtemp(prefix="batonlab_", dir=os.environ.get("TMPDIR")))
        self.processes = {}  # name -> Popen
        self.kubeconfig = self.folder / "kubeconfig"
        self.foreign_namespaces = set(self._list_namespaces())

    def __enter__(self):
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *exc):
        self.down()

    # ---- What tests call.

    def in_node(self, node, *command):
        """The command line that runs `command` in the network of a node."""
        return ["nsenter", f"--net=/run/netns/{NAMESPACE}{node}", *map(str, command)]

    def kubectl(self, *args, check=True, stdin=None, timeout=300):
        """stdout of kubectl; with check=False the CompletedProcess."""
        command = self.in_node(0, bin_folder() / "kubectl", "--kubeconfig", self.kubeconfig, *args)
        return self._run(command, check, stdin, timeout)

    def helm(self, *args, check=True, timeout=600, program="helm4"):
        """As kubectl(); `program` is helm3 or helm4."""
        command = self.in_node(0, bin_folder() / program, "--kubeconfig", self.kubeconfig, *args)
        return self._run(command, check, None, timeout)

    def get(self, *args):
        """`kubectl get ARGS -o json`, parsed."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def import_image(self, archive):
        for node in range(self.num_nodes):
            self._ctr(node, "image", "import", str(archive))

    def stop_part(self, name):
        """Kills one process of the cluster, e.g. kubelet1."""
        self._end(self.processes.pop(name), signal.SIGKILL)

    def start_kubelet(self, node):
        d = self.folder / f"node{node}"
        self._start(
            node, f"kubelet{node}", bin_folder() / "kubelet", f"--config={d}/kubelet.yaml",
            f"--kubeconfig={self.kubeconfig}", f"--hostname-override=node{node}",
            f"--node-ip=10.99.0.{node + 1}", f"--root-dir={d}/kubelet", f"--cert-dir={d}/pki",
        )  # fmt: skip

    def node_ready(self, node):
        done = self.kubectl("get", "node", f"node{node}", "-o", "json", check=False)
        if done.returncode != 0:
            return False
        conditions = json.loads(done.stdout)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def host_pid(self, node, container_id):
        """Process id on this machine of a container ("containerd://...")."""
        name = container_id.split("//")[-1]
        for line in self._ctr(node, "task", "ls").splitlines()[1:]:
            task, pid, *_ = line.split()
            if task == name:
                return int(pid)
        raise LookupError(f"{container_id} does not run on node{node}")

    # ---- Up.

    def _up(self):
        if f"{NAMESPACE}0" in self.foreign_namespaces:
            raise RuntimeError(f"network namespace {NAMESPACE}0 exists: is another run here?")
        self._make_network()
        self._write_control_plane_files()
        self._start_control_plane()
        if self.num_nodes == 0:
            return
        pause = self._pause_image()
        for node in range(self.num_nodes):
            self._start_node(node, pause)
        self._start(0, "coredns", bin_folder() / "coredns", "-conf", self.folder / "Corefile")
        for node in range(self.num_nodes):
            wait_until(lambda n=node: self.node_ready(n), 90, f"node{node} is Ready")

    def _make_network(self):
        for node in (0, 1):
            self._sh("ip", "netns", "add", f"{NAMESPACE}{node}")
        self._sh("ip", "link", "add", "node0", "netns", f"{NAMESPACE}0", "type", "veth",
                 "peer", "name", "node1", "netns", f"{NAMESPACE}1")  # fmt: skip
        for node in (0, 1):
            peer = f"10.99.0.{2 - node}"
            for args in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"10.99.0.{node + 1}/24", "dev", f"node{node}"),
                ("link", "set", f"node{node}", "up"),
                ("route", "add", "default", "via", peer, "dev", f"node{node}"),
                ("route", "add", f"10.97.{1 - node}.0/24", "via", peer),
            ):
                self._sh(*self.in_node(node, "ip", *args))
            self._sh(*self.in_node(node, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"))

    def _write_control_plane_files(self):
        f = self.folder
        self._sh("openssl", "genrsa", "-out", f / "sa.key", "2048")
        self._sh("openssl", "rsa", "-in", f / "sa.key", "-pubout", "-out", f / "sa.pub")
        token = secrets.token_hex(16)
        (f / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {
                        "server": "https://10.99.0.1:6443",
                        "insecure-skip-tls-verify": True,
                    },
                }
            ],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        self.kubeconfig.chmod(0o600)
        (f / "Corefile").write_text(
            ".:53 {\n bind 10.99.0.1\n kubernetes cluster.local in-addr.arpa {\n"
            f"  kubeconfig {self.kubeconfig} lab\n  pods insecure\n }}\n}}\n"
        )

    def _start_control_plane(self):
        f, b = self.folder, bin_folder()
        client, peer = "http://127.0.0.1:12379", "http://127.0.0.1:12380"
        self._start(
            0, "etcd", "etcd", "--data-dir", f / "etcd", "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self._start(
            0, "apiserver", b / "kube-apiserver", f"--etcd-servers={client}",
            "--bind-address=10.99.0.1", "--advertise-address=10.99.0.1", "--secure-port=6443",
            f"--cert-dir={f}/certs", f"--token-auth-file={f}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={f}/sa.pub",
            f"--service-account-signing-key-file={f}/sa.key",
            "--service-cluster-ip-range=10.98.0.0/16", "--allow-privileged=true",
            "--feature-gates=HPAScaleToZero=true",  # on by itself in later releases
            "--kubelet-preferred-address-types=InternalIP",  # nobody resolves the nodes' names
        )  # fmt: skip
        ready = lambda: self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0
        wait_until(ready, 90, "the API server is ready")
        self._start(
            0, "controllers", b / "kube-controller-manager", f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={f}/sa.key", "--allocate-node-cidrs=false",
            "--use-service-account-credentials=true", "--leader-elect=false",
            "--node-monitor-grace-period=10s",
        )  # fmt: skip
        self._start(0, "scheduler", b / "kube-scheduler", f"--kubeconfig={self.kubeconfig}",
                    "--leader-elect=false")  # fmt: skip

    def _pause_image(self):
        """An image of the program that holds a pod's namespaces: a static program that sleeps."""
        import sys

        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy/container"))
        from oci_archive import tar_of_folder, write_archive

        root = self.folder / "pause_root"
        root.mkdir()
        (self.folder / "pause.c").write_text(PAUSE_SOURCE)
        self._sh("gcc", "-static", "-Os", self.folder / "pause.c", "-o", root / "pause")
        archive = self.folder / "pause.tar"
        write_archive(archive, PAUSE, [tar_of_folder(root, 0)], {"Entrypoint": ["/pause"]}, 0)
        return archive

    def _start_node(self, node, pause):
        d = self.folder / f"node{node}"
        (d / "cni").mkdir(parents=True)
        self._make_cgroup(node)
        self._write_node_files(node, d)
        self._start(node, f"containerd{node}", "containerd", "-c", d / "containerd.toml")
        wait_until((d / "containerd.sock").exists, 30, f"containerd of node{node} listens")
        self._ctr(node, "image", "import", str(pause))
        self.start_kubelet(node)
        self._start(node, f"proxy{node}", bin_folder() / "kube-proxy", f"--config={d}/proxy.yaml")

    @staticmethod
    def _make_cgroup(node):
        """A root of its own for each kubelet: one must not reap the pods of the other."""
        for controller in Path("/sys/fs/cgroup").iterdir():
            if not (controller / "cgroup.procs").exists():
                continue
            for group in (controller / CGROUP, controller / CGROUP / f"node{node}"):
                group.mkdir(exist_ok=True)
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if (controller / name).exists():
                        (group / name).write_text((controller / name).read_text())

    def _write_node_files(self, node, d):
        # restrict_oom_score_adj and the native snapshotter: for sandboxes without CAP_SYS_RESOURCE
        # and without overlayfs.
        (d / "containerd.toml").write_text(f"""
version = 2
root = "{d}/ctr-root"
state = "{d}/ctr-state"
[grpc]
  address = "{d}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{d}/cni"
""")
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": f"{d}/ipam",
                "ranges": [[{"subnet": f"10.97.{node}.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
        conf = {"cniVersion": "0.4.0", "name": f"lab{node}", "plugins": plugins}
        (d / "cni/10-lab.conflist").write_text(json.dumps(conf))
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}/node{node}",
            "failSwapOn": False,
            "failCgroupV1": False,
            "localStorageCapacityIsolation": False,
            "nodeStatusUpdateFrequency": "2s",
            "containerRuntimeEndpoint": f"unix://{d}/containerd.sock",
            "clusterDNS": ["10.99.0.1"],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
        }
        (d / "kubelet.yaml").write_text(json.dumps(kubelet))
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            "mode": "iptables",
            "hostnameOverride": f"node{node}",
            "clusterCIDR": "10.97.0.0/16",
            "conntrack": {"maxPerCore": 0},
        }
        (d / "proxy.yaml").write_text(json.dumps(proxy))

    # ---- Down.

    def down(self):
        """Stops and removes all that this object made; may be called at any point of `up`."""
        if "apiserver" in self.processes:
            self.kubectl("delete", "deploy,sts,ds,job,pod", "--all", "-A", "--force",
                         "--grace-period=0", check=False, timeout=60)  # fmt: skip
        for name in [n for n in self.processes if n.startswith(("kubelet", "proxy"))]:
            self._end(self.processes.pop(name))
        for node in range(self.num_nodes):
            if f"containerd{node}" in self.processes:
                self._kill_tasks(node)
        for name in list(self.processes):
            self._end(self.processes.pop(name))
        self._end_leftovers()
        self._unmount()
        for namespace in self._network_namespaces():
            subprocess.run(["ip", "netns", "del", namespace], check=False)
        for group in Path("/sys/fs/cgroup").glob(f"*/{CGROUP}"):
            subprocess.run(["find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"],
                           capture_output=True, check=False)  # fmt: skip
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_tasks(self, node):
        for task in self._ctr(node, "task", "ls", "-q", check=False).split():
            self._ctr(node, "task", "kill", "-s", "KILL", task, check=False)

    def _end_leftovers(self):
        """Shims and containers: what is in the networks of nodes and pods and not ours directly."""
        for namespace in self._network_namespaces():
            command = ["ip", "netns", "pids", namespace]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            for pid in done.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def _unmount(self):
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        ours = [m.split()[1] for m in mounts if m.split()[1].startswith(f"{self.folder}/")]
        for mount in sorted(ours, reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)

    @staticmethod
    def _list_namespaces():
        done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
        return [line.split()[0] for line in done.stdout.splitlines() if line]

    def _network_namespaces(self):
        """Ours, and those of pods, which the runtime names cni-..."""
        new = set(self._list_namespaces()) - self.foreign_namespaces
        return sorted(n for n in new if n.startswith(("cni-", NAMESPACE)))

    # ---- Processes.

    def _start(self, node, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                self.in_node(node, *command), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    @staticmethod
    def _end(process, how=signal.SIGTERM):
        process.send_signal(how)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ctr(self, node, *args, check=True):
        socket = self.folder / f"node{node}/containerd.sock"
        command = ["ctr", "--address", str(socket), "-n", "k8s.io", *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if check and done.returncode != 0:
            raise RuntimeError(f"ctr {' '.join(args)}: {done.stderr}")
        return done.stdout

    @staticmethod
    def _run(command, check, stdin, timeout):
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False,
                              timeout=timeout)  # fmt: skip
        if not check:
            return done
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[2:])}: {done.stderr or done.stdout}")
        return done.stdout

    @staticmethod
    def _sh(*command):
        command = [str(c) for c in command]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
