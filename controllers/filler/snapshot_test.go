package filler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
)

const ofSnapshot = `{source: {snapshot: {namespace: ns, name: daily}}, storage: {storageClassName: fast}}`

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

// taken are a VolumeSnapshot that is ready to use, and its content.
func taken(t *testing.T) (snapshot, content *unstructured.Unstructured) {
	t.Helper()
	return parse(t, `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {namespace: ns, name: daily, uid: uid-of-daily},
		spec: {source: {persistentVolumeClaimName: disk}}, status: {boundVolumeSnapshotContentName: content, readyToUse: true, restoreSize: 2Gi}}`),
		parse(t, `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: content},
		spec: {driver: csi.example.com, sourceVolumeMode: Filesystem, volumeSnapshotRef: {namespace: ns, name: daily, uid: uid-of-daily}}}`)
}

// TestSnapshotIsRestoredOrTheReasonIsSaid: the storage restores a snapshot into the claim, or the DataVolume says why not.
func TestSnapshotIsRestoredOrTheReasonIsSaid(t *testing.T) {
	class := func(name, driver string, annotations map[string]string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Provisioner: driver}
	}
	of := func(more string) string { return `{source: {snapshot: {namespace: ns, name: daily}}, ` + more + `}` }
	type object = *unstructured.Unstructured
	set := func(o object, value any, path ...string) {
		if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
			t.Fatal(err)
		}
	}
	same := func(_, _ object) {}
	for name, c := range map[string]struct {
		spec   string
		change func(snapshot, content object)
		want   string
	}{
		"as large as it was":            {ofSnapshot, same, "fast 2Gi Filesystem"},
		"larger":                        {of("storage: {storageClassName: fast, resources: {requests: {storage: 3780Mi}}}"), same, "fast 4001Mi Filesystem"},
		"smaller":                       {of("storage: {storageClassName: fast, resources: {requests: {storage: 1Gi}}}"), same, "fast 2Gi Filesystem"},
		"of the default of disks":       {of("storage: {}"), same, "virt 2Gi Filesystem"},
		"of the form pvc":               {of("pvc: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"), same, "cluster 2Gi Filesystem"},
		"a device":                      {ofSnapshot, func(_, c object) { set(c, "Block", "spec", "sourceVolumeMode") }, "fast 2Gi Block"},
		"a namespace that is not named": {`{source: {snapshot: {namespace: "", name: daily}}, storage: {storageClassName: fast}}`, same, "fast 2Gi Filesystem"},
		"another mode": {of("storage: {storageClassName: fast, volumeMode: Block}"), same,
			"CloneValidationFailed: it is of volume mode Filesystem, and the DataVolume is of Block: leave out volumeMode, or restore the snapshot to a claim of namespace ns"},
		"another mode of the form pvc": {of("pvc: {storageClassName: fast, resources: {requests: {storage: 1Gi}}}"),
			func(_, c object) { set(c, "Block", "spec", "sourceVolumeMode") }, "CloneValidationFailed: of volume mode Block"},
		"no mode":            {ofSnapshot, func(_, c object) { set(c, "", "spec", "sourceVolumeMode") }, "CloneValidationFailed: set the DataVolume's volumeMode"},
		"no mode, and named": {of("storage: {storageClassName: fast, volumeMode: Block}"), func(_, c object) { set(c, "", "spec", "sourceVolumeMode") }, "fast 2Gi Block"},
		"another driver":     {of("storage: {storageClassName: slow}"), same, "CloneValidationFailed: it is the driver csi.example.com's, and storage class slow is other.example.com's"},
		"no such class":      {of("storage: {storageClassName: none}"), same, "CloneValidationFailed: name a storage class of the driver csi.example.com"},
		"a class of no name": {of(`storage: {storageClassName: ""}`), same, "CloneValidationFailed: name a storage class"},
		"no size":            {ofSnapshot, func(s, _ object) { unstructured.RemoveNestedField(s.Object, "status", "restoreSize") }, "CloneValidationFailed: set resources.requests.storage"},
		"no size, and requested": {of("storage: {storageClassName: fast, volumeMode: Block, resources: {requests: {storage: 1Gi}}}"), func(s, c object) {
			unstructured.RemoveNestedField(s.Object, "status", "restoreSize")
			set(c, "Block", "spec", "sourceVolumeMode")
		}, "fast 1Gi Block"},
		"a size of nothing":       {ofSnapshot, func(s, _ object) { set(s, "0", "status", "restoreSize") }, "CloneValidationFailed: restoreSize that cannot be"},
		"a size below nothing":    {ofSnapshot, func(s, _ object) { set(s, "-1Gi", "status", "restoreSize") }, "CloneValidationFailed: restoreSize that cannot be"},
		"a size beyond all disks": {ofSnapshot, func(s, _ object) { set(s, "9e18", "status", "restoreSize") }, "CloneValidationFailed: restoreSize that cannot be"},
		"a size beyond numbers":   {ofSnapshot, func(s, _ object) { set(s, "1e99", "status", "restoreSize") }, "CloneValidationFailed: restoreSize that cannot be"},
		"a size of a number":      {ofSnapshot, func(s, _ object) { set(s, int64(3<<30), "status", "restoreSize") }, "fast 3Gi Filesystem"},
		"a size of many digits":   {ofSnapshot, func(s, _ object) { set(s, strings.Repeat("0", 100)+"1", "status", "restoreSize") }, "CloneValidationFailed: restoreSize that cannot be"},
		"a size of words":         {ofSnapshot, func(s, _ object) { set(s, "large", "status", "restoreSize") }, "CloneValidationFailed: restoreSize that cannot be"},
		"missing":                 {ofSnapshot, func(s, _ object) { s.SetName("other") }, "CloneWithoutSource: The source snapshot ns/daily doesn't exist"},
		"new":                     {ofSnapshot, func(s, _ object) { delete(s.Object, "status") }, "SnapshotNotReady: ns/daily is not ready to use"},
		"is being taken":          {ofSnapshot, func(s, _ object) { set(s, false, "status", "readyToUse") }, "SnapshotNotReady: ns/daily is not ready to use"},
		"failed": {ofSnapshot, func(s, _ object) {
			set(s, false, "status", "readyToUse")
			set(s, "disk full", "status", "error", "message")
		}, "SnapshotNotReady: not ready to use: disk full"},
		"is being deleted": {ofSnapshot, func(s, _ object) {
			s.SetDeletionTimestamp(&metav1.Time{Time: now})
			s.SetFinalizers([]string{"x/y"})
		}, "CloneWithoutSource: is being deleted"},
		"without its content":           {ofSnapshot, func(_, c object) { c.SetName("other") }, "SnapshotNotReady: not ready to use"},
		"another's content":             {ofSnapshot, func(_, c object) { set(c, "golden", "spec", "volumeSnapshotRef", "namespace") }, "SnapshotNotReady: its content is another snapshot's"},
		"an earlier snapshot's content": {ofSnapshot, func(_, c object) { set(c, "earlier", "spec", "volumeSnapshotRef", "uid") }, "SnapshotNotReady: its content is another snapshot's"},
	} {
		snapshot, content := taken(t)
		c.change(snapshot, content)
		r := among(t, snapshot, content, class("fast", "csi.example.com", nil), class("slow", "other.example.com", nil),
			class("virt", "csi.example.com", map[string]string{storageclass.DefaultVirtAnnotation: "true"}), class("cluster", "csi.example.com", map[string]string{storageclass.DefaultAnnotation: "true"}))
		w := world{volume: volume(t, c.spec), now: now}
		var err error
		if w.origin, err = r.origin(t.Context(), w); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s := decide(w)
		reason, words, refused := strings.Cut(c.want, ": ")
		if refused {
			if s.action != nothing || s.after <= 0 || w.origin.trouble.reason != reason || !strings.Contains(w.origin.trouble.note, words) {
				t.Errorf("%s: %+v, want %s", name, w.origin.trouble, c.want)
			}
			continue
		}
		if s.action != makeClaim || r.makeClaim(t.Context(), w, &s) != nil {
			t.Errorf("%s: %s %+v", name, told(s), w.origin.trouble)
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(w.volume), claim); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		from := claim.Spec.DataSource
		if got := fmt.Sprintf("%s %s %s", *claim.Spec.StorageClassName, claim.Spec.Resources.Requests.Storage(), modeOf(claim)); got != c.want ||
			from == nil || from.Kind != "VolumeSnapshot" || *from.APIGroup != "snapshot.storage.k8s.io" || from.Name != "daily" {
			t.Errorf("%s: %s from %v, want %s", name, got, from, c.want)
		}
	}
}

