package pool

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/group"
)

var now = time.Unix(100_000, 0)

// web is a pool that wants so many.
func web(want int32, edits ...func(*v1beta1.VirtualMachinePoolSpec)) *v1beta1.VirtualMachinePool {
	pool := &v1beta1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "uid-of-web"}}
	pool.Spec.Replicas = &want
	for _, edit := range edits {
		edit(&pool.Spec)
	}
	return pool
}

func deletes(order v1beta1.VirtualMachinePoolSortPolicy) func(*v1beta1.VirtualMachinePoolSpec) {
	return func(s *v1beta1.VirtualMachinePoolSpec) {
		s.ScaleInStrategy = &v1beta1.VirtualMachinePoolScaleInStrategy{Proactive: &v1beta1.VirtualMachinePoolProactiveScaleInStrategy{
			SelectionPolicy: &v1beta1.VirtualMachinePoolSelectionPolicy{SortPolicy: &order}}}
	}
}

func restarts(order v1beta1.VirtualMachinePoolSortPolicy, unavailable string) func(*v1beta1.VirtualMachinePoolSpec) {
	return func(s *v1beta1.VirtualMachinePoolSpec) {
		s.MaxUnavailable = ptr.To(intstr.Parse(unavailable))
		s.UpdateStrategy = &v1beta1.VirtualMachinePoolUpdateStrategy{Proactive: &v1beta1.VirtualMachinePoolProactiveUpdateStrategy{
			SelectionPolicy: &v1beta1.VirtualMachinePoolSelectionPolicy{SortPolicy: &order}}}
	}
}

func unmanaged(s *v1beta1.VirtualMachinePoolSpec) {
	s.ScaleInStrategy = &v1beta1.VirtualMachinePoolScaleInStrategy{Unmanaged: &v1beta1.VirtualMachinePoolUnmanagedStrategy{}}
	s.UpdateStrategy = &v1beta1.VirtualMachinePoolUpdateStrategy{Unmanaged: &v1beta1.VirtualMachinePoolUnmanagedStrategy{}}
}

func opportunistic(s *v1beta1.VirtualMachinePoolSpec) {
	s.ScaleInStrategy = &v1beta1.VirtualMachinePoolScaleInStrategy{Opportunistic: &v1beta1.VirtualMachinePoolOpportunisticScaleInStrategy{}}
	s.UpdateStrategy = &v1beta1.VirtualMachinePoolUpdateStrategy{Opportunistic: &v1beta1.VirtualMachinePoolOpportunisticUpdateStrategy{}}
}

// vm is "name word…": it runs unless it is starting, halted, stopping or asked
// (to restart); it may be old (of an older template), outdated (its guest is),
// deleted, foreign, once, or have an age.
func vm(t *testing.T, text string) *v1.VirtualMachine {
	t.Helper()
	words := strings.Fields(text)
	has := func(word string) bool { return slices.Contains(words[1:], word) }
	vm := machine(web(0), 0, "now")
	vm.Name, vm.UID, vm.CreationTimestamp = words[0], types.UID("uid-of-"+words[0]), metav1.NewTime(now)
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	vm.Status.Created, vm.Status.Ready, vm.Status.PrintableStatus = !has("halted"), !has("halted") && !has("starting"), v1.VirtualMachineStatusRunning
	switch {
	case has("halted"):
		vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	case has("once"):
		vm.Spec.RunStrategy = ptr.To(v1.RunStrategyOnce)
	case has("stopping"):
		vm.Status.PrintableStatus = v1.VirtualMachineStatusStopping
	case has("asked"):
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest}, {Action: v1.StartRequest}}
	}
	if has("old") {
		vm.Labels[v1beta1.RevisionLabel] = "before"
	}
	if has("outdated") {
		vm.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.ConditionRestartRequired, Status: metav1.ConditionTrue}}
	}
	if has("deleted") {
		vm.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	}
	for _, word := range []string{"other-labels", "others"} {
		if has(word) {
			vm.Annotations = with(vm.Annotations, map[string]string{word: "yes"})
		}
	}
	if has("foreign") {
		vm.OwnerReferences = nil
	}
	for _, word := range words[1:] {
		if age, err := time.ParseDuration(word); err == nil {
			vm.CreationTimestamp = metav1.NewTime(now.Add(-age))
		}
	}
	return vm
}

