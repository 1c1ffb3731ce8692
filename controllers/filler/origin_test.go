package filler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
)

// byPhase is a client that selects pods by their phase, as an API server does.
func byPhase(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		o := client.ListOptions{}
		o.ApplyOptions(options)
		selector := o.FieldSelector
		o.FieldSelector = nil
		if err := c.List(ctx, list, &o); err != nil || selector == nil {
			return err
		}
		pods := list.(*corev1.PodList)
		pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
			return !selector.Matches(fields.Set{"status.phase": string(pod.Status.Phase)})
		})
		return nil
	}})
}

// among is a Reconciler in a cluster that has the objects.
func among(t *testing.T, objects ...client.Object) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), storagev1.AddToScheme(scheme), admissionv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), cdi.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&cdi.DataVolume{}).WithObjects(objects...).Build()
	return &Reconciler{Client: c, Live: byPhase(c), Clock: clocktesting.NewFakePassiveClock(now), Events: events.NewFakeRecorder(100), Progresses: noProgress{},
		Config: testConfig, Ours: func(context.Context) (bool, error) { return true, nil }}
}

// dataSource leads to "pvc namespace/name" or "dataSource namespace/name".
func dataSource(namespace, name, to string) *cdi.DataSource {
	d := &cdi.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	kind, at, _ := strings.Cut(to, " ")
	there, of, _ := strings.Cut(at, "/")
	switch kind {
	case "pvc":
		d.Spec.Source.PVC = &cdi.DataVolumeSourcePVC{Namespace: there, Name: of}
	case "dataSource":
		d.Spec.Source.DataSource = &cdi.DataSourceRefSourceDataSource{Namespace: there, Name: of}
	case "snapshot":
		d.Spec.Source.Snapshot = &cdi.DataVolumeSourceSnapshot{Namespace: there, Name: of}
	}
	return d
}

// TestDataSourceLendsNothingOfAThirdNamespace: a DataSource leads to its own namespace or to the DataVolume's, and lends nothing of a
// third one.
func TestDataSourceLendsNothingOfAThirdNamespace(t *testing.T) {
	r := among(t, dataSource("ns", "here", "pvc /x"), dataSource("golden", "there", "pvc golden/x"), dataSource("golden", "back", "pvc ns/x"),
		dataSource("golden", "astray", "pvc other/x"), dataSource("ns", "sly", "pvc golden/x"), dataSource("ns", "slyer", "dataSource golden/there"),
		dataSource("golden", "two", "dataSource /there"), dataSource("golden", "three", "dataSource golden/two"), dataSource("golden", "four", "dataSource golden/three"),
		dataSource("golden", "five", "dataSource golden/four"), dataSource("golden", "loop", "dataSource golden/loop"), dataSource("golden", "nowhere", "dataSource golden/none"),
		dataSource("golden", "snapshot", "snapshot golden/x"), dataSource("golden", "asnapshot", "snapshot other/x"), dataSource("golden", "empty", ""), dataSource("golden", "odd", "pvc golden/.."),
		dataSource("golden", "through", "dataSource ns/here"), dataSource("ns", "self", "pvc ns/data"))
	for ref, want := range map[string]string{
		"ns/here": "ns/x", "/here": "ns/x", "golden/there": "golden/x", "golden/back": "ns/x", "golden/two": "golden/x", "golden/four": "golden/x", "golden/through": "ns/x",
		"golden/astray": "ErrNotAuthorized: leads to namespace other", "ns/sly": "ErrNotAuthorized: leads to namespace golden", "ns/slyer": "ErrNotAuthorized: leads to namespace golden",
		"golden/five": "CloneValidationFailed: more than 4", "golden/loop": "CloneValidationFailed: more than 4", "golden/nowhere": "CloneWithoutSource: golden/none doesn't exist",
		"golden/none": "CloneWithoutSource: golden/none doesn't exist", "golden/snapshot": "snapshot golden/x", "golden/asnapshot": "ErrNotAuthorized: leads to namespace other", "golden/empty": "CloneValidationFailed: set pvc",
		"golden/odd": "CloneValidationFailed: spec.source.pvc.name", "ns/self": "CloneValidationFailed: own claim",
	} {
		namespace, name, _ := strings.Cut(ref, "/")
		v := volume(t, throughDS)
		v.Spec.SourceRef.Namespace, v.Spec.SourceRef.Name = &namespace, name
		o := &origin{}
		if err := r.resolve(t.Context(), v, o); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		reason, words, _ := strings.Cut(want, ": ")
		got := o.at.String()
		if o.snapshot != nil {
			got = "snapshot " + got
		}
		if words == "" && (got != want || o.trouble.reason != "") || words != "" && (o.trouble.reason != reason || !strings.Contains(o.trouble.note, words)) {
			t.Errorf("%s: %s, %+v, want %s", ref, o.at, o.trouble, want)
		}
	}
	w := copying(t)
	w.volume, w.claim, w.pod = volume(t, ofDebian), nil, nil
	if o, err := r.origin(t.Context(), w); err != nil || o.at != (types.NamespacedName{Namespace: "ns", Name: "debian"}) {
		t.Errorf("a claim of the namespace: %+v (%v)", o, err)
	}
	w.volume.Name = "debian"
	if o, err := r.origin(t.Context(), w); err != nil || o.trouble.reason != reasonCloneInvalid {
		t.Errorf("its own claim: %+v (%v)", o, err)
	}
}

