package filler

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

func breakScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme, cdi.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestBreakOrphan: a DataVolume that copied is deleted and made anew as another kind of DataVolume before the
// reconciler looks again (the queue has one key for both). Its source pod in the other namespace stays for as long
// as the new DataVolume does, and beyond each start of virt-controller.
func TestBreakOrphan(t *testing.T) {
	for name, spec := range map[string]string{"made anew as a blank one": blank, "made anew as a copy of another namespace": ofDebian} {
		v := volume(t, spec)
		v.UID, v.CreationTimestamp = "new-uid", metav1.NewTime(now)
		old := volume(t, ofGolden)
		source, err := sourcePodOf(old, goldenClaim("1Gi"), testConfig)
		if err != nil {
			t.Fatal(err)
		}
		c := fake.NewClientBuilder().WithScheme(breakScheme(t)).WithStatusSubresource(v).WithObjects(v, source).Build()
		for range 2 { // two virt-controllers, one after the other
			r := &Reconciler{Client: c, Live: c, Clock: clocktesting.NewFakePassiveClock(now), Events: events.NewFakeRecorder(100), Progresses: noProgress{},
				Config: testConfig, Ours: func(context.Context) (bool, error) { return true, nil }}
			for range 10 {
				_, _ = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(v)})
			}
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(source), source); err == nil {
			t.Errorf("%s: source pod %s/%s of the DataVolume that is gone is still there", name, source.Namespace, source.Name)
		}
	}
}

// TestBreakForged: a pod that a tenant put in the importer's place before the policy kubevirt-importer-pods was
// there, with a finalizer, spares a DataVolume the question whether its maker may copy from another namespace.
func TestBreakForged(t *testing.T) {
	w := copying(t)
	w.volume.CreationTimestamp = metav1.NewTime(now)
	forged := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: podName(w.volume.Name), UID: "forged", Finalizers: []string{"example.com/stay"},
		DeletionTimestamp: &metav1.Time{Time: now}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w.volume, cdi.DataVolumeGroupVersionKind)}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	w.pod, w.origin = forged, nil
	w.claim.Annotations = nil
	r := among(t, goldenClaim("1Gi")) // there is no policy at all
	o, err := r.origin(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	w.origin = o
	if s := decide(w); s.action == makeSource {
		t.Errorf("nobody was asked (there is no policy), and a source pod is made in namespace %s: trouble %q", o.at.Namespace, o.trouble.reason)
	}
}

// TestBreakCost counts what one look at a copy that waits costs: it is a tenant who says how many pods there are.
func TestBreakCost(t *testing.T) {
	const pods = 3000
	s := breakScheme(t)
	v := volume(t, `{source: {pvc: {name: debian, namespace: ""}}, storage: {resources: {requests: {storage: 1Gi}}}}`)
	v.CreationTimestamp = metav1.NewTime(now)
	source := goldenClaim("1Gi")
	source.Namespace = "ns"
	claim := bound(v, "2Gi")
	objects := []client.Object{v, source, claim}
	for i := range pods {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p-%05d", i)}}
		if i == pods-1 {
			p.Name = "z-writer"
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "debian"}}}}
		}
		objects = append(objects, p)
	}
	whole := fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(v).WithObjects(objects...).Build()
	var lists, seen int
	all := &corev1.PodList{}
	if err := whole.List(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	live := interceptor.NewClient(whole, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		pl, ok := list.(*corev1.PodList)
		if !ok {
			return c.List(ctx, list, opts...)
		}
		o := client.ListOptions{}
		o.ApplyOptions(opts)
		from := 0
		fmt.Sscan(o.Continue, &from)
		to := min(from+int(o.Limit), len(all.Items))
		pl.Items, pl.Continue = all.Items[from:to], ""
		if to < len(all.Items) {
			pl.Continue = fmt.Sprint(to)
		}
		lists, seen = lists+1, seen+to-from
		return nil
	}})
	cached := fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(v).WithObjects(v, claim).Build()
	clock := clocktesting.NewFakePassiveClock(now)
	r := &Reconciler{Client: cached, Live: live, Clock: clock, Events: events.NewFakeRecorder(100), Progresses: noProgress{}, Config: testConfig,
		Ours: func(context.Context) (bool, error) { return true, nil }}
	const looks = 20
	var waited time.Duration
	for range looks {
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: v.Namespace, Name: v.Name}})
		if err != nil {
			t.Fatal(err)
		}
		waited += result.RequeueAfter
		clock.SetTime(clock.Now().Add(result.RequeueAfter))
	}
	got := &cdi.DataVolume{}
	_ = cached.Get(t.Context(), client.ObjectKeyFromObject(v), got)
	t.Logf("%d looks in %s: %d LIST requests, %d pods decoded; %v", looks, waited, lists, seen, got.Status.Condition(cdi.Running).Reason)
	if lists/looks > 2 {
		t.Errorf("each look at one waiting DataVolume costs %d LIST requests and %d pods", lists/looks, seen/looks)
	}
}

