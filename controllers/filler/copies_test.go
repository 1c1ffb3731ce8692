package filler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

var bindingKind = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"}

// ofNamespace is a DataVolume's spec that copies the claim debian of the namespace golden.
const ofNamespace = `{source: {pvc: {namespace: golden, name: debian}}, storage: {resources: {requests: {storage: 64Mi}}}}`

// golden makes the namespace golden, with a claim debian that is bound, and two users who may make
// DataVolumes in the namespace default: one of them may copy what golden has.
func (p *plane) golden() {
	p.t.Helper()
	binding := func(namespace, user, kind, role string) string {
		return fmt.Sprintf(`---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[2]s, namespace: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[2]s}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[3]s, name: "%[4]s"}
`, namespace, user, kind, role)
	}
	p.MustApply(`
apiVersion: v1
kind: Namespace
metadata: {name: golden}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: golden}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: debian, namespace: golden}
spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 64Mi}}}
---
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataSource
metadata: {name: debian, namespace: golden}
spec: {source: {pvc: {namespace: golden, name: debian}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: copy, namespace: golden}
rules: [{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: copy-debian, namespace: golden}
rules: [{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], resourceNames: [debian], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: run, namespace: golden}
rules: [{apiGroups: [""], resources: [pods], verbs: [create]}]
` + binding("golden", "named", "Role", "copy-debian") + binding("default", "named", "ClusterRole", "cdi.kubevirt.io:edit") +
		binding("golden", "runner", "Role", "run") + binding("default", "runner", "ClusterRole", "cdi.kubevirt.io:edit") + binding("golden", "may", "Role", "copy") + binding("default", "may", "ClusterRole", "cdi.kubevirt.io:edit") + binding("default", "maynot", "ClusterRole", "cdi.kubevirt.io:edit"))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: "debian"}}
	p.status(claim, func() { claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests })
	made := &metav1.PartialObjectMetadata{}
	made.SetGroupVersionKind(bindingKind)
	if err := p.Client.Get(context.Background(), client.ObjectKey{Name: sourcesPolicy}, made); err != nil {
		p.t.Fatal(err)
	}
	time.Sleep(time.Until(made.CreationTimestamp.Add(policyDelay + time.Second)))
	p.Until(func() string { return fmt.Sprint(p.tries("maynot", "probe", ofNamespace)) }, func(got string) bool { return strings.Contains(got, sourcesPolicy) })
	p.Until(func() string { return fmt.Sprint(p.tries("may", "probe", ofNamespace)) }, func(got string) bool { return got == "<nil>" })
}

// tries says whether a user could make a DataVolume, with more of its metadata.
func (p *plane) tries(user, name, spec string, metadata ...string) error {
	as, err := client.New(p.As(user), client.Options{Scheme: p.Client.Scheme(), Mapper: p.Client.RESTMapper()})
	if err != nil {
		return err
	}
	return create(as, strings.Join(append(metadata, "name: "+name, "namespace: default"), ", "), spec, client.DryRunAll)
}

// sourcePod waits until a DataVolume has a source pod, and writes its status, as a kubelet would.
func (p *plane) sourcePod(volume string) *corev1.Pod {
	p.t.Helper()
	pod, key := &corev1.Pod{}, client.ObjectKey{Namespace: "golden", Name: sourcePodName(get(p, volume, &cdi.DataVolume{}))}
	p.Until(func() string { return fmt.Sprint(p.Client.Get(context.Background(), key, pod)) }, func(got string) bool { return got == "<nil>" })
	p.status(pod, func() {
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, "10.0.0.7", []corev1.PodIP{{IP: "10.0.0.7"}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, Image: "x", ImageID: "x", State: running()}}
	})
	return pod
}

// noSourcePods waits until no source pod is left, but those that are being deleted.
func (p *plane) noSourcePods() {
	p.t.Helper()
	p.Until(func() string {
		list := &corev1.PodList{}
		if err := p.Client.List(context.Background(), list, client.HasLabels{forLabel}); err != nil {
			return err.Error()
		}
		var left []string
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp == nil {
				left = append(left, list.Items[i].Name)
			}
		}
		return strings.Join(left, " ")
	}, func(got string) bool { return got == "" })
}

