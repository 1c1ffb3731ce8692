// Package apiserver starts a real etcd and kube-apiserver for tests of what
// only they can judge: schemas and their rules, rights, admission policies,
// what a watch shows when. Nothing else of Kubernetes runs: no pod is ever
// scheduled, no garbage is collected.
package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// startTimeout is generous: the machine may be busy.
const startTimeout = 3 * time.Minute

// Server is a running kube-apiserver.
type Server struct {
	// Config is the administrator's.
	Config *rest.Config

	t          testing.TB // nil where Run started it
	bin        string
	kubeconfig string
	programs   []*program
}

// program is etcd or kube-apiserver.
type program struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
}

// Start starts an API server of its own for the test, and ends it with the test. The arguments are
// those of Run.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Run(bin, t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.t = t
	return s
}

// Run starts an API server with the programs of the folder bin. All that it writes goes
// into the other folder. The arguments are kube-apiserver's, besides its usual ones.
// Close ends it.
func Run(bin, folder string, args ...string) (*Server, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, fmt.Errorf("find free ports: %w", err)
	}
	etcd, peer := url("http", ports[0]), url("http", ports[1])
	tokens, key, token := filepath.Join(folder, "tokens.csv"), filepath.Join(folder, "accounts.key"), rand.Text()
	if err := errors.Join(os.WriteFile(tokens, []byte(token+",admin,admin,system:masters\n"), 0o600), writeKey(key)); err != nil {
		return nil, err
	}
	s := &Server{bin: bin, kubeconfig: filepath.Join(folder, "kubeconfig"), Config: &rest.Config{
		Host: url("https", ports[2]), BearerToken: token, QPS: -1,
	}}
	err = s.run(folder, "etcd",
		"--data-dir="+filepath.Join(folder, "etcd"), "--unsafe-no-fsync", "--log-level=warn", "--name=test",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	if err == nil {
		err = s.run(folder, "kube-apiserver", append([]string{
			"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
			"--cert-dir=" + folder, "--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--allow-privileged=true",
			"--service-cluster-ip-range=10.202.0.0/24", "--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key, "--profiling=false"}, args...)...)
	}
	if err == nil {
		if err = s.await(filepath.Join(folder, "apiserver.crt")); err != nil {
			text, _ := os.ReadFile(filepath.Join(folder, "kube-apiserver.log"))
			err = fmt.Errorf("start kube-apiserver: %w\n%s", err, text[max(0, len(text)-4000):])
		}
	}
	if err == nil {
		err = s.writeKubeconfig(token)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// run starts a program, whose log is in the folder.
func (s *Server) run(folder, name string, args ...string) error {
	log, err := os.Create(filepath.Join(folder, name+".log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		log.Close()
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.programs = append(s.programs, &program{name, cmd, log})
	return nil
}

// Close kills etcd and kube-apiserver, and waits until they are gone.
func (s *Server) Close() {
	for _, p := range slices.Backward(s.programs) {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // killed
		p.log.Close()
	}
	s.programs = nil
}

// PID is the process ID of etcd or kube-apiserver; 0 where it does not run.
func (s *Server) PID(name string) int {
	for _, p := range s.programs {
		if p.name == name {
			return p.cmd.Process.Pid
		}
	}
	return 0
}

// binaries finds what `make cluster` builds.
func binaries() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	bin := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "_output", "bin")
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return "", fmt.Errorf("find what the test needs (run `make cluster` first): %w", err)
		}
	}
	return bin, nil
}

func url(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

// freePorts are ports that nobody listened on a moment ago.
func freePorts(count int) ([]int, error) {
	var ports []int
	for range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// await waits until the API server has written its certificate and is ready.
func (s *Server) await(certificate string) error {
	deadline := time.Now().Add(startTimeout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.trust(certificate)
		if err == nil {
			err = s.ready()
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-tick.C
	}
}

// trust reads the certificate into Config. A file that is half written is no certificate yet.
// The configuration does not name the file: client-go would keep what it reads first.
func (s *Server) trust(certificate string) error {
	text, err := os.ReadFile(certificate)
	if err != nil {
		return err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return fmt.Errorf("%s is no certificate yet", certificate)
	}
	s.Config.CAData = text
	return nil
}

func (s *Server) ready() error {
	c, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return err
	}
	response, err := c.Get(s.Config.Host + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New("/readyz: " + response.Status)
	}
	return nil
}

func (s *Server) writeKubeconfig(token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: s.Config.Host, CertificateAuthorityData: s.Config.CAData}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "admin"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, s.kubeconfig)
}

// Kubeconfig is the file of the administrator's kubeconfig.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// As is the configuration of a user, such as
// system:serviceaccount:kubevirt:virt-controller.
func (s *Server) As(user string, groups ...string) *rest.Config {
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return config
}

// Try runs kubectl as the administrator.
func (s *Server) Try(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "kubectl"), append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// Kubectl is Try, and an error ends the test that started the API server.
func (s *Server) Kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.Try("", args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}
