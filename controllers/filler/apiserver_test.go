package filler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/portforward"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// plane is an API server with the objects of config/datavolumes and virt-controller's rights. The test
// is the kubelet, the provisioner of volumes, and the importers.
type plane struct {
	*apiserver.Plane
	t         *testing.T
	importers *importers
}

var shared = apiserver.Shared{Install: apiserver.Installs("kubevirts")}

// newPlane returns the namespace default of the package's API server: one test has all of it, as a Filler is for
// all namespaces, and the kinds of DataVolumes come and go.
func newPlane(t *testing.T) *plane {
	t.Helper()
	server := shared.Server(t)
	of := apiserver.NewPlane(server.In(t, "default"), []string{"dv", "pvc", "pods"}, v1.AddToScheme, cdi.AddToScheme)
	p := &plane{of, t, &importers{}}
	p.install(objects, "../../config/samples/kubevirt.yaml")
	p.MustApply(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: test
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: other, namespace: default}
`)
	return p
}

// filler starts a virt-controller with a Filler, and returns how to end it.
func (p *plane) filler() (end func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p.Control(func(mgr ctrl.Manager) error {
		f := &Filler{Enabled: true, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Events: kit.BoundedEvents(mgr.GetEventRecorder("virt-controller")),
			Config: testConfig, Period: 200 * time.Millisecond, Dial: p.importers.dial, mgr: mgr, log: mgr.GetLogger()}
		return mgr.Add(&untilEnded{f, ctx})
	})
	return cancel
}

// untilEnded ends a Filler before its manager.
type untilEnded struct {
	filler *Filler
	ctx    context.Context
}

func (u *untilEnded) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(u.ctx, cancel)()
	return u.filler.Start(ctx)
}

// objects are what config/datavolumes adds to config/default.
const objects = "../../config/datavolumes/objects"

// install applies the manifests of files and folders.
func (p *plane) install(paths ...string) {
	p.t.Helper()
	all, err := apiserver.Read(paths...)
	if err == nil {
		err = p.Server.Apply(p.t.Context(), all...)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// volume makes a DataVolume.
func (p *plane) volume(name, spec string, annotations ...string) {
	p.t.Helper()
	p.MustApply(fmt.Sprintf("apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: %s, namespace: default, annotations: {%s}}\nspec: %s\n", name, strings.Join(annotations, ","), spec))
}

func get[T client.Object](p *plane, name string, into T) T {
	p.t.Helper()
	if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: name}, into); err != nil {
		p.t.Fatal(err)
	}
	return into
}

// is waits until the DataVolume is in the phase, and says so in a condition.
func (p *plane) is(name string, phase cdi.DataVolumePhase, says string) *cdi.DataVolume {
	p.t.Helper()
	volume := &cdi.DataVolume{}
	p.Until(func() string {
		volume = get(p, name, &cdi.DataVolume{})
		return fmt.Sprintf("%s %s %v", volume.Status.Phase, volume.Status.Progress, volume.Status.Conditions)
	}, func(got string) bool { return strings.HasPrefix(got, string(phase)+" ") && strings.Contains(got, says) })
	return volume
}

// there waits until an object is there.
func there[T client.Object](p *plane, name string, into T) T {
	p.t.Helper()
	p.Until(func() string {
		return fmt.Sprint(p.Client.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: name}, into))
	}, func(got string) bool { return got == "<nil>" })
	return into
}

// status changes the status of an object that is there, as a kubelet or a provisioner would: anew where somebody wrote the object meanwhile.
func (p *plane) status(object client.Object, change func()) {
	p.t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := p.Client.Get(context.Background(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		return p.Client.Status().Update(context.Background(), object)
	}); err != nil {
		p.t.Fatal(err)
	}
}

// bind binds a claim, as a provisioner would.
func (p *plane) bind(name string) *corev1.PersistentVolumeClaim {
	p.t.Helper()
	claim := there(p, name, &corev1.PersistentVolumeClaim{})
	p.status(claim, func() { claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests })
	return claim
}

// pod writes the status of a DataVolume's importer pod, as a kubelet would.
func (p *plane) pod(volume string, phase corev1.PodPhase, container corev1.ContainerState, restarts int32) *corev1.Pod {
	p.t.Helper()
	pod := there(p, podName(volume), &corev1.Pod{})
	p.status(pod, func() {
		pod.Status.Phase = phase
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, Image: "x", ImageID: "x", State: container, RestartCount: restarts}}
	})
	return pod
}

// gone waits until a DataVolume's importer pod is gone, or is being deleted: there is no kubelet.
func (p *plane) gone(volume string) {
	p.t.Helper()
	p.Until(func() string {
		pod := &corev1.Pod{}
		err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: podName(volume)}, pod)
		if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
			return "gone"
		}
		return fmt.Sprint(err)
	}, func(got string) bool { return got == "gone" })
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

// condition waits until the KubeVirt's condition has the reason.
func (p *plane) condition(reason string) {
	p.t.Helper()
	p.Until(func() string {
		kv := &v1.KubeVirt{}
		if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, kv); err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(kv.Status.Conditions, func(c v1.KubeVirtCondition) bool { return c.Type == v1.KubeVirtConditionDataVolumesFilled })
		if i < 0 {
			return ""
		}
		return kv.Status.Conditions[i].Reason
	}, func(got string) bool { return got == reason })
}

const (
	small = `{source: {blank: {}}, storage: {resources: {requests: {storage: 64Mi}}}}`
	late  = `{source: {http: {url: "http://example.com/x"}}, storage: {storageClassName: late, resources: {requests: {storage: 64Mi}}}}`
)

// TestDataVolumes is one test, for one API server: starting it takes longer than all the rest.
func TestDataVolumes(t *testing.T) {
	p := newPlane(t)
	end := p.filler()
	p.condition(v1.ReasonFillsDataVolumes)
	for name, test := range map[string]func(*plane){"life": life, "failure": failing, "deletion": deleted, "first consumer": firstConsumer, "claims": claims,
		"refused": refused, "schemas": schemas, "policies": policies, "copies": copies, "snapshots": snapshots, "importer pods": importerPods,
		"upload": upload, "asked": asked} {
		t.Run(name, func(t *testing.T) {
			of := *p
			of.Plane, of.t = p.With(t), t
			test(&of)
		})
	}
	restarted(p, end)
	standsBack(p)
	kept(p)
}

// create creates a DataVolume, with what else is in its metadata.
func create(as client.Client, metadata, spec string, options ...client.CreateOption) error {
	objects, err := apiserver.Parse(fmt.Sprintf("apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {%s}\nspec: %s\n", metadata, spec))
	if err != nil {
		return err
	}
	return as.Create(context.Background(), objects[0], append(options, client.FieldValidation(metav1.FieldValidationStrict))...)
}

// kill deletes a pod at once: no kubelet ends it.
func (p *plane) kill(namespace, name string) {
	p.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := p.Client.Delete(p.t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		p.t.Fatal(err)
	}
}

// life: from nothing to a filled disk.
func life(p *plane) {
	p.volume("one", small)
	p.is("one", cdi.Pending, "PVC one names no StorageClass, and no StorageClass is the cluster's default")
	claim := p.bind("one")
	if size := claim.Spec.Resources.Requests.Storage(); size.String() != "69Mi" && size.String() != "68Mi" {
		p.t.Errorf("the claim asks for %s", size)
	}
	p.is("one", cdi.ImportScheduled, "PVC one Bound")
	p.importers.say(podName("one"), importer.Progress{Done: 1, Total: 8})
	pod := p.pod("one", corev1.PodRunning, running(), 0)
	volume := p.is("one", cdi.ImportInProgress, "Pod is running")
	p.Until(func() string { return p.Row(&cdi.DataVolume{}, "one") }, func(got string) bool { return strings.Contains(got, "12.50%") })
	if head := strings.Fields(p.Kubectl("get", "dv", "one")); strings.Join(head[:5], " ") != "NAME PHASE PROGRESS RESTARTS AGE" {
		p.t.Errorf("the columns are %v", head)
	}
	for _, o := range []client.Object{claim, pod} {
		if !owns(volume, o) {
			p.t.Errorf("%s is not deleted with the DataVolume: %v", o.GetName(), o.GetOwnerReferences())
		}
	}
	p.pod("one", corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}, 0)
	volume = p.is("one", cdi.Succeeded, "100.0%")
	p.gone("one")
	p.Kubectl("wait", "--for=condition=Ready", "--timeout=60s", "dv/one")
	if volume.Status.ClaimName != "one" || get(p, "one", &corev1.PersistentVolumeClaim{}).Annotations[cdi.PopulatedForAnnotation] != "one" {
		p.t.Errorf("%+v", volume.Status)
	}
	p.Said("ImportScheduled", "ImportInProgress", "ImportSucceeded")
	p.Delete(&cdi.DataVolume{}, "one")
}

// failing: what the importer said last is in the condition, and restarts count up.
func failing(p *plane) {
	p.volume("bad", small)
	p.bind("bad")
	p.pod("bad", corev1.PodRunning, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "no such host"}}, 2)
	if volume := p.is("bad", cdi.ImportInProgress, "no such host"); volume.Status.RestartCount != 2 {
		p.t.Errorf("%+v", volume.Status)
	}
	p.Said("Error")
	p.volume("evicted", small)
	p.bind("evicted")
	p.pod("evicted", corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}, 0)
	p.is("evicted", cdi.ImportScheduled, "failed")
	p.Until(func() string { return there(p, podName("evicted"), &corev1.Pod{}).Annotations[restartsAnnotation] }, func(got string) bool { return got == "1" })
	if volume := get(p, "evicted", &cdi.DataVolume{}); volume.Status.RestartCount != 1 {
		p.t.Errorf("%+v", volume.Status)
	}
	p.Delete(&cdi.DataVolume{}, "bad", "evicted")
}

// deleted: a DataVolume that goes in the middle of its import is left alone. The garbage collector, which
// does not run here, takes the claim and the pod.
func deleted(p *plane) {
	p.volume("gone", small)
	claim := p.bind("gone")
	p.importers.say(podName("gone"), importer.Progress{Done: 1, Total: 4})
	pod := p.pod("gone", corev1.PodRunning, running(), 0)
	p.is("gone", cdi.ImportInProgress, "25.00%")
	p.Delete(&cdi.DataVolume{}, "gone")
	p.Until(func() string { return fmt.Sprint(p.importers.open.Load()) }, func(got string) bool { return got == "0" })
	p.kill("default", pod.Name)
	p.DeleteLater(&corev1.PersistentVolumeClaim{}, claim.Name)
	time.Sleep(time.Second)
	for name, object := range map[string]client.Object{pod.Name: &corev1.Pod{}, claim.Name: &corev1.PersistentVolumeClaim{}} {
		err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: name}, object)
		if !apierrors.IsNotFound(err) && (err != nil || object.GetDeletionTimestamp() == nil) {
			p.t.Errorf("%s was made again: %v (%v)", name, object, err)
		}
	}
}

// firstConsumer: a claim that is bound by its first pod waits for that pod.
func firstConsumer(p *plane) {
	p.volume("late", late)
	p.is("late", cdi.WaitForFirstConsumer, "PVC late Pending")
	if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: podName("late")}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		p.t.Errorf("there is an importer pod before the claim is bound (%v)", err)
	}
	p.bind("late")
	p.is("late", cdi.ImportScheduled, "PVC late Bound")
	p.volume("early", late, cdi.ImmediateBindingAnnotation+`: ""`)
	p.is("early", cdi.ImportScheduled, "PVC early Pending")
	there(p, podName("early"), &corev1.Pod{})
	p.Delete(&cdi.DataVolume{}, "early", "late")
}

// claims: a claim that is there is adopted, or left alone.
func claims(p *plane) {
	claim := func(name, metadata string) {
		p.MustApply(fmt.Sprintf("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s, namespace: default, %s}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}\n", name, metadata))
	}
	claim("mine", "annotations: {note: mine}")
	before := get(p, "mine", &corev1.PersistentVolumeClaim{})
	p.volume("mine", small)
	p.is("mine", cdi.Pending, reasonClaimNotValid)
	p.Said(reasonClaimNotValid)
	if after := get(p, "mine", &corev1.PersistentVolumeClaim{}); after.ResourceVersion != before.ResourceVersion {
		p.t.Error("a claim that may not be adopted was changed")
	}
	p.Patch(&cdi.DataVolume{}, "mine", `{"metadata":{"annotations":{"`+cdi.AdoptionAnnotation+`":"true"}}}`)
	volume := p.is("mine", cdi.Succeeded, "")
	if after := get(p, "mine", &corev1.PersistentVolumeClaim{}); !owns(volume, after) || after.UID != before.UID || after.Annotations["note"] != "mine" {
		p.t.Errorf("%+v", after.ObjectMeta)
	}
	claim("restored", "annotations: {"+cdi.PopulatedForAnnotation+": restored}")
	p.volume("restored", small)
	p.is("restored", cdi.Succeeded, "")
	claim("others", "ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: u, controller: true}]")
	p.volume("others", small, cdi.AdoptionAnnotation+`: "true"`)
	p.is("others", cdi.Pending, "StatefulSet db")
	p.Delete(&cdi.DataVolume{}, "mine", "restored", "others")
}

// refused: the condition names the field, and the API server's refusals are passed on.
func refused(p *plane) {
	p.volume("sizeless", `{source: {blank: {}}, storage: {}}`)
	p.is("sizeless", cdi.Pending, "spec.storage.resources.requests[storage]")
	p.volume("modeless", `{source: {blank: {}}, pvc: {resources: {requests: {storage: 64Mi}}}}`)
	p.is("modeless", cdi.Pending, "spec.accessModes")
	p.volume("classless", `{source: {blank: {}}, priorityClassName: none, storage: {resources: {requests: {storage: 64Mi}}}}`)
	p.bind("classless")
	p.is("classless", cdi.PVCBound, reasonStartingPod)
	p.Delete(&cdi.DataVolume{}, "sizeless", "modeless", "classless")
}

// schemas: the API server names what it refuses.
func schemas(p *plane) {
	const storage = "storage: {resources: {requests: {storage: 64Mi}}}"
	for spec, want := range map[string]string{
		"{source: {s3: {url: x}}, " + storage + "}":                                      "spec.source.s3: Invalid value: not supported yet",
		"{source: {gcs: {url: x}}, " + storage + "}":                                     "spec.source.gcs",
		"{source: {vddk: {url: x}}, " + storage + "}":                                    "spec.source.vddk",
		"{source: {imageio: {url: x}}, " + storage + "}":                                 "spec.source.imageio",
		"{source: {blank: {}, upload: {}}, " + storage + "}":                             "spec.source",
		"{source: {}, " + storage + "}":                                                  "spec.source",
		"{source: {blank: {}}}":                                                          "set either storage or pvc",
		"{source: {blank: {}}, contentType: archive, " + storage + "}":                   "spec.contentType",
		"{source: {blank: {}}, checkpoints: [{current: a}], " + storage + "}":            "spec.checkpoints",
		"{source: {blank: {}}, finalCheckpoint: true, " + storage + "}":                  "spec.finalCheckpoint",
		"{source: {http: {url: 'http://x', checksum: 'md5:0'}}, " + storage + "}":        "spec.source.http.checksum",
		"{source: {http: {url: 'http://x', insecureSkipVerify: true}}, " + storage + "}": "spec.source.http.insecureSkipVerify",
		"{source: {blank: {}}, sourceRef: {kind: DataSource, name: x}, " + storage + "}": "source and sourceRef exclude each other",
	} {
		err := create(p.Client, "name: wrong, namespace: default", spec)
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `"object": `, ""), strings.Split(want, ": ")[0]) {
			p.t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
	p.volume("fixed", small)
	if err := p.Client.Patch(p.t.Context(), get(p, "fixed", &cdi.DataVolume{}), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"preallocation":true}}`))); err == nil || !strings.Contains(err.Error(), "spec cannot be changed") {
		p.t.Errorf("a changed spec: %v", err)
	}
	p.Delete(&cdi.DataVolume{}, "fixed")
}