// middle brings a copy to its middle.
func (p *plane) middle(name string) {
	p.t.Helper()
	p.volume(name, ofNamespace)
	p.bind(name)
	p.sourcePod(name)
	p.importers.say(podName(name), importer.Progress{Done: 1, Total: 4})
	p.pod(name, corev1.PodRunning, running(), 0)
	p.is(name, cdi.CloneInProgress, "Pod is running")
	p.Until(func() string { return p.Row(&cdi.DataVolume{}, name) }, func(got string) bool { return strings.Contains(got, "25.00%") })
}

// copies: a claim of another namespace is copied by two pods, which are introduced to each other. While
// a pod writes to the source, nothing is copied. Nothing is left.
func copies(p *plane) {
	p.golden()
	p.middle("copy")
	source := p.sourcePod("copy")
	if told := p.importers.told(); !slices.Contains(told, fmt.Sprintf("importer-copy knows %s#0 at %q", source.Name, "10.0.0.7:8445")) ||
		!slices.Contains(told, source.Name+` knows importer-copy#0 at ""`) {
		p.t.Errorf("the pods were told %q", told)
	}
	p.MustApply("{apiVersion: v1, kind: Pod, metadata: {name: writer, namespace: golden}, spec: {containers: [{name: c, image: x}], volumes: [{name: v, persistentVolumeClaim: {claimName: debian}}]}}")
	p.is("copy", cdi.CloneScheduled, "Pod writer uses the source PVC golden/debian")
	p.gone("copy")
	p.noSourcePods()
	p.Said(reasonCloneSourceInUse)
	if volume := get(p, "copy", &cdi.DataVolume{}); volume.Status.Progress != cdi.ProgressUnknown {
		p.t.Errorf("the copy begins anew at %s", volume.Status.Progress)
	}
	p.kill("golden", "writer")
	p.sourcePod("copy")
	p.pod("copy", corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, 0)
	p.is("copy", cdi.Succeeded, "Clone Complete")
	p.gone("copy")
	p.noSourcePods()
	p.Said("CloneScheduled", "CloneInProgress", "CloneSucceeded")
	p.middle("dropped")
	p.Delete(&cdi.DataVolume{}, "dropped")
	p.noSourcePods()
	p.Delete(&cdi.DataVolume{}, "copy")
	copyRights(p)
}

// copyRights: who may not copy from a namespace makes no such DataVolume, and a DataVolume that nobody was
// asked about is not filled.
func copyRights(p *plane) {
	const storage = ", storage: {resources: {requests: {storage: 64Mi}}}}"
	for spec, asks := range map[string]bool{
		ofNamespace: true,
		"{source: {snapshot: {namespace: golden, name: debian}}" + storage:           true,
		"{sourceRef: {kind: DataSource, name: debian, namespace: golden}" + storage:  true,
		"{source: {pvc: {namespace: default, name: x}}" + storage:                    false,
		"{source: {pvc: {namespace: '', name: x}}" + storage:                         false,
		"{sourceRef: {kind: DataSource, name: debian}" + storage:                     false,
		"{sourceRef: {kind: DataSource, name: debian, namespace: default}" + storage: false,
		small: false,
	} {
		if err := p.tries("may", "disk", spec); err != nil {
			p.t.Errorf("%s by who may: %v", spec, err)
		}
		if err := p.tries("maynot", "disk", spec); asks != (err != nil) || err != nil && !strings.Contains(err.Error(), "you may not copy from namespace golden") {
			p.t.Errorf("%s by who may not: %v", spec, err)
		}
	}
	const vms = "ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: vm, uid: x, controller: true}], annotations: {kubeqemu.io/service-account: may, cdi.kubevirt.io/storage.prePopulated: disk}"
	if err := p.tries("maynot", "disk", ofNamespace, vms); err == nil || !strings.Contains(err.Error(), sourcesPolicy) {
		p.t.Errorf("a DataVolume that pretends to be a VM's: %v", err)
	}
	// By a right to one claim, and by the right to use any claim in a pod.
	for of, allowed := range map[string]bool{
		"named " + ofNamespace: true,
		"named {source: {pvc: {namespace: golden, name: other}}" + storage:                false,
		"named {sourceRef: {kind: DataSource, name: debian, namespace: golden}" + storage: false,
		"runner " + ofNamespace: true,
		"runner {sourceRef: {kind: DataSource, name: debian, namespace: golden}" + storage: true,
		"runner {source: {snapshot: {namespace: golden, name: debian}}" + storage:          false,
	} {
		user, spec, _ := strings.Cut(of, " ")
		if err := p.tries(user, "disk", spec); allowed != (err == nil) {
			p.t.Errorf("%s: %v", of, err)
		}
	}
	// A tenant's DataSource lends nobody what another namespace has.
	p.MustApply("{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataSource, metadata: {name: sly, namespace: default}, spec: {source: {pvc: {namespace: golden, name: debian}}}}")
	p.volume("sly", "{sourceRef: {kind: DataSource, name: sly}, storage: {}}")
	p.is("sly", cdi.Pending, "leads to namespace golden")
	p.volume("referred", "{sourceRef: {kind: DataSource, name: debian, namespace: golden}, storage: {}}")
	if claim := p.bind("referred"); claim.Spec.Resources.Requests.Storage().String() != "64Mi" {
		p.t.Errorf("the claim asks for %s", claim.Spec.Resources.Requests.Storage())
	}
	p.sourcePod("referred")
	p.Delete(&cdi.DataVolume{}, "referred", "sly")
	p.Kubectl("delete", "validatingadmissionpolicybinding", sourcesPolicy)
	p.Until(func() string { return fmt.Sprint(p.tries("maynot", "disk", ofNamespace)) }, func(got string) bool { return got == "<nil>" })
	p.volume("unasked", ofNamespace)
	p.is("unasked", cdi.Pending, reasonErrNotAuthorized)
	p.install(objects)
	time.Sleep(3 * time.Second)
	p.is("unasked", cdi.Pending, reasonErrNotAuthorized)
	p.noSourcePods()
	p.Delete(&cdi.DataVolume{}, "unasked")
}