// TestBreakSize: a copy without a size, from a device into a file system, has room for the device.
func TestBreakSize(t *testing.T) {
	for _, bytes := range []int64{1 << 20, 64 << 20, 1 << 30, 1<<30 + 4096, 10<<30 + 512, 1e9, 5e9, 1e10, 123456789, 3 << 40, 1e12} {
		v := volume(t, `{source: {pvc: {name: debian, namespace: golden}}, storage: {}}`)
		for _, fromBlock := range []bool{true, false} {
			for _, toBlock := range []bool{true, false} {
				src := goldenClaim(fmt.Sprint(bytes))
				disk := bytes
				if fromBlock {
					src.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
				} else { // a DataVolume of so many bytes made the source
					disk = roundUp(bytes)
					q := *bytesPtr(withOverhead(disk))
					src.Spec.Resources.Requests[corev1.ResourceStorage], src.Status.Capacity = q, corev1.ResourceList{corev1.ResourceStorage: q}
				}
				if toBlock {
					v.Spec.Storage.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
				} else {
					v.Spec.Storage.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
				}
				claim := claimOf(v)
				o := &origin{claim: src}
				o.shape(claim)
				claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
				if got := diskBytes(v, claim); got < disk {
					t.Errorf("block %v to block %v: a disk of %d bytes gets %d", fromBlock, toBlock, disk, got)
				}
			}
		}
	}
}

func bytesPtr(n int64) *quantity { q := bytesOf(n); return &q }

// TestBreakManyPods: where a namespace has many pods, ended ones too (the cluster keeps 12500 of them), nothing is
// ever copied from it, and nobody is told why.
func TestBreakManyPods(t *testing.T) {
	v := volume(t, ofGolden)
	source := goldenClaim("1Gi")
	live := interceptor.NewClient(fake.NewClientBuilder().WithScheme(breakScheme(t)).WithObjects(v, source, bound(v, "2Gi")).WithStatusSubresource(v).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			o := client.ListOptions{}
			o.ApplyOptions(opts)
			pl, ok := list.(*corev1.PodList)
			if !ok || o.Limit == 0 {
				return c.List(ctx, list, opts...)
			}
			from := 0
			fmt.Sscan(o.Continue, &from)
			for i := from; i < min(from+int(o.Limit), 12000); i++ {
				p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: fmt.Sprint("job-", i)}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
				if o.FieldSelector == nil { // a server would leave out what a selector leaves out
					pl.Items = append(pl.Items, p)
				}
			}
			if pl.Continue = ""; from+int(o.Limit) < 12000 && o.FieldSelector == nil {
				pl.Continue = fmt.Sprint(from + int(o.Limit))
			}
			return nil
		}})
	r := &Reconciler{Client: live, Live: live, Clock: clocktesting.NewFakePassiveClock(now), Events: events.NewFakeRecorder(100), Progresses: noProgress{}, Config: testConfig,
		Ours: func(context.Context) (bool, error) { return true, nil }}
	w := copying(t)
	if _, err := r.writer(t.Context(), types.NamespacedName{Namespace: "golden", Name: "debian"}); err != nil {
		t.Errorf("no pod writes to the claim, and the copy never begins; no condition says: %v (%s)", err, w.volume.Name)
	}
}

// TestBreakWords: a DataVolume that was made 5 s after the policy is told that it is older than the policy, for ever.
func TestBreakWords(t *testing.T) {
	w := copying(t)
	w.volume.CreationTimestamp, w.pod = metav1.NewTime(now), nil
	made := now.Add(-5 * time.Second)
	o := &origin{at: types.NamespacedName{Namespace: "golden", Name: "debian"}}
	if err := among(t, policyObject(bindingKind.Kind, made), policyObject("ValidatingAdmissionPolicy", made)).permitted(t.Context(), w, o); err != nil {
		t.Fatal(err)
	}
	if o.trouble.reason != "" {
		t.Errorf("the DataVolume is 5 s younger than the policy: %s", o.trouble.note)
	}
}

// TestBreakAway: virt-controller is away for an hour, while a copy of a device goes on to its end. Meanwhile a VM ran
// on the source for half an hour. Nothing tells: what is read of a device has no version, and the copy is called filled.
func TestBreakAway(t *testing.T) {
	w := copying(t)
	block := corev1.PersistentVolumeBlock
	w.origin.claim.Spec.VolumeMode = &block
	vm := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: "virt-launcher-vm", CreationTimestamp: metav1.NewTime(now.Add(10 * time.Minute))},
		Spec:   corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "debian"}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodSucceeded}} // since 20 minutes
	r := among(t, vm)
	if user, err := r.user(t.Context(), w, w.origin); user != "" || err != nil {
		t.Fatal(user, err)
	}
	w.now = now.Add(time.Hour)
	w.pod.Status.Phase = corev1.PodSucceeded
	next := among(t, vm) // the next virt-controller
	user, err := next.user(t.Context(), w, w.origin)
	if err != nil {
		t.Fatal(err)
	}
	w.origin.user = user
	if s := decide(w); s.action == fillClaim {
		t.Errorf("the claim is called filled, although pod %s wrote to the source while it was copied and is still there to be seen", vm.Name)
	}
}