// restarted: another virt-controller goes on where one ended.
func restarted(p *plane, end func()) {
	p.volume("through", small)
	p.bind("through")
	p.importers.say(podName("through"), importer.Progress{Done: 1, Total: 2})
	p.pod("through", corev1.PodRunning, running(), 0)
	p.is("through", cdi.ImportInProgress, "50.00%")
	p.golden()
	p.middle("orphan")
	end()
	p.Delete(&cdi.DataVolume{}, "orphan")
	p.pod("through", corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, 0)
	p.filler()
	p.is("through", cdi.Succeeded, "100.0%")
	p.gone("through")
	p.noSourcePods()
}

// standsBack: with CDI nothing is touched, and without CDI all goes on.
func standsBack(p *plane) {
	p.volume("waiting", small)
	p.is("waiting", cdi.Pending, "")
	p.middle("halfway")
	p.MustApply(cdiObject)
	p.MustApply("apiVersion: cdi.kubevirt.io/v1beta1\nkind: CDI\nmetadata: {name: cdi}\n")
	p.condition(v1.ReasonCDIInstalled)
	p.noSourcePods() // nobody would delete them any more
	p.volume("theirs", small)
	before := p.bind("waiting")
	time.Sleep(time.Second)
	if v := get(p, "theirs", &cdi.DataVolume{}); v.Status.Phase != "" || v.ResourceVersion == "" {
		p.t.Errorf("CDI's DataVolume has the status %+v", v.Status)
	}
	if v := get(p, "waiting", &cdi.DataVolume{}); v.Status.Phase != cdi.Pending || get(p, "waiting", &corev1.PersistentVolumeClaim{}).ResourceVersion != before.ResourceVersion {
		p.t.Errorf("a DataVolume was touched: %+v", v.Status)
	}
	p.handsOver()
	p.Kubectl("delete", "cdis.cdi.kubevirt.io", "cdi")
	p.condition(v1.ReasonFillsDataVolumes)
	p.is("waiting", cdi.ImportScheduled, "")
	p.is("theirs", cdi.Pending, "")
	p.Kubectl("label", "--overwrite", "crd", cdi.DataVolumeDefinition, cdi.ManagedByLabel+"=cdi-operator")
	p.condition(v1.ReasonDefinitionForeign)
	p.Kubectl("label", "--overwrite", "crd", cdi.DataVolumeDefinition, cdi.ManagedByLabel+"="+cdi.ManagedByKubeqemu)
	p.condition(v1.ReasonFillsDataVolumes)
	p.Delete(&cdi.DataVolume{}, "waiting", "theirs", "through", "halfway")
}

