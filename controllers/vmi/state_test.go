package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// stateful gives a VMI UEFI variables that outlive it, and a VM that controls it.
func stateful(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223",
		Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false), Persistent: ptr.To(true)}}}
	vmi.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: vmi.Name, UID: "the-vm", Controller: ptr.To(true)}}
}

// newStateful returns a cluster with a VMI whose state is on a claim, and with what else there is.
func newStateful(t *testing.T, faults interceptor.Funcs, more ...client.Object) *cluster {
	t.Helper()
	c := newCluster(t, "", faults, more...)
	vmi := c.get()
	stateful(vmi)
	if err := c.client.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	return c
}

func storageClass(name, provisioner string, annotations ...string) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Provisioner: provisioner}
	for _, a := range annotations {
		class.Annotations[a] = "true"
	}
	return class
}

func (c *cluster) claims() []corev1.PersistentVolumeClaim {
	c.t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := c.client.List(context.Background(), &list); err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// TestStateClaimIsMadeOnceBeforeThePod: the claim is made once, before the pod, small, of the right class and
// mode, and the VM's.
func TestStateClaimIsMadeOnceBeforeThePod(t *testing.T) {
	local, files := storageClass("local", "rancher.io/local-path", storageclass.DefaultAnnotation),
		storageClass("files", "nfs.csi.k8s.io")
	virt := storageClass("virt", "nfs.csi.k8s.io", storageclass.DefaultVirtAnnotation)
	for name, tt := range map[string]struct {
		classes    []client.Object
		configured string
		class      string
		mode       corev1.PersistentVolumeAccessMode
		migratable string
	}{
		"default":          {[]client.Object{local, files}, "", "local", corev1.ReadWriteOnce, "True/Migratable"},
		"default for VMs":  {[]client.Object{local, virt}, "", "virt", corev1.ReadWriteMany, "True/Migratable"},
		"configured":       {[]client.Object{local, files, virt}, "files", "files", corev1.ReadWriteMany, "True/Migratable"},
		"configured local": {[]client.Object{local, virt}, "local", "local", corev1.ReadWriteOnce, "True/Migratable"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newStateful(t, interceptor.Funcs{}, tt.classes...)
			c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) {
				return &v1.KubeVirtConfiguration{VMStateStorageClass: tt.configured}, nil
			}
			for range 2 {
				if err := c.reconcile(); err != nil {
					t.Fatal(err)
				}
			}
			vmi := c.get()
			claims := c.claims()
			if len(claims) != 1 || c.pods() != 1 {
				t.Fatalf("%d claims, %d pods; %s", len(claims), c.pods(), c.status())
			}
			claim := claims[0]
			if claim.Name != v1.StateClaimName(vmi.Name, "the-vm") || claim.Labels["persistent-state-for"] != vmi.Name ||
				!strings.HasPrefix(claim.Name, "persistent-state-for-"+vmi.Name+"-") {
				t.Errorf("claim %s, labels %v", claim.Name, claim.Labels)
			}
			if len(claim.OwnerReferences) != 1 || claim.OwnerReferences[0].UID != "the-vm" ||
				claim.OwnerReferences[0].Kind != "VirtualMachine" {
				t.Errorf("owners %+v", claim.OwnerReferences)
			}
			if s := claim.Spec; *s.StorageClassName != tt.class || s.AccessModes[0] != tt.mode ||
				*s.VolumeMode != corev1.PersistentVolumeFilesystem || s.Resources.Requests.Storage().String() != "10Mi" {
				t.Errorf("%+v", s)
			}
			if !strings.Contains(c.status(), "LiveMigratable="+tt.migratable) {
				t.Errorf("status %s", c.status())
			}
			if info := vmi.StateClaimInfo(); info == nil || info.ClaimName != claim.Name ||
				len(vmi.Status.VolumeStatus) != len(vmi.Spec.Volumes)+1 {
				t.Errorf("volume status %+v", vmi.Status.VolumeStatus)
			}
			var pods corev1.PodList
			if err := c.client.List(t.Context(), &pods); err != nil {
				t.Fatal(err)
			}
			mounted := ""
			for _, v := range pods.Items[0].Spec.Volumes {
				for _, m := range pods.Items[0].Spec.Containers[0].VolumeMounts {
					if v.PersistentVolumeClaim != nil && m.Name == v.Name && !m.ReadOnly {
						mounted += v.PersistentVolumeClaim.ClaimName + " at " + m.MountPath
					}
				}
			}
			if mounted != claim.Name+" at "+layout.StateDir {
				t.Errorf("mounted: %q", mounted)
			}
			// The status is not written at once when the pod is made. The pod, as the cache has it, says which claim it is.
			vmi.Status.VolumeStatus = nil
			cached, err := TrimPod(follow.Keys{})(pods.Items[0].DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.client.Status().Update(t.Context(), vmi),
				c.client.Delete(t.Context(), &pods.Items[0])); err != nil {
				t.Fatal(err)
			}
			trimmed := cached.(*corev1.Pod)
			trimmed.ResourceVersion = ""
			if err := errors.Join(c.client.Create(t.Context(), trimmed), c.reconcile()); err != nil {
				t.Fatal(err)
			}
			vmi = c.get()
			if info := vmi.StateClaimInfo(); info == nil || info.ClaimName != claim.Name {
				t.Errorf("after its loss the volume status is %+v", vmi.Status.VolumeStatus)
			}
			if got := indexByClaim(vmi); len(got) != 1 || got[0] != claim.Name {
				t.Errorf("indexed by %q", got)
			}
		})
	}
}