func modeOf(claim *corev1.PersistentVolumeClaim) corev1.PersistentVolumeMode {
	if isBlock(claim) {
		return corev1.PersistentVolumeBlock
	}
	return corev1.PersistentVolumeFilesystem
}

// TestSnapshotFromElsewhereIsNotRestored: a snapshot of another namespace is not looked at before it is known that the DataVolume's
// maker was asked, and it is not restored.
func TestSnapshotFromElsewhereIsNotRestored(t *testing.T) {
	snapshot, content := taken(t)
	snapshot.SetNamespace("golden")
	if err := unstructured.SetNestedField(content.Object, "golden", "spec", "volumeSnapshotRef", "namespace"); err != nil {
		t.Fatal(err)
	}
	early := now.Add(-1e12)
	asked := []client.Object{policyObject(bindingKind.Kind, early), policyObject("ValidatingAdmissionPolicy", early)}
	w := world{volume: volume(t, `{source: {snapshot: {namespace: golden, name: daily}}, storage: {storageClassName: fast}}`), now: now}
	w.volume.CreationTimestamp = metav1.NewTime(now)
	for want, objects := range map[string][]client.Object{
		"ErrNotAuthorized: nobody has asked": nil,
		"CloneValidationFailed: it is in another namespace: restore the snapshot to a claim of namespace golden, and copy that claim with source.pvc": asked,
	} {
		o, err := among(t, append(objects, snapshot, content)...).origin(t.Context(), w)
		reason, words, _ := strings.Cut(want, ": ")
		if err != nil || o.trouble.reason != reason || !strings.Contains(o.trouble.note, words) {
			t.Errorf("%+v (%v), want %s", o.trouble, err, want)
		}
	}
}