// cdiObject is a stand-in of the kind of CDI's own object.
const cdiObject = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: cdis.cdi.kubevirt.io}
spec:
  group: cdi.kubevirt.io
  scope: Cluster
  names: {plural: cdis, singular: cdi, kind: CDI, listKind: CDIList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// kept: the kinds stay, unless somebody means it. virt-controller sees them go.
func kept(p *plane) {
	for _, name := range []string{cdi.DataVolumeDefinition, cdi.DataSourceDefinition} {
		if _, err := p.Try("", "delete", "crd", name); err == nil || !strings.Contains(err.Error(), "kubevirt-data-volumes-kept") {
			p.t.Errorf("delete %s: %v", name, err)
		}
	}
	if _, err := p.Try("", "delete", "--raw", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?labelSelector="+cdi.ManagedByLabel+"%3D"+cdi.ManagedByKubeqemu); err == nil || !strings.Contains(err.Error(), "kubevirt-data-volumes-kept") {
		p.t.Errorf("delete all of them at once: %v", err)
	}
	// So does an uninstallation as a whole, which deletes the policy after them.
	if _, err := p.Try("", "delete", "-k", "../../config/datavolumes/objects"); err == nil || !strings.Contains(err.Error(), "kubevirt-data-volumes-kept") {
		p.t.Errorf("delete all: %v", err)
	}
	p.Kubectl("get", "crd", cdi.DataVolumeDefinition, cdi.DataSourceDefinition)
	if out := p.Kubectl("get", "validatingadmissionpolicies", "-o", "name"); strings.Contains(out, "kubevirt-data-volumes-kept") {
		p.t.Errorf("left: %s", out)
	}
	p.install(objects)
	p.Kubectl("annotate", "crd", cdi.DataVolumeDefinition, "kubeqemu.io/delete-all-disks=yes")
	p.Kubectl("delete", "crd", cdi.DataVolumeDefinition)
	p.condition(v1.ReasonDefinitionMissing)
}

// policies: virt-controller's rights go no further than what it does.
func policies(p *plane) {
	controller, err := client.New(p.As("system:serviceaccount:kubevirt:virt-controller", "system:serviceaccounts"), client.Options{Scheme: p.Client.Scheme()})
	if err != nil {
		p.t.Fatal(err)
	}
	v := volume(p.t, blank)
	v.Namespace = "default"
	claim := bound(v, "2Gi")
	claim.UID, claim.ResourceVersion = "", ""
	pod := func(change func(*corev1.Pod)) client.Object {
		pod, err := podOf(v, claim, testConfig, 0)
		if err != nil {
			p.t.Fatal(err)
		}
		change(pod)
		return pod
	}
	// A pod without image volumes has a container more.
	handedOut := func(change func(*corev1.Pod)) client.Object {
		v, config := v.DeepCopy(), testConfig
		from := &cdi.DataVolumeSourceRegistry{URL: ptr.To("docker://disk.example/x:1")}
		v.Spec.Source = &cdi.DataVolumeSource{Registry: from}
		config.Images = images.Containers
		pod, err := podOf(v, claim, config, 0)
		if err != nil {
			p.t.Fatal(err)
		}
		change(pod)
		return pod
	}
	sourcePod := func(change func(*corev1.Pod)) client.Object {
		from := goldenClaim("2Gi")
		from.Namespace = "default"
		pod, err := sourcePodOf(v, from, testConfig)
		if err != nil {
			p.t.Fatal(err)
		}
		change(pod)
		return pod
	}
	fromSecret := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}, Key: "y"}}
	handler := corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	// The API server hears of a policy by a watch.
	for policy, object := range map[string]client.Object{"importers": pod(func(pod *corev1.Pod) { pod.Name = "other" }),
		"claims": func() client.Object { c := claim.DeepCopy(); c.Name = "other"; return c }()} {
		p.Until(func() string { return fmt.Sprint(controller.Create(p.t.Context(), object, client.DryRunAll)) },
			func(got string) bool { return strings.Contains(got, "kubevirt-controller-"+policy) })
	}
	if err := controller.Create(p.t.Context(), pod(func(*corev1.Pod) {}), client.DryRunAll); err != nil {
		p.t.Errorf("an importer pod is refused: %v", err)
	}
	if err := controller.Create(p.t.Context(), pod(func(pod *corev1.Pod) {
		pod.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0:c1,c2"}
	}), client.DryRunAll); err != nil {
		p.t.Errorf("an importer pod with an SELinux level, as OpenShift gives it, is refused: %v", err)
	}
	if err := controller.Create(p.t.Context(), handedOut(func(*corev1.Pod) {}), client.DryRunAll); err != nil {
		p.t.Errorf("an importer pod with a container for the image is refused: %v", err)
	}
	if err := controller.Create(p.t.Context(), sourcePod(func(*corev1.Pod) {}), client.DryRunAll); err != nil {
		p.t.Errorf("a source pod is refused: %v", err)
	}
	for _, mode := range []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock} {
		from := goldenClaim("2Gi")
		from.Namespace, from.Spec.VolumeMode = "default", &mode
		v := v.DeepCopy()
		v.Namespace = "elsewhere"
		pod, err := sourcePodOf(v, from, testConfig)
		if err != nil {
			p.t.Fatal(err)
		}
		if err := controller.Create(p.t.Context(), pod, client.DryRunAll); err != nil {
			p.t.Errorf("a source pod of mode %s is refused: %v", mode, err)
		}
	}
	for name, object := range map[string]client.Object{
		"another name":    pod(func(pod *corev1.Pod) { pod.Name = "other" }),
		"nobody's":        pod(func(pod *corev1.Pod) { pod.OwnerReferences = nil }),
		"another command": pod(func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"sh"} }),
		"more arguments":  pod(func(pod *corev1.Pod) { pod.Spec.Containers[0].Args = []string{"x"} }),
		"a second container": pod(func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{Name: "x", Image: "x"}}
		}),
		"an image that runs": handedOut(func(pod *corev1.Pod) { pod.Spec.InitContainers[0].Command = []string{"sh"} }),
		"an image's own program": handedOut(func(pod *corev1.Pod) {
			pod.Spec.InitContainers[0].Resources.Limits = nil
			pod.Spec.InitContainers[0].Resources.Requests = nil
		}),
		"no program": handedOut(func(pod *corev1.Pod) {
			none := resource.MustParse("0")
			r := pod.Spec.InitContainers[0].Resources
			r.Limits[images.Resource], r.Requests[images.Resource] = none, none
		}),
		"all places": handedOut(func(pod *corev1.Pod) {
			all := resource.MustParse("1024")
			r := pod.Spec.InitContainers[0].Resources
			r.Limits[images.Resource], r.Requests[images.Resource] = all, all
		}),
		"a variable of a Secret in the image's container": handedOut(func(pod *corev1.Pod) {
			pod.Spec.InitContainers[0].Env[0].Value, pod.Spec.InitContainers[0].Env[0].ValueFrom = "", fromSecret
		}),
		"another device of the node": handedOut(func(pod *corev1.Pod) {
			askFor(&pod.Spec.InitContainers[0], "example.test/gpu")
		}),
		"a folder over the program": handedOut(func(pod *corev1.Pod) {
			pod.Spec.InitContainers[0].VolumeMounts[0].MountPath = "/kubeqemu"
		}),
		"a slot": pod(func(pod *corev1.Pod) { askFor(&pod.Spec.Containers[0], "devices.kubevirt.io/vm") }),
		"a slot in the image's container": handedOut(func(pod *corev1.Pod) {
			askFor(&pod.Spec.InitContainers[0], "devices.kubevirt.io/vm")
		}),
		"a claim in the image's container": handedOut(func(pod *corev1.Pod) {
			mounts := &pod.Spec.InitContainers[0].VolumeMounts
			*mounts = append(*mounts, corev1.VolumeMount{Name: "disk", MountPath: "/x"})
		}),
		"a Secret in the image's container": handedOut(func(pod *corev1.Pod) {
			pod.Spec.InitContainers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}
		}),
		"privilege in the image's container": handedOut(func(pod *corev1.Pod) {
			pod.Spec.InitContainers[0].SecurityContext = nil
		}),
		"two more": handedOut(func(pod *corev1.Pod) {
			more := *pod.Spec.InitContainers[0].DeepCopy()
			more.Name = "more"
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, more)
		}),
		"a source pod with an image": sourcePod(func(pod *corev1.Pod) {
			with := handedOut(func(*corev1.Pod) {}).(*corev1.Pod).Spec
			pod.Spec.InitContainers = with.InitContainers
			pod.Spec.Volumes = append(pod.Spec.Volumes, with.Volumes[len(with.Volumes)-1:]...)
		}),
		"a launcher's label": pod(func(pod *corev1.Pod) { pod.Labels[v1.CreatedByLabel] = "x" }),
		"a launcher's name":  pod(func(pod *corev1.Pod) { pod.Labels[v1.AppLabel] = "virt-launcher" }),
		"the node's network": pod(func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }),
		"a token":            pod(func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = nil }),
		"an account":         pod(func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "other" }),
		"a node":             pod(func(pod *corev1.Pod) { pod.Spec.NodeName = "x" }),
		"privilege":          pod(func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext = nil }),
		"the node's files": pod(func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].EmptyDir = nil
			pod.Spec.Volumes[0].HostPath = &corev1.HostPathVolumeSource{Path: "/"}
		}),
		"neither importer nor launcher": pod(func(pod *corev1.Pod) {
			pod.Name, pod.Labels, pod.OwnerReferences = "other", nil, nil
		}),
		"a variable of a Secret": pod(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "X", ValueFrom: fromSecret})
		}),
		"its task of a Secret": pod(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env[0].Value, pod.Spec.Containers[0].Env[0].ValueFrom = "", fromSecret
		}),
		"variables of a Secret": pod(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}
		}),
		"a lifecycle hook": pod(func(pod *corev1.Pod) { pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &handler} }),
		"a probe": pod(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: handler.Exec}}
		}),
		"a port": pod(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8445, HostPort: 8445}}
		}),
		"root":         pod(func(pod *corev1.Pod) { pod.Spec.SecurityContext.RunAsUser = new(int64) }),
		"another user": pod(func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext.RunAsUser = ptr.To[int64](1) }),
		"another SELinux type": pod(func(pod *corev1.Pod) {
			pod.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"}
		}),
		"no seccomp": pod(func(pod *corev1.Pod) {
			pod.Spec.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined
		}),
		"a source pod of a name": sourcePod(func(pod *corev1.Pod) { pod.Name = "importer-source-x" }),
		"a source pod to write":  sourcePod(func(pod *corev1.Pod) { pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = false }),
		"a source pod of a Secret": sourcePod(func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}
		}),
		"a source pod of the node":  sourcePod(func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }),
		"a source pod of a command": sourcePod(func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"sh"} }),
		"a source pod of two claims": sourcePod(func(pod *corev1.Pod) {
			two := *pod.Spec.Volumes[0].DeepCopy()
			two.Name = "two"
			pod.Spec.Volumes = append(pod.Spec.Volumes, two)
		}),
		"a source pod that is controlled": sourcePod(func(pod *corev1.Pod) { pod.OwnerReferences[0].Controller = ptr.To(true) }),
		"another's claim":                 pod(func(pod *corev1.Pod) { pod.Spec.Volumes[1].PersistentVolumeClaim.ClaimName = "x" }),
		"nobody's claim":                  func() client.Object { c := claim.DeepCopy(); c.OwnerReferences = nil; return c }(),
		"a claim of another name":         func() client.Object { c := claim.DeepCopy(); c.Name = "x"; return c }(),
	} {
		if err := controller.Create(p.t.Context(), object, client.DryRunAll); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubevirt-controller-") {
			p.t.Errorf("%s: %v, want to be forbidden", name, err)
		}
	}
	forwarded := func(account, name string) error {
		f, err := portforward.New(p.As("system:serviceaccount:kubevirt:"+account, "system:serviceaccounts"))
		if err != nil {
			return err
		}
		c, err := f.Dial(p.t.Context(), client.ObjectKey{Namespace: "default", Name: name})
		if err == nil {
			c.Close()
		}
		return err
	}
	// Neither pod is there. Only of the importer the API server gets so far as to look.
	for _, account := range []string{"virt-controller", "virt-api"} {
		if err := forwarded(account, "virt-launcher-x"); err == nil || !strings.Contains(err.Error(), "403") {
			p.t.Errorf("%s forwards to a launcher: %v", account, err)
		}
		if err := forwarded(account, "importer-x"); err == nil || !strings.Contains(err.Error(), "404") {
			p.t.Errorf("%s forwards to an importer that is not there: %v", account, err)
		}
	}
}

// askFor writes into a container that it asks for one of a resource.
func askFor(c *corev1.Container, name corev1.ResourceName) {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	c.Resources.Limits[name], c.Resources.Requests[name] = one, one
}