// TestStateClaimInTheWayIsSaid: what is in the way is said, and the VMI goes on when it is gone.
func TestStateClaimInTheWayIsSaid(t *testing.T) {
	local := storageClass("local", "rancher.io/local-path", storageclass.DefaultAnnotation)
	name := v1.StateClaimName("minimal", "the-vm")
	label := map[string]string{v1.StateClaimLabel: "minimal"}
	vm := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "minimal", UID: "the-vm",
		Controller: ptr.To(true)}
	claim := func(name string, labels map[string]string, owners ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels,
			OwnerReferences: owners}}
	}
	other := vm
	other.UID = "another-vm"
	block := claim("a", label, vm)
	block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	ending := claim("a", label, vm)
	ending.DeletionTimestamp, ending.Finalizers = ptr.To(metav1.Unix(990, 0)), []string{"kubernetes.io/pvc-protection"}
	for what, tt := range map[string]struct {
		there      []client.Object
		configured string
		refused    error
		want       string
		claims     int
	}{
		"no default class": {nil, "", nil, "no StorageClass is the cluster's default", 0},
		"no such class": {[]client.Object{local}, "gone", nil,
			"the StorageClass gone, which the KubeVirt names in configuration.vmStateStorageClass, does not exist", 0},
		"quota": {[]client.Object{local}, "",
			apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "x", errors.New("exceeded quota")),
			"exceeded quota", 0},
		"a tenant's claim": {[]client.Object{local, claim(name, label)}, "", nil,
			"a claim " + name + " that is not this VMI's is in the way", 1},
		"an earlier VM's name": {[]client.Object{local, claim(name, label, other)}, "", nil, "is in the way", 1},
		"a block device":       {[]client.Object{local, block}, "", nil, "must be a file system", 1},
		"being deleted":        {[]client.Object{local, ending}, "", nil, "the claim a is being deleted", 1},
	} {
		t.Run(what, func(t *testing.T) {
			refused := tt.refused
			c := newStateful(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
				opts ...client.CreateOption) error {
				if _, ok := o.(*corev1.PersistentVolumeClaim); ok && refused != nil {
					return refused
				}
				return w.Create(ctx, o, opts...)
			}}, tt.there...)
			c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) {
				return &v1.KubeVirtConfiguration{VMStateStorageClass: tt.configured}, nil
			}
			for range 2 {
				if after := c.later(); after < 5*time.Second || after > 5*time.Minute {
					t.Errorf("tried again after %s", after)
				}
			}
			s := c.get().Status.Condition(v1.ConditionSynchronized)
			if s == nil || s.Reason != "FailedBackendStorageCreate" || !strings.Contains(s.Message, tt.want) {
				t.Errorf("condition %+v, want %q", s, tt.want)
			}
			if c.pods() != 0 || len(c.claims()) != tt.claims {
				t.Errorf("%d pods, %d claims", c.pods(), len(c.claims()))
			}
			for i := range tt.there {
				if o := tt.there[i]; o != local {
					o.SetFinalizers(nil)
					if err := errors.Join(c.client.Update(t.Context(), o.DeepCopyObject().(client.Object)),
						client.IgnoreNotFound(c.client.Delete(t.Context(), o))); client.IgnoreNotFound(err) != nil {
						t.Fatal(err)
					}
				}
			}
			if len(tt.there) == 0 {
				if err := c.client.Create(t.Context(),
					storageClass("local", "rancher.io/local-path", storageclass.DefaultAnnotation)); err != nil {
					t.Fatal(err)
				}
			}
			tt.configured, refused = "", nil
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got := c.status(); c.pods() != 1 || strings.Contains(got, "Synchronized") {
				t.Errorf("%d pods, %s", c.pods(), got)
			}
		})
	}
}