// policyObject is one of the two objects of the policy that asks who may copy.
func policyObject(kind string, made time.Time) client.Object {
	meta := metav1.ObjectMeta{Name: sourcesPolicy, CreationTimestamp: metav1.NewTime(made)}
	if kind == bindingKind.Kind {
		return &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta}
	}
	return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta}
}

// TestCopyFromElsewhereNeedsPermission: a DataVolume that nobody was asked about copies from no other namespace.
func TestCopyFromElsewhereNeedsPermission(t *testing.T) {
	const whole, half = "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"
	late := now.Add(-time.Second)
	early := now.Add(-time.Hour)
	for name, c := range map[string]struct {
		spec    string
		from    string
		objects []client.Object
		want    bool
	}{
		"its own namespace":                 {ofDebian, "ns", nil, true},
		"another one":                       {ofGolden, "golden", []client.Object{policyObject(whole, early), policyObject(half, early)}, true},
		"no policy":                         {ofGolden, "golden", nil, false},
		"no binding":                        {ofGolden, "golden", []client.Object{policyObject(half, early)}, false},
		"a binding alone":                   {ofGolden, "golden", []client.Object{policyObject(whole, early)}, false},
		"a later policy":                    {ofGolden, "golden", []client.Object{policyObject(whole, early), policyObject(half, late)}, false},
		"a later binding":                   {ofGolden, "golden", []client.Object{policyObject(whole, late), policyObject(half, early)}, false},
		"a DataSource of another namespace": {throughDS, "ns", nil, false},
	} {
		w := copying(t)
		w.volume = volume(t, c.spec)
		w.volume.CreationTimestamp, w.pod = metav1.NewTime(now), nil
		o := &origin{at: types.NamespacedName{Namespace: c.from, Name: "debian"}}
		if err := among(t, c.objects...).permitted(t.Context(), w, o); err != nil || (o.trouble.reason == "") != c.want {
			t.Errorf("%s: %+v (%v)", name, o.trouble, err)
		}
	}
}

// TestImporterPodReplacesNoPermission: an importer pod spares a DataVolume the question no more than none. Who made the
// DataVolume may have put it there before the policy kubevirt-importer-pods came. A source pod in the other namespace does.
func TestImporterPodReplacesNoPermission(t *testing.T) {
	w := copying(t)
	w.volume.CreationTimestamp, w.claim.Annotations = metav1.NewTime(now), nil
	sources := w.origin.pods
	for name, c := range map[string]struct {
		sources []*corev1.Pod
		want    bool
	}{"an importer pod": {nil, false}, "a source pod": {sources, true}} {
		w.sources = c.sources
		o, err := among(t, goldenClaim("1Gi")).origin(t.Context(), w) // there is no policy
		if err != nil || (o.trouble.reason == "") != c.want {
			t.Errorf("%s: %+v (%v)", name, o.trouble, err)
		}
		w.origin = o
		if s := decide(w); s.action == makeSource {
			t.Errorf("%s: a source pod is made", name)
		}
	}
	foreign := sources[0].DeepCopy()
	foreign.Namespace = "ns"
	w.sources = []*corev1.Pod{foreign}
	if o, err := among(t, goldenClaim("1Gi")).origin(t.Context(), w); err != nil || o.trouble.reason == "" {
		t.Errorf("a source pod of its own namespace: %+v (%v)", o.trouble, err)
	}
}

