//go:build long

package churn

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// writes counts what the API server was asked to write, and did, by method and
// resource.
type writes struct {
	mu     sync.Mutex
	counts map[string]int
}

// questions are created like objects, but nothing is kept of them.
var questions = []string{"tokenreviews", "subjectaccessreviews"}

func (w *writes) note(r *http.Request, status int) {
	if r.Method == http.MethodGet || status >= 300 {
		return
	}
	what := resourceOf(r.URL.Path)
	if slices.Contains(questions, what) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counts == nil {
		w.counts = map[string]int{}
	}
	w.counts[r.Method+" "+what]++
}

// since is what was written after there was so much.
func (w *writes) since(before map[string]int) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	more := maps.Clone(w.counts)
	for what, n := range before {
		if more[what] -= n; more[what] == 0 {
			delete(more, what)
		}
	}
	return more
}

func sum(counts map[string]int) (n int) {
	for _, more := range counts {
		n += more
	}
	return n
}

// resourceOf is the resource, and the subresource, of a path of the API server's.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" {
		parts = parts[1:]
	}
	parts = parts[min(2, len(parts)):] // group, or api, and version
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	switch len(parts) {
	case 0:
		return path
	case 3:
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}

// door is a way to the API server for one user, and counts what it writes.
type door struct {
	writes
	server *httptest.Server
}

// openDoor opens one: with TLS, for without it Go's client speaks HTTP/1.1, which
// needs a connection for each watch.
func openDoor(t *testing.T, config *rest.Config) *door {
	t.Helper()
	upstream, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{}
	d.server = httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(r *http.Response) error {
			d.note(r.Request, r.StatusCode)
			return nil
		},
	})
	d.server.EnableHTTP2 = true
	d.server.StartTLS()
	t.Cleanup(d.server.Close)
	return d
}

// config is for a client within the test.
func (d *door) config() *rest.Config {
	return &rest.Config{Host: d.server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: d.certificate()}}
}

func (d *door) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.server.Certificate().Raw})
}

// kubeconfig is for a program.
func (d *door) kubeconfig(t *testing.T) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: d.server.URL, CertificateAuthorityData: d.certificate()}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// component is a program of Kubeqemu's that runs, with a door of its own.
type component struct {
	*door
	name    string
	process *os.Process
	metrics string // address
	token   string // of somebody who may read its metrics
}

// build makes the programs as they are shipped, but for what says where a fault is.
func build(t *testing.T) (folder string) {
	t.Helper()
	const program = "virt-components"
	folder = t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", filepath.Join(folder, program), "../../cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", program, err, out)
	}
	for _, name := range []string{"virt-controller", "virt-handler"} {
		if err := os.Symlink(program, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// start starts a program until the test ends.
func start(t *testing.T, program string, d *door, token string, args ...string) *component {
	t.Helper()
	c := &component{door: d, name: filepath.Base(program), metrics: freeAddress(t), token: token}
	output, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append(args, "--metrics-bind-address="+c.metrics, "--health-probe-bind-address="+freeAddress(t))...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.kubeconfig(t))
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.process = cmd.Process
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		text, _ := os.ReadFile(output.Name())
		if t.Failed() {
			t.Logf("the end of what %s says:\n%s", c.name, text[max(0, len(text)-4000):])
		}
		output.Close()
	})
	return c
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// use is what a component holds.
type use struct{ goroutines, files, rss int } // RSS in KiB

// use asks the component and, for what it has given back since, the kernel.
func (c *component) use() (u use, err error) {
	request, err := http.NewRequest(http.MethodGet, "https://"+c.metrics+"/metrics", nil)
	if err != nil {
		return u, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	// By whom it is signed is other tests'.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return u, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return u, fmt.Errorf("metrics of %s: %s %s (%v)", c.name, response.Status, text, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return u, err
	}
	for name, into := range map[string]*int{"go_goroutines": &u.goroutines, "process_open_fds": &u.files, "process_resident_memory_bytes": &u.rss} {
		family := families[name]
		if family == nil || len(family.Metric) != 1 {
			return u, fmt.Errorf("%s says no %s", c.name, name)
		}
		*into = int(family.Metric[0].GetGauge().GetValue())
	}
	u.rss >>= 10
	return u, nil
}

// newPlane starts an API server with what config/default brings, and makes an
// account that may read metrics, whose token it returns.
func newPlane(t *testing.T) (s *apiserver.Server, token string) {
	s = apiserver.Start(t)
	s.Install()
	s.Kubectl("apply", "-f", "../../config/samples/kubevirt-emulation.yaml")
	s.Kubectl("create", "serviceaccount", "default") // kube-controller-manager's work
	s.Kubectl("create", "serviceaccount", "scraper")
	s.Kubectl("create", "clusterrolebinding", "scraper", "--clusterrole=kubevirt-metrics-reader", "--serviceaccount=default:scraper")
	return s, strings.TrimSpace(s.Kubectl("create", "token", "scraper"))
}