// TestStateClaimAdopted: a claim that its user gave to the VM, such as one restored from a backup, is taken.
func TestStateClaimAdopted(t *testing.T) {
	vm := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "minimal", UID: "the-vm",
		Controller: ptr.To(true)}
	c := newStateful(t, interceptor.Funcs{},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "restored",
			Labels: map[string]string{v1.StateClaimLabel: "minimal"}, OwnerReferences: []metav1.OwnerReference{vm}}})
	for range 2 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if info := c.get().StateClaimInfo(); info == nil || info.ClaimName != "restored" || len(c.claims()) != 1 ||
		c.pods() != 1 {
		t.Errorf("%+v, %d claims, %d pods", info, len(c.claims()), c.pods())
	}
}

// TestStateClaimGone: a claim that was deleted while its pod had no node is made anew, with the pod. A pod with
// a node is left alone.
func TestStateClaimGone(t *testing.T) {
	local := storageClass("local", "rancher.io/local-path", storageclass.DefaultAnnotation)
	run := func(c *cluster, times int) {
		t.Helper()
		for range times {
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
	}
	only := func(c *cluster) *corev1.Pod {
		t.Helper()
		var pods corev1.PodList
		if err := c.client.List(t.Context(), &pods); err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d pods (%v); %s", len(pods.Items), err, c.status())
		}
		return &pods.Items[0]
	}
	for name, tt := range map[string]struct {
		node    string
		noClass bool // for a while
		anew    bool
	}{
		"no node":               {anew: true},
		"no node, and no class": {noClass: true, anew: true},
		"a node":                {node: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newStateful(t, interceptor.Funcs{}, local.DeepCopy())
			run(c, 2)
			pod := only(c)
			pod.Spec.NodeName = tt.node
			pod.Labels = map[string]string{"the": "first"}
			claims := c.claims()
			if err := errors.Join(c.client.Update(t.Context(), pod), c.client.Delete(t.Context(), &claims[0])); err != nil {
				t.Fatal(err)
			}
			if tt.noClass {
				if err := c.client.Delete(t.Context(), local.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			c.Clock = clocktesting.NewFakePassiveClock(time.Unix(2000, 0))
			run(c, 1)
			s := c.get().Status.Condition(v1.ConditionSynchronized)
			if said := s != nil && s.Reason == v1.ReasonPvcNotFound &&
				strings.Contains(s.Message, claims[0].Name); said != tt.anew || c.pods() != 1 {
				t.Errorf("condition %+v, %d pods", s, c.pods())
			}
			run(c, 3)
			if tt.noClass {
				if got := c.status(); c.pods() != 0 || !strings.HasPrefix(got, "Scheduling") ||
					!strings.Contains(got, v1.ReasonStateClaim) {
					t.Errorf("without a class: %d pods, %s", c.pods(), got)
				}
				if err := c.client.Create(t.Context(), local.DeepCopy()); err != nil {
					t.Fatal(err)
				}
				run(c, 2)
			}
			pod = only(c)
			if anew := pod.Labels["the"] == "" && len(c.claims()) == 1; anew != tt.anew {
				t.Errorf("the pod has the labels %v, and there are %d claims; %s", pod.Labels, len(c.claims()), c.status())
			}
			if got := c.status(); strings.Contains(got, "Synchronized") || strings.HasPrefix(got, "Failed") {
				t.Errorf("in the end: %s", got)
			}
		})
	}
}

// TestEarlierStateClaimIsNamedByAnEvent: where an earlier VM of the name may have left its state, an event
// names the claim, and says what to do.
func TestEarlierStateClaimIsNamedByAnEvent(t *testing.T) {
	local := storageClass("local", "rancher.io/local-path", storageclass.DefaultAnnotation)
	vm := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "minimal",
		UID: "an-earlier-vm", Controller: ptr.To(true)}
	another := vm
	another.Name = "another"
	for name, tt := range map[string]struct {
		label  string
		owners []metav1.OwnerReference
		told   bool
	}{
		"orphan":            {"minimal", nil, true},
		"restored":          {"minimal", []metav1.OwnerReference{vm}, true},
		"another VM's":      {"minimal", []metav1.OwnerReference{another}, false},
		"of another's name": {"another", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newStateful(t, interceptor.Funcs{}, local,
				&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old",
					Labels: map[string]string{v1.StateClaimLabel: tt.label}, OwnerReferences: tt.owners}})
			for range 2 {
				if err := c.reconcile(); err != nil {
					t.Fatal(err)
				}
			}
			var told []string
			for recorded := c.Events.(*events.FakeRecorder).Events; len(recorded) > 0; {
				if e := <-recorded; strings.Contains(e, v1.ReasonStateLeft) {
					told = append(told, e)
				}
			}
			if want := map[bool]int{true: 1}[tt.told]; len(told) != want || c.pods() != 1 {
				t.Fatalf("%d events %q, want %d; %d pods", len(told), told, want, c.pods())
			}
			for _, part := range []string{"Warning", "the claim old (1 in all)",
				"delete " + v1.StateClaimName("minimal", "the-vm"), "VirtualMachine minimal, UID the-vm"} {
				if tt.told && !strings.Contains(told[0], part) {
					t.Errorf("%q does not say %q", told[0], part)
				}
			}
		})
	}
}

