// Package capk has the code of cluster-api-provider-kubevirt make, drain and delete a VM of a cluster with Kubeqemu.
package capk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	infrav1 "sigs.k8s.io/cluster-api-provider-kubevirt/api/v1alpha1"
	capkcontext "sigs.k8s.io/cluster-api-provider-kubevirt/pkg/context"
	"sigs.k8s.io/cluster-api-provider-kubevirt/pkg/kubevirt"
	clusterv1 "sigs.k8s.io/cluster-api/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"
)

const (
	namespace = "capk"
	name      = "worker"
	// patience bounds every wait.
	patience = 5 * time.Minute
)

// machineManifest has the fields of the provider's own template (templates/cluster-template.yaml), with a guest of ours.
const machineManifest = `
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: KubevirtMachine
metadata: {name: worker, namespace: capk}
spec:
  virtualMachineBootstrapCheck: {checkStrategy: none}
  virtualMachineTemplate:
    metadata: {namespace: capk}
    spec:
      runStrategy: Always
      template:
        spec:
          domain:
            cpu: {cores: 2}
            memory: {guest: 128Mi}
            devices:
              networkInterfaceMultiqueue: true
              disks:
              - disk: {bus: virtio}
                name: containervolume
          evictionStrategy: External
          volumes:
          - containerDisk: {image: "localhost/kubeqemu/tiny-virtio-container-disk:dev"}
            name: containervolume
`

// workload plays the cluster whose node the VM is. The provider looks there for a node with the name of the node that the VM is to leave.
type workload struct{ kubernetes.Interface }

func (w workload) GenerateWorkloadClusterClient(*capkcontext.MachineContext) (client.Client, error) {
	return nil, errors.New("not asked for by a drain")
}

func (w workload) GenerateWorkloadClusterK8sClient(*capkcontext.MachineContext) (kubernetes.Interface, error) {
	return w.Interface, nil
}

// cluster is the cluster with Kubeqemu, and the provider's machine in it.
type cluster struct {
	t    *testing.T
	kube client.Client
	core kubernetes.Interface
	ctx  *capkcontext.MachineContext
}

func connect(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("KUBECONFIG names no cluster: run `make capk`")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), kubevirtv1.AddToScheme(scheme), cdiv1.AddToScheme(scheme), infrav1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t}
	if c.kube, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if c.core, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return c
}

// prepare installs the provider's kind, and makes its machine and the Secret with its user data.
func (c *cluster) prepare() {
	c.t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api-provider-kubevirt").Output()
	if err != nil {
		c.t.Fatal(err)
	}
	crd := filepath.Join(strings.TrimSpace(string(out)), "config/crd/bases/infrastructure.cluster.x-k8s.io_kubevirtmachines.yaml")
	kubectl := func(args ...string) error {
		if out, err := exec.Command("kubectl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %v: %w: %s", args, err, out)
		}
		return nil
	}
	if err := kubectl("apply", "--server-side", "-f", crd); err != nil {
		c.t.Fatal(err)
	}
	// kubectl wait fails at once on a definition whose conditions are still null.
	c.await("the provider's kind is served", func() error {
		return kubectl("wait", "--for=condition=established", "--timeout=10s", "-f", crd)
	})
	machine := &infrav1.KubevirtMachine{}
	if err := yaml.UnmarshalStrict([]byte(machineManifest), machine); err != nil {
		c.t.Fatal(err)
	}
	secret := "bootstrap"
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret + "-userdata"}, StringData: map[string]string{"userdata": "#tiny\n"}},
		machine,
	} {
		if err := c.kube.Create(context.Background(), o); err != nil {
			c.t.Fatal(err)
		}
	}
	c.ctx = &capkcontext.MachineContext{Context: context.Background(), Logger: log.Log, KubevirtMachine: machine,
		Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}},
		Machine: &clusterv1.Machine{Spec: clusterv1.MachineSpec{Bootstrap: clusterv1.Bootstrap{DataSecretName: &secret}}}}
}

// machine is the provider's view of the VM now.
func (c *cluster) machine() *kubevirt.Machine {
	c.t.Helper()
	m, err := kubevirt.NewMachine(c.ctx, c.kube, namespace, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

func (c *cluster) await(what string, ask func() error) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v", what, err)
		}
	}
}

func (c *cluster) ready() {
	c.t.Helper()
	c.await("the machine gets ready", func() error {
		if m := c.machine(); !m.IsReady() || m.Address() == "" {
			reason, message := m.GetVMNotReadyReason()
			return fmt.Errorf("%s: %s", reason, message)
		}
		return nil
	})
}

func (c *cluster) vmi() *kubevirtv1.VirtualMachineInstance {
	c.t.Helper()
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := c.kube.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, vmi); err != nil {
		c.t.Fatal(err)
	}
	return vmi
}

// evict asks for the eviction of the VM's pod, as kubectl drain does.
func (c *cluster) evict() error {
	c.t.Helper()
	pods, err := c.core.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "kubevirt.io=virt-launcher"})
	if err != nil || len(pods.Items) != 1 {
		c.t.Fatalf("%d launcher pods (%v)", len(pods.Items), err)
	}
	return c.core.PolicyV1().Evictions(namespace).Evict(context.Background(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pods.Items[0].Name}})
}

// TestProviderMakesDrainsAndDeletesAVM: the provider makes a VM of the strategy External. An eviction of the VM's pod is refused until the provider has drained the tenant's node and
// has deleted the VM's guest, and the VM starts again. The provider deletes the VM.
func TestProviderMakesDrainsAndDeletesAVM(t *testing.T) {
	c := connect(t)
	c.prepare()
	if err := c.machine().Create(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.ready()
	m := c.machine()
	if terminal, reason, err := m.IsTerminal(); terminal || err != nil {
		t.Errorf("a machine that runs is terminal: %s (%v)", reason, err)
	}
	if migratable, reason, message, err := m.IsLiveMigratable(); err != nil {
		t.Errorf("LiveMigratable is missing: %v", err)
	} else {
		t.Logf("LiveMigratable is %t: %s %s", migratable, reason, message)
	}
	before := c.vmi()
	node := before.Status.NodeName
	tenant := workload{fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})}
	if after, err := m.DrainNodeIfNeeded(tenant); after != 0 || err != nil {
		t.Errorf("a machine that nobody evicts is drained: %s, %v", after, err)
	}
	if err := c.evict(); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("the eviction is answered with %v, want 429", err)
	}
	if got := c.vmi().Status.EvacuationNodeName; got != node {
		t.Fatalf("evacuationNodeName is %q, want %q", got, node)
	}
	after, err := c.machine().DrainNodeIfNeeded(tenant)
	if after != 10*time.Second || err != nil {
		t.Fatalf("the drain ends with %s, %v; after a deletion of the VMI the provider says 10 s", after, err)
	}
	if n, err := tenant.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{}); err != nil || !n.Spec.Unschedulable {
		t.Errorf("the tenant's node is not cordoned: %v", err)
	}
	c.await("the VM starts again", func() error {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		if err := c.kube.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, vmi); err != nil {
			return err
		}
		if vmi.UID == before.UID {
			return errors.New("the VMI is the one that was evicted")
		}
		return nil
	})
	c.ready()
	if got := c.vmi().Status.EvacuationNodeName; got != "" {
		t.Errorf("the new guest is to leave %s", got)
	}
	if err := c.machine().Delete(); err != nil {
		t.Fatal(err)
	}
	c.await("the VM goes", func() error {
		if c.machine().Exists() {
			return errors.New("the VM is there")
		}
		return nil
	})
}
