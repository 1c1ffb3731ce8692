package vmi

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func storage(s string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
}

func claimOf(name string, mode *corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		Labels: map[string]string{"a": "b"}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: mode,
			Resources:  corev1.VolumeResourceRequirements{Requests: storage("1Gi")}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending, Capacity: storage("1Gi")}}
}

// TestVMIWaitsForItsClaims: a VMI waits for its claims, says for which, and goes on.
func TestVMIWaitsForItsClaims(t *testing.T) {
	c := newCluster(t, "", interceptor.Funcs{})
	vmi := c.get()
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
	if err := c.client.Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		const want = "Pending  ; LiveMigratable=False/DisksNotLiveMigratable Ready=False/PodNotExists Synchronized=False/FailedPvcNotFound"
		if got := c.status(); got != want || c.pods() != 0 {
			t.Errorf("got  %s, %d pods\nwant %s", got, c.pods(), want)
		}
	}
	if message := c.get().Status.Condition(v1.ConditionSynchronized).Message; !strings.Contains(message, "default/data") {
		t.Errorf("message %q", message)
	}
	if got, want := indexByClaim(c.get()), []string{"data"}; !cmp.Equal(got, want) {
		t.Errorf("indexed by %q, want %q", got, want)
	}
	claim := claimOf("data", ptr.To(corev1.PersistentVolumeBlock))
	if err := c.client.Create(context.Background(), claim); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	const want = "Scheduling  ; LiveMigratable=False/DisksNotLiveMigratable Ready=False/GuestNotRunning"
	if got := c.status(); got != want || c.pods() != 1 {
		t.Errorf("got  %s, %d pods\nwant %s", got, c.pods(), want)
	}
	var pods corev1.PodList
	if err := c.client.List(context.Background(), &pods); err != nil ||
		len(pods.Items[0].Spec.Containers[0].VolumeDevices) != 1 {
		t.Errorf("the pod has not the block device: %v", err)
	}
	if info := c.get().Status.ClaimInfo("root"); info == nil || info.DiskSize() != 0 {
		t.Errorf("before it is bound: %+v", info)
	}
	claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, storage("2Gi")
	if err := c.client.Status().Update(context.Background(), claim); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	if info := c.get().Status.ClaimInfo("root"); info == nil || info.DiskSize() != 1<<30 ||
		info.Capacity.Storage().String() != "2Gi" {
		t.Errorf("bound: %+v", info)
	}
	// What is known of a claim stays, though somebody forced it away.
	if err := c.client.Delete(context.Background(), claim); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil || c.get().Status.ClaimInfo("root").DiskSize() != 1<<30 {
		t.Errorf("%v, claim %+v", err, c.get().Status.ClaimInfo("root"))
	}
}

// TestClaimGoneWhileReplacing: a VMI whose rejected pod is made anew, and whose
// claim is gone meanwhile, waits for it too.
func TestClaimGoneWhileReplacing(t *testing.T) {
	c := newCluster(t, v1.Scheduling, interceptor.Funcs{})
	vmi := c.get()
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
	if err := c.client.Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	c.noteReplaced(&world{vmi: vmi, pod: &corev1.Pod{}})
	if err := c.client.Status().Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.reconcile(); err != nil || c.pods() != 0 || !strings.Contains(c.status(), v1.ReasonPvcNotFound) ||
			!strings.HasPrefix(c.status(), "Scheduling") {
			t.Errorf("%v, %d pods, status %s", err, c.pods(), c.status())
		}
	}
	if err := c.client.Create(context.Background(), claimOf("data", nil)); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil || c.pods() != 1 {
		t.Errorf("%v, %d pods, status %s", err, c.pods(), c.status())
	}
}

func TestVolumeStatus(t *testing.T) {
	vmi := load(t, "testdata/claims")
	vmi.Status = v1.VirtualMachineInstanceStatus{}
	root, device := claimOf("root-disk", nil), claimOf("raw-disk", ptr.To(corev1.PersistentVolumeBlock))
	root.Status.Phase = corev1.ClaimBound
	got := volumeStatus(vmi, map[string]*corev1.PersistentVolumeClaim{"root-disk": root, "raw-disk": device})
	rwo := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	want := []v1.VolumeStatus{
		{Name: "root", Target: "vda",
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "root-disk", AccessModes: rwo,
				VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem), Capacity: storage("1Gi"), Requests: storage("1Gi"),
				FilesystemOverhead: "0.055"}},
		{Name: "device", Target: "vdb",
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "raw-disk", AccessModes: rwo,
				VolumeMode: ptr.To(corev1.PersistentVolumeBlock), Requests: storage("1Gi")}},
		{Name: "tools", Target: "sda"},
		{Name: "template", Target: "vdc"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// The cache has less of a claim, and it is the same.
	trimmed, err := TrimClaim(root)
	if err != nil || trimmed.(client.Object).GetLabels() != nil {
		t.Fatalf("%v, %+v", err, trimmed)
	}
	if diff := cmp.Diff(v1.InfoOfClaim(root), v1.InfoOfClaim(trimmed.(*corev1.PersistentVolumeClaim))); diff != "" {
		t.Errorf("of a trimmed claim, -want +got:\n%s", diff)
	}
}

func TestLettersOfDeviceNames(t *testing.T) {
	for n, want := range map[int]string{0: "a", 25: "z", 26: "aa", 51: "az", 52: "ba", 701: "zz", 702: "aaa"} {
		if got := letters(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// TestComplaintNamesTheClassThatIsMissing: a VMI whose claim is not bound says that the claim's StorageClass
// does not exist.
func TestComplaintNamesTheClassThatIsMissing(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: load(t, "testdata/minimal").Namespace,
		Name: "disk"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("none"),
			VolumeMode: ptr.To(corev1.PersistentVolumeBlock)},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	for phase, want := range map[corev1.PersistentVolumeClaimPhase]string{
		corev1.ClaimPending: "no volume; PVC disk names the StorageClass none, which does not exist; there is no other node",
		corev1.ClaimBound:   "no volume; there is no other node",
	} {
		trimmed, err := TrimClaim(claim)
		if err != nil {
			t.Fatal(err)
		}
		held := trimmed.(*corev1.PersistentVolumeClaim).DeepCopy()
		held.Status.Phase, held.ResourceVersion = phase, ""
		c := newCluster(t, "", interceptor.Funcs{}, held)
		vmi := c.get()
		vmi.Spec.Volumes = append(vmi.Spec.Volumes,
			v1.Volume{Name: "disk", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}})
		vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPodScheduled,
			Status: metav1.ConditionFalse, Reason: v1.ReasonUnschedulable, Message: "no volume"}, c.now())
		if _, err := c.explainScheduling(t.Context(), on(vmi, nil)); err != nil {
			t.Fatal(err)
		}
		if got := vmi.Status.Condition(v1.ConditionPodScheduled).Message; got != want {
			t.Errorf("%s: %q, want %q", phase, got, want)
		}
	}
}