// TestTransientStateClaimErrorIsNoCondition: an error that passes by itself is no condition.
func TestTransientStateClaimErrorIsNoCondition(t *testing.T) {
	fails := true
	c := newStateful(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
		opts ...client.CreateOption) error {
		if _, ok := o.(*corev1.PersistentVolumeClaim); ok && fails {
			return apierrors.NewTimeoutError("etcd is slow", 1)
		}
		return w.Create(ctx, o, opts...)
	}}, storageClass("local", "rancher.io/local-path", storageclass.DefaultAnnotation))
	err := errors.Join(c.reconcile(), c.reconcile())
	if got := c.status(); err == nil || strings.Contains(got, "Synchronized") || c.pods() != 0 {
		t.Errorf("%s, %v", got, err)
	}
	fails = false
	if err := c.reconcile(); err != nil || c.pods() != 1 {
		t.Errorf("%v, %s", err, c.status())
	}
}

// TestLabelAndOwnerSayWhoseAStateClaimIs: the label and the owner say whose the claim is, and not its name alone.
func TestLabelAndOwnerSayWhoseAStateClaimIs(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	stateful(vmi)
	alone := vmi.DeepCopy()
	alone.OwnerReferences = nil
	forged := vmi.DeepCopy()
	forged.OwnerReferences[0].Name = "another"
	own := stateclaim.Owner(vmi)
	labels := map[string]string{v1.StateClaimLabel: vmi.Name}
	claim := func(name string, labels map[string]string, owners ...metav1.OwnerReference) corev1.PersistentVolumeClaim {
		return corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels,
			OwnerReferences: owners}}
	}
	usual := v1.StateClaimName(vmi.Name, own.UID)
	notControlling := own
	notControlling.Controller = nil
	for name, tt := range map[string]struct {
		vmi    *v1.VirtualMachineInstance
		claims []corev1.PersistentVolumeClaim
		want   string
	}{
		"none":           {vmi, nil, ""},
		"usual":          {vmi, []corev1.PersistentVolumeClaim{claim("a", labels, own), claim(usual, labels, own)}, usual},
		"another name":   {vmi, []corev1.PersistentVolumeClaim{claim("b", labels, own), claim("a", labels, own)}, "a"},
		"no owner":       {vmi, []corev1.PersistentVolumeClaim{claim(usual, labels)}, ""},
		"not controlled": {vmi, []corev1.PersistentVolumeClaim{claim(usual, labels, notControlling)}, ""},
		"no label":       {vmi, []corev1.PersistentVolumeClaim{claim(usual, nil, own)}, ""},
		"a VM's, alone":  {alone, []corev1.PersistentVolumeClaim{claim(usual, labels, own)}, ""},
		"of the VMI": {alone,
			[]corev1.PersistentVolumeClaim{claim("persistent-state-for-a", labels, stateclaim.Owner(alone))},
			"persistent-state-for-a"},
		"a VMI's, no name": {alone, []corev1.PersistentVolumeClaim{claim("a", labels, stateclaim.Owner(alone))}, ""},
		"of a foreign VM":  {forged, []corev1.PersistentVolumeClaim{claim(usual, labels, own)}, ""},
	} {
		got := ""
		if found := stateclaim.Find(tt.vmi, tt.claims); found != nil {
			got = found.Name
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if of := stateclaim.Owner(forged); of.Kind != "VirtualMachineInstance" || of.UID != vmi.UID {
		t.Errorf("a VMI with another name than its VM's: %+v", of)
	}
	long := newStateClaim(&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", 253),
		UID: types.UID("x")}}, storageClass("c", "p"))
	if len(long.Name) > 253 || len(long.Labels[v1.StateClaimLabel]) > 63 ||
		!strings.HasPrefix(long.Name, "persistent-state-for-aaa") {
		t.Errorf("a long name: %s, %v", long.Name, long.Labels)
	}
	trimmed, err := TrimClaim(ptr.To(claim(usual, labels, own)))
	if err != nil ||
		stateclaim.Find(vmi, []corev1.PersistentVolumeClaim{*trimmed.(*corev1.PersistentVolumeClaim)}) == nil {
		t.Errorf("from the cache: %+v (%v)", trimmed, err)
	}
}
