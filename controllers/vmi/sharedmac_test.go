package vmi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestSharedMACIsSaidByBothVMIs: a VMI says that another one of its namespace has its MAC on the same network
// of Multus, and both are looked at again when one comes or goes.
func TestSharedMACIsSaidByBothVMIs(t *testing.T) {
	spec := func(mac, network string) string {
		return `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}, macAddress: "` + mac +
			`"}]}}, networks: [{name: lan, multus: {networkName: ` + network + `}}]}`
	}
	named := func(namespace, name, spec string) *v1.VirtualMachineInstance {
		vmi := besideVMI(t, spec)
		vmi.Namespace, vmi.Name, vmi.UID = namespace, name, types.UID(namespace+name)
		return vmi
	}
	runs := func(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
		vmi.Status.Phase = v1.Running
		return vmi
	}
	ended := named("tenant", "ended", spec("02:00:00:00:00:01", "lan"))
	ended.Status.Phase = v1.Failed
	one := named("tenant", "one", spec("02:00:00:00:00:01", "lan"))
	all := []client.Object{one, ended,
		runs(named("tenant", "two", spec("02-00-00-00-00-01", "tenant/lan"))),
		named("tenant", "three", spec("02:00:00:00:00:01", "lan")), // no pod yet
		named("tenant", "another-mac", spec("02:00:00:00:00:02", "lan")),
		named("tenant", "another-network", spec("02:00:00:00:00:01", "wan")),
		named("stranger", "four", spec("02:00:00:00:00:01", "tenant/lan"))}
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(all...).WithStatusSubresource(ended).WithIndex(&v1.VirtualMachineInstance{}, macIndex, indexByMAC).Build()
	r := &Reconciler{Client: objects, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0))}
	says := func(want string) {
		t.Helper()
		if _, err := r.noteSharedMAC(context.Background(), on(one, nil)); err != nil {
			t.Fatal(err)
		}
		got := one.Status.Condition(v1.ConditionSharedMAC)
		if want == "" && got != nil ||
			want != "" && (got == nil || got.Status != metav1.ConditionTrue || got.Reason != v1.ReasonMACInUse ||
				got.Message != want) {
			t.Errorf("condition %+v, want %q", got, want)
		}
	}
	says(`the guests may lose each other's packets until one of them has another macAddress: network "lan" (tenant/lan): VMI "three" and 1 more have the MAC 02:00:00:00:00:01 too`)
	var again []string
	for _, request := range r.sharersOfMAC(context.Background(), one) {
		again = append(again, request.String())
	}
	if got := strings.Join(again, " "); got != "tenant/two" {
		t.Errorf("looked at again: %s", got)
	}
	for _, o := range all[2:4] {
		if err := objects.Delete(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	says("")
}

// crowd returns VMIs of one namespace with one MAC.
func crowd(t *testing.T, count int) (all []client.Object) {
	for i := range count {
		vmi := besideVMI(t, `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}, macAddress: "02:00:00:00:00:01"}]}}, networks: [{name: lan, multus: {networkName: lan}}]}`)
		vmi.Namespace, vmi.Name, vmi.UID, vmi.Status.Phase = "tenant", fmt.Sprintf("vmi%03d", i), types.UID(fmt.Sprint(i)),
			v1.Running
		all = append(all, vmi)
	}
	return all
}

// TestManyVMIsWithOneMACCostLittle: a tenant with many VMIs with one MAC has few of them looked at when one
// comes or goes, and what the others say stays the same. Around the limit, each one is looked at whose words
// change.
func TestManyVMIsWithOneMACCostLittle(t *testing.T) {
	for _, count := range []int{2, maxSharers, maxSharers + 1, maxSharers + 2, 200} {
		all := crowd(t, count)
		scheme := runtime.NewScheme()
		if err := v1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(all...).WithIndex(&v1.VirtualMachineInstance{},
			macIndex, indexByMAC).Build()
		r := &Reconciler{Client: objects, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0))}
		words := func(live []client.Object) map[string]string {
			out := map[string]string{}
			for _, o := range live {
				vmi := o.(*v1.VirtualMachineInstance)
				if _, err := r.noteSharedMAC(context.Background(), on(vmi, nil)); err != nil {
					t.Fatal(err)
				}
				if c := vmi.Status.Condition(v1.ConditionSharedMAC); c != nil {
					out[vmi.Name] = c.Message
				}
			}
			return out
		}
		before := words(all)
		gone := all[0]
		if err := objects.Delete(context.Background(), gone); err != nil {
			t.Fatal(err)
		}
		looked := map[string]bool{}
		requests := r.sharersOfMAC(context.Background(), gone)
		for _, request := range requests {
			looked[request.Name] = true
		}
		if len(requests) > maxSharers+1 {
			t.Errorf("%d VMIs: %d are looked at", count, len(requests))
		}
		after := words(all[1:])
		for _, o := range all[1:] {
			if name := o.GetName(); before[name] != after[name] && !looked[name] {
				t.Errorf("%d VMIs: %s is not looked at, and says %q instead of %q", count, name, after[name], before[name])
			}
		}
		if many := strings.Contains(before["vmi001"], "more than 8 other VMIs have the MAC"); many != (count > maxSharers+1) {
			t.Errorf("%d VMIs: %q", count, before["vmi001"])
		}
	}
}

// TestOnlyStartAndEndConcernOtherVMIs: what happens to a VMI between its start and its end has no other VMI looked at.
func TestOnlyStartAndEndConcernOtherVMIs(t *testing.T) {
	running, ended := crowd(t, 1)[0].(*v1.VirtualMachineInstance), crowd(t, 1)[0].(*v1.VirtualMachineInstance)
	ended.Status.Phase = v1.Succeeded
	passes := comesOrEnds()
	for name, c := range map[string]struct{ got, want bool }{
		"comes":          {passes.Create(event.CreateEvent{Object: running}), true},
		"goes":           {passes.Delete(event.DeleteEvent{Object: running}), true},
		"ends":           {passes.Update(event.UpdateEvent{ObjectOld: running, ObjectNew: ended}), true},
		"changes":        {passes.Update(event.UpdateEvent{ObjectOld: running, ObjectNew: running}), false},
		"stays as ended": {passes.Update(event.UpdateEvent{ObjectOld: ended, ObjectNew: ended}), false},
		"else":           {passes.Generic(event.GenericEvent{Object: running}), false},
	} {
		if c.got != c.want {
			t.Errorf("a VMI %s: %v", name, c.got)
		}
	}
}

// TestEndedVMISaysNothingOfSharedMACs: a VMI that has ended says of no MAC that another has it too.
func TestEndedVMISaysNothingOfSharedMACs(t *testing.T) {
	vmi := crowd(t, 1)[0].(*v1.VirtualMachineInstance)
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSharedMAC, Status: metav1.ConditionTrue,
		Reason: v1.ReasonMACInUse}, metav1.Unix(1000, 0))
	finish(&vmi.Status, end{phase: v1.Succeeded}, metav1.Unix(2000, 0))
	r := &Reconciler{} // whom it shared with is not looked up
	if _, err := r.noteSharedMAC(context.Background(), on(vmi, nil)); err != nil ||
		vmi.Status.Condition(v1.ConditionSharedMAC) != nil {
		t.Errorf("%+v, %v", vmi.Status.Conditions, err)
	}
}