// TestYoungDataVolumeIsNotCalledTooOld: a DataVolume that is a little younger than the policy is not told that it is older.
func TestYoungDataVolumeIsNotCalledTooOld(t *testing.T) {
	w := copying(t)
	w.volume.CreationTimestamp, w.pod = metav1.NewTime(now), nil
	made := now.Add(-5 * time.Second)
	o := &origin{at: types.NamespacedName{Namespace: "golden", Name: "debian"}}
	err := among(t, policyObject(bindingKind.Kind, made), policyObject("ValidatingAdmissionPolicy", made)).permitted(t.Context(), w, o)
	if err != nil || !strings.Contains(o.trouble.note, "or was made within 10 s of it: delete it, and make it again") {
		t.Errorf("%+v (%v)", o.trouble, err)
	}
}

// TestStorageClonesOnlyWhatItCan: the storage clones only what it can clone.
func TestStorageClonesOnlyWhatItCan(t *testing.T) {
	class := func(name string, annotations map[string]string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	clones := map[string]string{cloneStrategyAnnotation: cloneByStorage}
	ceph := class("ceph", nil)
	ceph.Provisioner = "rbd.csi.ceph.com"
	late := class("late", nil)
	late.Provisioner, late.VolumeBindingMode = ceph.Provisioner, ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	r := among(t, ceph, late, class("fast", clones), class("copied", map[string]string{cloneStrategyAnnotation: "copy"}), class("plain", nil),
		class("default", map[string]string{cloneStrategyAnnotation: cloneByStorage, storageclass.DefaultAnnotation: "true"}))
	for name, c := range map[string]struct {
		spec   string
		change func(*origin)
		want   bool
	}{
		"of one class":       {ofDebian, func(*origin) {}, true},
		"of another class":   {`{source: {pvc: {name: debian}}, storage: {storageClassName: plain}}`, func(*origin) {}, false},
		"another namespace":  {ofDebian, func(o *origin) { o.at.Namespace = "golden" }, false},
		"another mode":       {ofDebian, func(o *origin) { o.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, false},
		"another strategy":   {`{source: {pvc: {name: debian}}, storage: {storageClassName: copied}}`, func(o *origin) { o.claim.Spec.StorageClassName = ptr.To("copied") }, false},
		"no class":           {ofDebian, func(o *origin) { o.claim.Spec.StorageClassName = nil }, false},
		"a class that went":  {`{source: {pvc: {name: debian}}, storage: {storageClassName: gone}}`, func(o *origin) { o.claim.Spec.StorageClassName = ptr.To("gone") }, false},
		"of the default":     {`{source: {pvc: {name: debian}}, storage: {}}`, func(o *origin) { o.claim.Spec.StorageClassName = ptr.To("default") }, true},
		"not of the default": {`{source: {pvc: {name: debian}}, storage: {}}`, func(*origin) {}, false},
		"a driver that can": {`{source: {pvc: {name: debian}}, storage: {storageClassName: ceph}}`, func(o *origin) {
			o.claim.Spec.StorageClassName, o.claim.Spec.VolumeMode = ptr.To("ceph"), ptr.To(corev1.PersistentVolumeBlock)
		}, true},
		"a driver that can, at the first pod": {`{source: {pvc: {name: debian}}, storage: {storageClassName: late}}`, func(o *origin) {
			o.claim.Spec.StorageClassName, o.claim.Spec.VolumeMode = ptr.To("late"), ptr.To(corev1.PersistentVolumeBlock)
		}, false},
		"a driver that can, of files": {`{source: {pvc: {name: debian}}, storage: {storageClassName: ceph, volumeMode: Filesystem}}`, func(o *origin) {
			o.claim.Spec.StorageClassName = ptr.To("ceph")
		}, false},
		"the form pvc, of the default": {`{source: {pvc: {name: debian}}, pvc: {resources: {requests: {storage: 1Gi}}}}`, func(o *origin) { o.claim.Spec.StorageClassName = ptr.To("default") }, true},
		"the form pvc, of no class":    {`{source: {pvc: {name: debian}}, pvc: {storageClassName: "", resources: {requests: {storage: 1Gi}}}}`, func(o *origin) { o.claim.Spec.StorageClassName = ptr.To("default") }, false},
	} {
		o := &origin{at: types.NamespacedName{Namespace: "ns", Name: "debian"}, claim: goldenClaim("1Gi")}
		c.change(o)
		if got, err := r.clones(t.Context(), volume(t, c.spec), o); err != nil || got != c.want {
			t.Errorf("%s: %v (%v)", name, got, err)
		}
	}
}

func TestWhetherAPodWritesToAClaim(t *testing.T) {
	claim := func(name string, readOnly bool) corev1.Volume {
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly}}}
	}
	ephemeral := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	for name, c := range map[string]struct {
		volume corev1.Volume
		claim  string
		phase  corev1.PodPhase
		want   bool
	}{
		"runs":              {claim("debian", false), "debian", corev1.PodRunning, true},
		"starts":            {claim("debian", false), "debian", corev1.PodPending, true},
		"on a lost node":    {claim("debian", false), "debian", corev1.PodUnknown, true},
		"has ended":         {claim("debian", false), "debian", corev1.PodSucceeded, false},
		"has failed":        {claim("debian", false), "debian", corev1.PodFailed, false},
		"reads":             {claim("debian", true), "debian", corev1.PodRunning, false},
		"has another claim": {claim("other", false), "debian", corev1.PodRunning, false},
		"its own volume":    {ephemeral, "pod-v", corev1.PodRunning, true},
		"another's volume":  {ephemeral, "pod-w", corev1.PodRunning, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "tmp"}, c.volume}}, Status: corev1.PodStatus{Phase: c.phase}}
		if got := !over(pod) && slices.Contains(writable(pod), c.claim); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSourceIsCheckedDuringACopy: in the middle of a copy the source is looked at from time to time, and else at once.