// importerPods: nobody but virt-controller makes importer pods, or changes whose they are and what runs
// in them.
func importerPods(p *plane) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}
		change(pod)
		return pod
	}
	refused := func(name string, err error) {
		p.t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubevirt-importer-pods") {
			p.t.Errorf("%s: %v, want to be forbidden", name, err)
		}
	}
	forged := pod(func(pod *corev1.Pod) { pod.Labels = map[string]string{v1.AppLabel: importerName} })
	p.Until(func() string { return fmt.Sprint(p.Client.Create(p.t.Context(), forged.DeepCopy(), client.DryRunAll)) },
		func(got string) bool { return strings.Contains(got, "kubevirt-importer-pods") })
	refused("a source pod", p.Client.Create(p.t.Context(), pod(func(pod *corev1.Pod) { pod.Labels = map[string]string{forLabel: "x"} }), client.DryRunAll))
	p.volume("held", small)
	p.bind("held")
	made := there(p, podName("held"), &corev1.Pod{})
	for name, change := range map[string]func(*corev1.Pod){
		"no label":           func(pod *corev1.Pod) { delete(pod.Labels, v1.AppLabel) },
		"a source's label":   func(pod *corev1.Pod) { pod.Labels[forLabel] = "x" },
		"another image":      func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "y" },
		"another claim":      func(pod *corev1.Pod) { pod.Annotations[claimAnnotation] = "x" },
		"another source":     func(pod *corev1.Pod) { pod.Annotations[sourcePodAnnotation] = "x" },
		"another DataVolume": func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "x" },
		"a finalizer":        func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/stays"} },
		"Kubernetes's own":   func(pod *corev1.Pod) { pod.Finalizers = []string{metav1.FinalizerDeleteDependents} },
	} {
		changed := made.DeepCopy()
		change(changed)
		refused(name, p.Client.Patch(p.t.Context(), changed, client.MergeFrom(made), client.DryRunAll))
	}
	changed := made.DeepCopy()
	changed.Labels["team"], changed.Annotations["note"], changed.OwnerReferences = "x", "y", nil
	if err := p.Client.Patch(p.t.Context(), changed, client.MergeFrom(made), client.DryRunAll); err != nil {
		p.t.Errorf("other metadata: %v", err)
	}
	p.Delete(&cdi.DataVolume{}, "held")
}
