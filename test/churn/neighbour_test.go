//go:build long

package churn

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/test/simulation"
)

// soon is how long a neighbour's VM may wait for its pod, whatever a tenant has made.
const soon = 5 * time.Second

// TestNeighbourHasItsPodSoon: beside a tenant's VMs that cannot start, beside DataVolumes that wait, and beside VMIs
// that are deleted, each by the hundred.
func TestNeighbourHasItsPodSoon(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	w := &world{t: t}
	repository, err := filepath.Abs("../..")
	w.must(err)
	w.Cluster, err = simulation.Start(t.Context(), simulation.Options{Repository: repository, Programs: build(t), Folder: t.TempDir(), DataVolumes: true})
	w.must(err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err = w.StartAPI(t.Context())
	w.must(err)
	controller, err := w.StartController()
	w.must(err)
	w.namespace("neighbour")
	w.neighbour("first") // by the time of its pod everything is up
	for _, load := range []struct {
		name string
		make func(namespace string)
	}{
		{"vms", w.vmsThatCannotStart},
		{"datavolumes", w.dataVolumesThatWait},
		{"deletions", w.deletions},
	} {
		t.Run(load.name, func(t *testing.T) {
			w.t = t
			w.namespace(load.name)
			load.make(load.name)
			for i := range 5 {
				took := w.neighbour(fmt.Sprintf("beside-%s-%d", load.name, i))
				t.Logf("a neighbour's VM has its pod after %s", took)
				if took > soon {
					t.Error("that is late")
				}
				time.Sleep(3 * time.Second)
			}
		})
	}
	if t.Failed() {
		t.Logf("the end of what virt-controller says:\n%s", controller.Said())
	}
}

func (w *world) namespace(name string) {
	w.t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	w.must(w.Client.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: meta}))
	w.must(w.Client.Create(w.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}))
}

// neighbour makes a VM, and returns after how long it has its pod.
func (w *world) neighbour(name string) time.Duration {
	w.t.Helper()
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "neighbour", Name: name}}
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	vm.Spec.Template = v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: v1.TemplateMeta{Labels: map[string]string{"of": name}}, Spec: simulation.Guest()}
	w.must(w.Client.Create(w.t.Context(), vm))
	begin := time.Now()
	w.must(await("pod of VM "+name, func() error {
		var pods corev1.PodList
		if err := w.Client.List(w.t.Context(), &pods, client.InNamespace("neighbour"), client.MatchingLabels{"of": name}); err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return fmt.Errorf("there is none")
		}
		return nil
	}))
	return time.Since(begin)
}

// vmsThatCannotStart makes 100 VMs of which each has as many disks as can be, and may clone none.
func (w *world) vmsThatCannotStart(namespace string) {
	w.t.Helper()
	w.together(100, func(i int) error {
		vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("vm-%d", i)}}
		vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
		vm.Spec.Template = v1.VirtualMachineInstanceTemplateSpec{Spec: simulation.Guest()}
		for j := range v1.MaxDataVolumeTemplates {
			template := v1.DataVolumeTemplate{ObjectMeta: v1.DataVolumeTemplateMeta{Name: fmt.Sprintf("disk-%d-%d", i, j)}}
			template.Spec = runtime.RawExtension{Raw: []byte(`{"storage":{"resources":{"requests":{"storage":"1Gi"}}},"source":{"pvc":{"namespace":"kubevirt","name":"golden"}}}`)}
			vm.Spec.DataVolumeTemplates = append(vm.Spec.DataVolumeTemplates, template)
			vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, v1.Volume{Name: fmt.Sprintf("disk-%d", j), DataVolume: &v1.DataVolumeSource{Name: template.ObjectMeta.Name}})
			vm.Spec.Template.Spec.Domain.Devices.Disks = append(vm.Spec.Template.Spec.Domain.Devices.Disks, v1.Disk{Name: fmt.Sprintf("disk-%d", j)})
		}
		return w.Client.Create(w.t.Context(), vm)
	})
}

// dataVolumesThatWait makes 500 DataVolumes whose source is not there.
func (w *world) dataVolumesThatWait(namespace string) {
	w.t.Helper()
	w.together(500, func(i int) error {
		volume := datavolume.Named(client.ObjectKey{Namespace: namespace, Name: fmt.Sprintf("dv-%d", i)})
		volume.Object["spec"] = map[string]any{"storage": map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}}},
			"source": map[string]any{"pvc": map[string]any{"namespace": namespace, "name": "none"}}}
		return w.Client.Create(w.t.Context(), volume)
	})
}

// deletions makes 742 VMIs, and deletes them all.
func (w *world) deletions(namespace string) {
	w.t.Helper()
	w.together(742, func(i int) error {
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("vmi-%d", i)}}
		vmi.Spec = simulation.Guest()
		return w.Client.Create(w.t.Context(), vmi)
	})
	w.together(742, func(i int) error {
		return w.Client.Delete(w.t.Context(), &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("vmi-%d", i)}})
	})
}
