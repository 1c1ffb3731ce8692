package cluster

import (
	"fmt"
	"net"
)

// program is one process of the control plane.
type program struct {
	name string
	args []string
}

// stores are etcd and kube-apiserver. etcd is on a loopback address without
// TLS: pods, in namespaces of their own, cannot reach it.
func (p Plan) stores() []program {
	etcd := program{"etcd", []string{
		"--name=" + p.Name,
		"--data-dir=" + p.file("etcd"),
		// What a test cluster holds need not survive a power cut.
		"--unsafe-no-fsync",
		"--listen-client-urls=" + p.etcdURL(etcdPort),
		"--advertise-client-urls=" + p.etcdURL(etcdPort),
		"--listen-peer-urls=" + p.etcdURL(etcdPeerPort),
		"--initial-advertise-peer-urls=" + p.etcdURL(etcdPeerPort),
		"--initial-cluster=" + p.Name + "=" + p.etcdURL(etcdPeerPort),
		"--log-level=warn",
	}}
	apiserver := program{"kube-apiserver", []string{
		"--bind-address=" + p.API.String(),
		"--advertise-address=" + p.API.String(),
		fmt.Sprintf("--secure-port=%d", apiPort),
		"--etcd-servers=" + p.etcdURL(etcdPort),
		"--service-cluster-ip-range=" + join(p.allServices()),
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--client-ca-file=" + p.pki("ca.crt"),
		"--tls-cert-file=" + p.pki("apiserver.crt"),
		"--tls-private-key-file=" + p.pki("apiserver.key"),
		"--kubelet-certificate-authority=" + p.pki("ca.crt"),
		"--kubelet-client-certificate=" + p.pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + p.pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.pki("service-accounts.crt"),
		"--service-account-signing-key-file=" + p.pki("service-accounts.key"),
		"--requestheader-client-ca-file=" + p.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + p.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + p.pki("front-proxy-client.key"),
		// No kube-proxy runs in the root namespace: webhooks and aggregated
		// APIs are dialled at their pods' addresses.
		"--enable-aggregator-routing=true",
		"--profiling=false",
	}}
	if p.Emulates != "" {
		apiserver.args = append(apiserver.args, "--emulated-version="+p.Emulates)
	}
	return []program{etcd, apiserver}
}

// controllers are the programs that need a ready kube-apiserver.
func (p Plan) controllers() []program {
	kubeconfigs := func(name string) []string {
		file := p.conf(name)
		return []string{
			"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file,
			"--bind-address=" + p.Loopback.String(), "--leader-elect=false", "--profiling=false",
		}
	}
	manager := program{"kube-controller-manager", append(kubeconfigs("kube-controller-manager"),
		// Pod networks are in the nodes' CNI configuration.
		"--allocate-node-cidrs=false",
		"--use-service-account-credentials=true",
		"--root-ca-file="+p.pki("ca.crt"),
		"--service-account-private-key-file="+p.pki("service-accounts.key"),
		"--cluster-signing-cert-file="+p.pki("ca.crt"),
		"--cluster-signing-key-file="+p.pki("ca.key"),
	)}
	return []program{manager, {"kube-scheduler", kubeconfigs("kube-scheduler")}}
}

// dialable says whether somebody listens on the unix socket.
func dialable(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
