// Package compat holds Kubeqemu against KubeVirt's own Go packages: what is
// served against its API, and a running cluster against its client, which is
// told nothing but where the API server is:
//
//	KUBECONFIG=… go test ./...
//
// It is a module of its own, so that the product needs nothing of KubeVirt's.
package compat

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubecli"
	kvcorev1 "kubevirt.io/client-go/kubevirt/typed/core/v1"
)

// Guests of the repository, the one with an agent and an SSH server, and of their disks.
const (
	tiny   = "localhost/kubeqemu/tiny-virtio-container-disk:dev"
	debian = "localhost/kubeqemu/debian-container-disk:dev"
)

// machine is a VM in a namespace of its own.
type machine struct {
	t         *testing.T
	client    kubecli.KubevirtClient
	namespace string
}

func newMachine(t *testing.T, edits ...func(*v1.VirtualMachineInstanceSpec)) *machine {
	t.Helper()
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		t.Fatal("KUBECONFIG names no cluster; bring one up, such as with `make demo`")
	}
	client, err := kubecli.GetKubevirtClientFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, client: client}
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "compat-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.namespace = namespace.Name
	t.Cleanup(func() {
		if err := client.CoreV1().Namespaces().Delete(context.Background(), m.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	strategy, guest := v1.RunStrategyHalted, resource.MustParse("128Mi")
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Spec: v1.VirtualMachineSpec{RunStrategy: &strategy, Template: &v1.VirtualMachineInstanceTemplateSpec{
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &guest}, Devices: v1.Devices{
				Disks:      []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
				Interfaces: []v1.Interface{{Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}}}},
			TerminationGracePeriodSeconds: new(int64),
			Networks:                      []v1.Network{*v1.DefaultPodNetwork()},
			Volumes:                       []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: tiny}}}},
		}}}}
	for _, edit := range edits {
		edit(&vm.Spec.Template.Spec)
	}
	if _, err := client.VirtualMachine(m.namespace).Create(t.Context(), vm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// patience is for a guest that boots emulated, beside others.
const patience = 6 * time.Minute

// await asks until there is no error any more.
func (m *machine) await(what string, ask func() error) {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(300 * time.Millisecond)
	}
}

// is waits for the VM's printable status.
func (m *machine) is(want v1.VirtualMachinePrintableStatus) {
	m.t.Helper()
	m.await(string(want), func() error {
		vm, err := m.client.VirtualMachine(m.namespace).Get(m.t.Context(), "vm", metav1.GetOptions{})
		if err == nil && vm.Status.PrintableStatus != want {
			err = fmt.Errorf("the VM is %s", vm.Status.PrintableStatus)
		}
		return err
	})
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// terminal is a console, as virtctl makes it.
type terminal struct {
	m     *machine
	input io.WriteCloser
	ended chan error

	mu   sync.Mutex
	text bytes.Buffer
}

func (s *terminal) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (m *machine) console() *terminal {
	m.t.Helper()
	stream, err := m.client.VirtualMachineInstance(m.namespace).SerialConsole("vm", &kvcorev1.SerialConsoleOptions{ConnectionTimeout: time.Minute})
	m.must(err)
	in, input := io.Pipe()
	s := &terminal{m: m, input: input, ended: make(chan error, 1)}
	go func() { s.ended <- stream.Stream(kvcorev1.StreamOptions{In: in, Out: s}) }()
	m.t.Cleanup(func() { input.Close() })
	return s
}

// shows types a line until the answer is there.
func (s *terminal) shows(line, answer string) {
	s.m.t.Helper()
	s.m.await("console", func() error {
		if _, err := io.WriteString(s.input, line+"\n"); err != nil {
			return err
		}
		time.Sleep(time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		if !strings.Contains(s.text.String(), answer) {
			return fmt.Errorf("no %q in:\n%s", answer, s.text.String())
		}
		return nil
	})
}

// greeting reads what the other end says first.
func (m *machine) greeting(stream kvcorev1.StreamInterface, say, want string) {
	m.t.Helper()
	conn := stream.AsConn()
	defer conn.Close()
	m.must(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	_, err := io.WriteString(conn, say)
	m.must(err)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		m.t.Errorf("%q: %v, want %q", got, err, want)
	}
}

// TestClientDoesWhatVirtctlDoes does with KubeVirt's client what virtctl does.
func TestClientDoesWhatVirtctlDoes(t *testing.T) {
	m := newMachine(t)
	machines, instances := m.client.VirtualMachine(m.namespace), m.client.VirtualMachineInstance(m.namespace)
	ctx := t.Context()
	m.is(v1.VirtualMachineStatusStopped)
	list, err := machines.List(ctx, metav1.ListOptions{})
	if m.must(err); len(list.Items) != 1 {
		t.Errorf("%d VMs", len(list.Items))
	}
	version := m.client.GeneratedKubeVirtClient().KubevirtV1().RESTClient().APIVersion()
	if version != v1.SchemeGroupVersion {
		t.Errorf("the client says %s", version)
	}
	m.must(machines.Start(ctx, "vm", &v1.StartOptions{}))
	// KubeVirt's client waits for one that does not run yet, but not for one that
	// is not there yet.
	m.await("the VMI", func() error {
		_, err := instances.Get(ctx, "vm", metav1.GetOptions{})
		return err
	})
	s := m.console() // while it is not running yet
	s.shows("echo $((6*7))-", "42-")
	m.must(instances.Pause(ctx, "vm", &v1.PauseOptions{}))
	m.is(v1.VirtualMachineStatusPaused)
	if err := instances.Pause(ctx, "vm", &v1.PauseOptions{}); err == nil || !strings.Contains(err.Error(), "VMI is already paused") {
		t.Errorf("paused twice: %v", err)
	}
	m.must(instances.Unpause(ctx, "vm", &v1.UnpauseOptions{}))
	m.is(v1.VirtualMachineStatusRunning)
	s.shows("echo $((6*8))-", "48-")
	m.screen()
	m.expanded()
	for _, forward := range []func() (kvcorev1.StreamInterface, error){
		func() (kvcorev1.StreamInterface, error) { return instances.PortForward("vm", 7, "tcp") },
		func() (kvcorev1.StreamInterface, error) { return machines.PortForward("vm", 7, "tcp") },
	} {
		stream, err := forward()
		m.must(err)
		m.greeting(stream, "to-and-fro", "to-and-fro")
	}
	before, err := instances.Get(ctx, "vm", metav1.GetOptions{})
	m.must(err)
	m.must(machines.Restart(ctx, "vm", &v1.RestartOptions{}))
	m.await("restart", func() error {
		after, err := instances.Get(ctx, "vm", metav1.GetOptions{})
		if err == nil && (after.UID == before.UID || after.Status.Phase != v1.Running) {
			err = fmt.Errorf("VMI %s is %s", after.UID, after.Status.Phase)
		}
		return err
	})
	m.must(instances.Reset(ctx, "vm"))
	m.must(machines.Stop(ctx, "vm", &v1.StopOptions{}))
	m.is(v1.VirtualMachineStatusStopped)
	if _, err := instances.SerialConsole("vm", &kvcorev1.SerialConsoleOptions{}); err == nil {
		t.Error("a console of a VM that is stopped")
	}
	server, err := m.client.ServerVersion().Get()
	if err != nil || server.GoVersion == "" {
		t.Errorf("version %v: %v", server, err)
	}
}
