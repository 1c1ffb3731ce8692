package simulation

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Component is a program of Kubeqemu's that runs.
type Component struct {
	Name string

	process *os.Process
	ended   chan error // its end; it has one
	log     string     // file
	metrics string     // address
	token   string     // of an account that may read metrics
}

// PID is its process' ID.
func (p *Component) PID() int { return p.process.Pid }

// Said is the end of its log.
func (p *Component) Said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// Close ends it as a kubelet does.
func (p *Component) Close() error {
	kill := time.AfterFunc(patience, func() { p.process.Kill() })
	defer kill.Stop()
	if err := p.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.Name, err)
	}
	if err := <-p.ended; err != nil {
		return fmt.Errorf("end %s: %w", p.Name, err)
	}
	return nil
}

// run starts a program with the rights of a user.
func (c *Cluster) run(name, metrics string, user *rest.Config, args ...string) (*Component, error) {
	p := &Component{Name: name, metrics: metrics, token: c.token, log: c.file(name + ".log"), ended: make(chan error, 1)}
	kubeconfig := c.file(name + ".kubeconfig")
	if err := writeKubeconfig(kubeconfig, user); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	probes, err := freeAddress()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	output, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd := exec.Command(filepath.Join(c.options.Programs, name), append(args, "--kubeconfig="+kubeconfig, "--health-probe-bind-address="+probes)...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.process = cmd.Process
	go func() { p.ended <- cmd.Wait() }()
	c.closers = append(c.closers, p)
	return p, nil
}

func writeKubeconfig(path string, user *rest.Config) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: user.Host, CertificateAuthorityData: user.CAData}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: user.BearerToken, Impersonate: user.Impersonate.UserName,
		ImpersonateGroups: user.Impersonate.Groups, ImpersonateUserExtra: user.Impersonate.Extra}
	config.Contexts["context"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "user"}
	config.CurrentContext = "context"
	return clientcmd.WriteToFile(*config, path)
}

// freeAddress is one that nobody listened on a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free address: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// StartController starts virt-controller.
func (c *Cluster) StartController() (*Component, error) {
	metrics, err := freeAddress()
	if err != nil {
		return nil, err
	}
	return c.run("virt-controller", metrics, c.As("virt-controller"), "--launcher-image=launcher", "--metrics-bind-address="+metrics,
		fmt.Sprintf("--data-volumes=%t", c.options.DataVolumes))
}

// StartAPI starts virt-api, and returns when the API server asks it about VMIs.
func (c *Cluster) StartAPI(ctx context.Context) (*Component, error) {
	address, err := freeAddress()
	if err == nil {
		err = c.serveAt(ctx, address)
	}
	if err != nil {
		return nil, fmt.Errorf("start virt-api: %w", err)
	}
	p, err := c.run("virt-api", address, c.As("virt-api"), "--bind-address="+address)
	if err != nil {
		return nil, err
	}
	err = Poll(ctx, patience, func() error {
		probe := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "probe"}, Spec: Guest()}
		return c.Client.Create(ctx, probe, client.DryRunAll)
	})
	if err != nil {
		return nil, fmt.Errorf("wait for virt-api: %w", err)
	}
	return p, nil
}

// serveAt applies config/api, with a Service that is an address. Without a network of
// Services, the API server finds virt-api by that one's name and the port in the webhooks.
func (c *Cluster) serveAt(ctx context.Context, address string) error {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return err
	}
	if _, err := c.Server.Try("", "apply", "--server-side", "-k", c.config("api")); err != nil {
		return err
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "virt-api"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if err := errors.Join(c.Client.Delete(ctx, service.DeepCopy()), c.Client.Create(ctx, service)); err != nil {
		return fmt.Errorf("make the Service an address: %w", err)
	}
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	name := client.ObjectKey{Name: "virt-api"}
	if err := errors.Join(c.Client.Get(ctx, name, &mutating), c.Client.Get(ctx, name, &validating)); err != nil {
		return fmt.Errorf("read the webhooks: %w", err)
	}
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].ClientConfig.Service.Port = ptr.To(int32(port))
	}
	for i := range validating.Webhooks {
		validating.Webhooks[i].ClientConfig.Service.Port = ptr.To(int32(port))
	}
	if err := errors.Join(c.Client.Update(ctx, &mutating), c.Client.Update(ctx, &validating)); err != nil {
		return fmt.Errorf("name virt-api's port in the webhooks: %w", err)
	}
	return nil
}

// Use is what a component holds.
type Use struct{ Goroutines, Files, RSS int } // RSS in KiB

// Use asks the component and, for what it has given back since, the kernel.
func (p *Component) Use() (u Use, err error) {
	request, err := http.NewRequest(http.MethodGet, "https://"+p.metrics+"/metrics", nil)
	if err != nil {
		return u, err
	}
	request.Header.Set("Authorization", "Bearer "+p.token)
	// By whom it is signed is other tests'.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return u, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return u, fmt.Errorf("metrics of %s: %s %s (%v)", p.Name, response.Status, text, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return u, err
	}
	for name, into := range map[string]*int{"go_goroutines": &u.Goroutines, "process_open_fds": &u.Files, "process_resident_memory_bytes": &u.RSS} {
		family := families[name]
		if family == nil || len(family.Metric) != 1 {
			return u, fmt.Errorf("%s says no %s", p.Name, name)
		}
		*into = int(family.Metric[0].GetGauge().GetValue())
	}
	u.RSS >>= 10
	return u, nil
}

// LinkPrograms gives virt-components, in a folder, the names of the components.
func LinkPrograms(folder string) error {
	for _, name := range []string{"virt-api", "virt-controller", "virt-handler"} {
		if err := os.Symlink("virt-components", filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}