// TestClusterMayLackSnapshots: a cluster may lack the kinds of snapshots.
func TestClusterMayLackSnapshots(t *testing.T) {
	r := among(t)
	r.Live = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return &meta.NoKindMatchError{GroupKind: snapshotVersion.WithKind(snapshotKind).GroupKind(), SearchedVersions: []string{"v1"}}
	}})
	w := world{volume: volume(t, ofSnapshot), now: now}
	o := &origin{at: types.NamespacedName{Namespace: "ns", Name: "daily"}, snapshot: &snapshot{}}
	if err := r.restores(t.Context(), w, o); err != nil || o.trouble.reason != reasonCloneWithoutSource || !strings.Contains(o.trouble.note, "The cluster has no VolumeSnapshots") {
		t.Errorf("%+v (%v)", o.trouble, err)
	}
	failure := errors.New("away")
	r.Live = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return failure
	}})
	if err := r.restores(t.Context(), w, o); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
}

// TestDecideRestored follows a claim that is restored from a snapshot.
func TestDecideRestored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string
		says   string
	}{
		"is restored": {func(w *world) { w.claim.Status.Phase = corev1.ClaimPending },
			"CloneFromSnapshotSourceInProgress N/A; bound False Pending; running False ; ready False ; nothing; event CloneFromSnapshotSourceInProgress", "Restoring snapshot ns/daily"},
		"waits for a pod": {func(w *world) { w.claim.Status.Phase, w.firstConsumer = corev1.ClaimPending, true },
			"PendingPopulation N/A; bound False Pending; running False ; ready False ; nothing", ""},
		"restored": {func(*world) {}, "Succeeded 100.0%; bound True Bound; running False Completed; ready True ; nothing; event CloneSucceeded", "Successfully cloned from ns/daily into ns/data"},
		"made for another source": {func(w *world) { w.claim.Spec.DataSource = nil },
			"CloneScheduled N/A; bound True Bound; running False CloneValidationFailed; ready False ; nothing; event CloneValidationFailed; event CloneScheduled", "make it again"},
	} {
		w := world{volume: volume(t, ofSnapshot), now: now}
		w.claim = bound(w.volume, "2Gi")
		(&origin{at: types.NamespacedName{Namespace: "ns", Name: "daily"}, snapshot: &snapshot{class: "fast"}}).restore(w.claim)
		c.change(&w)
		var err error
		if w.origin, err = among(t).origin(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		s := decide(w)
		if got := strings.Join(strings.Fields(told(s)), " "); got != strings.Join(strings.Fields(c.want), " ") || !strings.Contains(fmt.Sprint(s.status.Conditions, s.events), c.says) {
			t.Errorf("%s:\ngot  %s %v\nwant %s %s", name, got, s.events, c.want, c.says)
		}
		settled(t, w, s)
	}
}

// TestRestoresBesideAnEarlierPod: the importer pod of an earlier DataVolume of the name may stay for a while, or longer if
// somebody gave it a finalizer.
func TestRestoresBesideAnEarlierPod(t *testing.T) {
	w := usual(t)
	w.volume = volume(t, ofSnapshot)
	w.volume.UID = "uid-of-volume"
	w.claim = claimOf(w.volume)
	w.origin = &origin{at: types.NamespacedName{Namespace: "ns", Name: "daily"}, snapshot: &snapshot{class: "fast"}}
	w.origin.shape(w.claim)
	if s := decide(w); s.action != nothing || s.status.Phase != cdi.CloneFromSnapshotSourceInProgress {
		t.Error(told(s))
	}
}