func TestSourceIsCheckedDuringACopy(t *testing.T) {
	writer := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: "writer"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "debian"}}}}}}
	w := copying(t)
	r := among(t)
	ask := func(want string) {
		t.Helper()
		if got, err := r.user(t.Context(), w, w.origin); err != nil || got != want {
			t.Errorf("%q (%v), want %q", got, err, want)
		}
	}
	ask("")
	if err := r.Client.Create(t.Context(), writer); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(useEvery - 1)
	ask("") // as it was
	ended, begun := w, w
	ended.pod = w.pod.DeepCopy()
	ended.pod.Status.Phase = corev1.PodSucceeded
	begun.pod = nil
	for name, w := range map[string]world{"ended": ended, "begun": begun} {
		r.uses.note(client.ObjectKeyFromObject(w.volume), w.now)
		if got, err := r.user(t.Context(), w, w.origin); err != nil || got != "writer" {
			t.Errorf("%s: %q (%v)", name, got, err)
		}
	}
	ask("writer")
	r.uses.note(client.ObjectKeyFromObject(w.volume), w.now)
	w.now = w.now.Add(useEvery)
	ask("writer")
	r.uses.note(client.ObjectKeyFromObject(w.volume), w.now)
	w.now = w.now.Add(-time.Hour) // the clock was set back
	ask("writer")
}

// TestSourcePodsOfAGoneDataVolumeGo: of a DataVolume that is gone no source pod stays, and no other pod goes.
func TestSourcePodsOfAGoneDataVolumeGo(t *testing.T) {
	pod := func(namespace, name, label, of string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{forLabel: label}, Annotations: map[string]string{forAnnotation: of}}}
	}
	all := []client.Object{pod("golden", "importer-source-1", "1", "ns/data"), pod("other", "importer-source-2", "2", "ns/data"), pod("golden", "importer-source-3", "3", "ns/other"),
		pod("golden", "web", "4", "ns/data"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "importer-data", Annotations: map[string]string{forAnnotation: "ns/data"}}}}
	r := among(t, all...)
	if err := r.dropSources(t.Context(), types.NamespacedName{Namespace: "ns", Name: "data"}); err != nil {
		t.Fatal(err)
	}
	list := &corev1.PodList{}
	if err := r.Client.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var left []string
	for i := range list.Items {
		left = append(left, list.Items[i].Name)
	}
	if fmt.Sprint(left) != "[importer-source-3 web importer-data]" {
		t.Errorf("%v are left", left)
	}
}