// guestsOf are the guests of VirtualMachines: made by their templates, or by another that had other labels, of which the words other-labels and
// others (the guest is not the VirtualMachine's) tell.
func guestsOf(vms []*v1.VirtualMachine) guests {
	all := guests{}
	for _, vm := range vms {
		vmi := vm.Draft(false)
		if vm.Annotations["other-labels"] != "" {
			vmi.Annotations[v1.TemplatePartsAnnotation] = `["metadata.labels=another"]`
		}
		if vm.Annotations["others"] != "" {
			vmi.OwnerReferences = nil
		}
		all[vm.Name] = vmi
	}
	return all
}

// String is a plan as the tests write it.
func (p plan) String() string {
	var words []string
	for _, i := range p.create {
		words = append(words, fmt.Sprintf("+%d", i))
	}
	for verb, vms := range map[string][]*v1.VirtualMachine{"-": p.delete, "~": p.renew, "!": p.restart} {
		for _, vm := range vms {
			words = append(words, verb+strings.TrimPrefix(vm.Name, "web-"))
		}
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestDecide(t *testing.T) {
	const asc, desc, newest, oldest = v1beta1.SortAscending, v1beta1.SortDescending, v1beta1.SortNewest, v1beta1.SortOldest
	for name, c := range map[string]struct {
		pool *v1beta1.VirtualMachinePool
		vms  string
		want string
	}{
		"none wanted":                   {web(0), "", ""},
		"new":                           {web(3), "", "+0 +1 +2"},
		"holes are filled":              {web(4), "web-1, web-3", "+0 +2"},
		"a name is taken":               {web(2), "web-0 foreign", "+1 +2"},
		"a foreign one does not count":  {web(0), "web-0 foreign old outdated", ""},
		"enough":                        {web(2), "web-0, web-7", ""},
		"a deleted one keeps its place": {web(2), "web-0, web-1 deleted", ""},
		"deleted ones are enough":       {web(1), "web-0, web-1 deleted", ""},
		"one more of them":              {web(1, deletes(asc)), "web-0, web-1, web-2 deleted", "-0"},
		"ascending":                     {web(1, deletes(asc)), "web-10, web-9, web-0", "-0 -9"},
		"descending":                    {web(1, deletes(desc)), "web-10, web-9, web-0", "-10 -9"},
		"newest":                        {web(1, deletes(newest)), "web-0 1m, web-1 2m, web-2 3m", "-0 -1"},
		"oldest":                        {web(1, deletes(oldest)), "web-0 1m, web-1 2m, web-2 3m", "-1 -2"},
		"random is not by chance":       {web(1), "web-0, web-1, web-2", web3(t, web(1))},
		"others delete":                 {web(0, unmanaged), "web-0", ""},
		"others delete, opportunistic":  {web(0, opportunistic), "web-0", ""},
		"unmanaged ones come":           {web(1, unmanaged), "", "+0"},

		"another template":              {web(2), "web-0 old, web-1", "~0"},
		"who goes is not changed":       {web(1, deletes(asc)), "web-0 old, web-1 old", "-0 ~1"},
		"unmanaged":                     {web(2, unmanaged), "web-0 old, web-1 outdated", ""},
		"opportunistic":                 {web(2, opportunistic), "web-0 old, web-1 outdated", "~0"},
		"a strange name":                {web(1), "web-01 old", ""},
		"restart":                       {web(3), "web-0 outdated, web-1, web-2 outdated", "!0 !2"},
		"one at a time":                 {web(3, restarts(desc, "1")), "web-0 outdated, web-1 outdated, web-2", "!1"},
		"one is asked":                  {web(3, restarts(desc, "1")), "web-0 outdated, web-1 outdated asked, web-2", ""},
		"one is stopping":               {web(3, restarts(desc, "1")), "web-0 outdated, web-1 stopping, web-2", ""},
		"one is starting":               {web(3, restarts(asc, "1")), "web-0 outdated, web-1 starting, web-2", ""},
		"a percentage":                  {web(5, restarts(asc, "50%")), "web-0 outdated, web-1 outdated, web-2 outdated, web-3, web-4", "!0 !1"},
		"at least one":                  {web(2, restarts(asc, "0")), "web-0 outdated, web-1 outdated", "!0"},
		"it does not run yet anyway":    {web(3, restarts(asc, "1")), "web-0 outdated, web-1 outdated starting, web-2", "!1"},
		"halted ones hinder nobody":     {web(2, restarts(asc, "1")), "web-0 outdated, web-1 halted", "!0"},
		"once is once":                  {web(1), "web-0 outdated once", ""},
		"halted is halted":              {web(1), "web-0 outdated halted", ""},
		"labels of the template change": {web(3, restarts(asc, "1")), "web-0 other-labels, web-1 other-labels, web-2", "!0"},
		"labels, and a spec":            {web(2), "web-0 other-labels, web-1 outdated", "!0 !1"},
		"labels, opportunistic":         {web(1, opportunistic), "web-0 other-labels", ""},
		"labels, and halted":            {web(1), "web-0 other-labels halted", ""},
		"labels of another's guest":     {web(1), "web-0 other-labels others", ""},
		"changed first, then restarted": {web(2), "web-0 old outdated, web-1 outdated", "!1 ~0"},
	} {
		t.Run(name, func(t *testing.T) {
			var vms []*v1.VirtualMachine
			for _, text := range strings.Split(c.vms, ", ") {
				if text != "" {
					vms = append(vms, vm(t, text))
				}
			}
			for range 2 {
				if got := decide(c.pool, vms, guestsOf(vms), "now", now).String(); got != c.want {
					t.Errorf("plan is %q, want %q", got, c.want)
				}
				slices.Reverse(vms) // the same, in whichever order they are listed
			}
		})
	}
}

// web3 is what is decided for three that are alike.
func web3(t *testing.T, pool *v1beta1.VirtualMachinePool) string {
	return decide(pool, []*v1.VirtualMachine{vm(t, "web-0"), vm(t, "web-1"), vm(t, "web-2")}, nil, "now", now).String()
}

func TestDecideBurst(t *testing.T) {
	crowd := func(strategy v1.VirtualMachineRunStrategy) *v1beta1.VirtualMachinePool {
		return web(1000, func(s *v1beta1.VirtualMachinePoolSpec) { s.VirtualMachineTemplate.Spec.RunStrategy = &strategy })
	}
	if p := decide(crowd(v1.RunStrategyAlways), nil, nil, "now", now); len(p.create) != group.Room(1000, 0, 0) {
		t.Errorf("%d are created at once", len(p.create))
	}
	var starting, running []*v1.VirtualMachine
	for i := range 8 {
		starting, running = append(starting, vm(t, fmt.Sprintf("web-%d starting", i))), append(running, vm(t, fmt.Sprintf("web-%d", i)))
		starting[i].Status.PrintableStatus, running[i].Status.PrintableStatus = v1.VirtualMachineStatusUnschedulable, v1.VirtualMachineStatusRunning
	}
	if p := decide(crowd(v1.RunStrategyAlways), starting, nil, "now", now); len(p.create) != 0 {
		t.Errorf("%d are created while none has started", len(p.create))
	}
	if p := decide(crowd(v1.RunStrategyAlways), running, nil, "now", now); len(p.create) != 8 {
		t.Errorf("%d are created after 8 have started", len(p.create))
	}
	if p := decide(crowd(v1.RunStrategyHalted), starting, nil, "now", now); len(p.create) != group.Burst {
		t.Errorf("%d are created that are not to start", len(p.create))
	}
}

func TestIndexOf(t *testing.T) {
	for name, want := range map[string]int{"web-0": 0, "web-17": 17, "web-01": -1, "web--1": -1, "web-+1": -1, "web-": -1, "web": -1, "webs-1": -1, "web-99999999999999999999": -1} {
		if got, ok := indexOf(web(1), name); ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: %d %v, want %d", name, got, ok, want)
		}
	}
}

func TestMachine(t *testing.T) {
	pool := web(1, func(s *v1beta1.VirtualMachinePoolSpec) {
		s.NameGeneration = &v1beta1.VirtualMachinePoolNameGeneration{AppendIndexToSecretRefs: ptr.To(true), AppendIndexToConfigMapRefs: ptr.To(true)}
		template := &s.VirtualMachineTemplate
		template.ObjectMeta.Labels = map[string]string{"app": "web"}
		init := &v1.CloudInitNoCloudSource{}
		init.UserDataSecretRef = &corev1.LocalObjectReference{Name: "login"}
		init.NetworkDataSecretRef = &corev1.LocalObjectReference{Name: "net"}
		template.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "init", CloudInitNoCloud: init}, {Name: "keys", Secret: &v1.SecretVolumeSource{SecretName: "keys"}},
			{Name: "settings", ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
	})
	before, err := revision(pool)
	if err != nil {
		t.Fatal(err)
	}
	got := machine(pool, 3, before)
	init := got.Spec.Template.Spec.Volumes[0].CloudInitNoCloud
	if got.Name != "web-3" || got.Namespace != "ns" || !controls(pool, got) || init.UserDataSecretRef.Name != "login-3" || init.NetworkDataSecretRef.Name != "net-3" ||
		got.Labels["app"] != "web" || got.Labels[v1beta1.RevisionLabel] != before || got.Spec.Template.ObjectMeta.Labels[v1beta1.RevisionLabel] != before {
		t.Errorf("the VirtualMachine is %+v", got)
	}
	if v := got.Spec.Template.Spec.Volumes; v[1].Secret.SecretName != "keys-3" || v[2].ConfigMap.Name != "settings-3" {
		t.Errorf("the volumes are %+v", v)
	}
	if again, err := revision(pool); err != nil || again != before || pool.Spec.VirtualMachineTemplate.Spec.Template.Spec.Volumes[0].CloudInitNoCloud.UserDataSecretRef.Name != "login" {
		t.Errorf("the pool was changed: %s, %v", again, err)
	}
	// What others wrote stays, but in the spec.
	got.Annotations, got.Spec.RunStrategy = map[string]string{v1.MachineTypeAnnotation: "pc-q35-7.2"}, ptr.To(v1.RunStrategyHalted)
	pool.Spec.VirtualMachineTemplate.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	after, err := revision(pool)
	if err != nil || after == before {
		t.Errorf("another template has the same revision, %s (%v)", after, err)
	}
	renew(pool, got, 3, after)
	if got.Annotations[v1.MachineTypeAnnotation] == "" || got.Strategy() != v1.RunStrategyAlways || got.Labels[v1beta1.RevisionLabel] != after ||
		got.Spec.Template.Spec.Volumes[0].CloudInitNoCloud.UserDataSecretRef.Name != "login-3" {
		t.Errorf("renewed, the VirtualMachine is %+v", got)
	}
}

// TestDataVolumes: each VM has DataVolumes of its own, and the disks that they share stay shared.
func TestDataVolumes(t *testing.T) {
	pool := web(1, func(s *v1beta1.VirtualMachinePoolSpec) {
		spec := &s.VirtualMachineTemplate.Spec
		for _, name := range []string{"root", "data"} {
			spec.DataVolumeTemplates = append(spec.DataVolumeTemplates, v1.DataVolumeTemplate{ObjectMeta: v1.DataVolumeTemplateMeta{Name: name}})
		}
		spec.Template.Spec.Volumes = []v1.Volume{
			{Name: "root", DataVolume: &v1.DataVolumeSource{Name: "root"}},
			{Name: "data", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
			{Name: "shared", DataVolume: &v1.DataVolumeSource{Name: "shared"}},
			{Name: "image", ContainerDisk: &v1.ContainerDiskSource{Image: "data"}},
		}
	})
	before := pool.DeepCopy()
	spec := machine(pool, 7, "now").Spec
	volumes := spec.Template.Spec.Volumes
	got := []string{spec.DataVolumeTemplates[0].ObjectMeta.Name, spec.DataVolumeTemplates[1].ObjectMeta.Name,
		volumes[0].DataVolume.Name, volumes[1].PersistentVolumeClaim.ClaimName, volumes[2].DataVolume.Name, volumes[3].ContainerDisk.Image}
	if want := []string{"root-7", "data-7", "root-7", "data-7", "shared", "data"}; !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	if diff := cmp.Diff(before, pool); diff != "" {
		t.Errorf("the pool was changed: %s", diff)
	}
}
