package vmi

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestSharedMAC: a VMI says that another one of its namespace has its MAC on the same network of Multus, and both are looked at again
// when one comes or goes.
func TestSharedMAC(t *testing.T) {
	spec := func(mac, network string) string {
		return `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}, macAddress: "` + mac + `"}]}}, networks: [{name: lan, multus: {networkName: ` + network + `}}]}`
	}
	named := func(namespace, name, spec string) *v1.VirtualMachineInstance {
		vmi := besideVMI(t, spec)
		vmi.Namespace, vmi.Name, vmi.UID = namespace, name, types.UID(namespace+name)
		return vmi
	}
	ended := named("tenant", "ended", spec("02:00:00:00:00:01", "lan"))
	ended.Status.Phase = v1.Failed
	one := named("tenant", "one", spec("02:00:00:00:00:01", "lan"))
	all := []client.Object{one, ended,
		named("tenant", "two", spec("02-00-00-00-00-01", "tenant/lan")),
		named("tenant", "three", spec("02:00:00:00:00:01", "lan")),
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
		if err := r.observeSharedMAC(context.Background(), one); err != nil {
			t.Fatal(err)
		}
		got := one.Status.Condition(v1.ConditionSharedMAC)
		if want == "" && got != nil || want != "" && (got == nil || got.Status != metav1.ConditionTrue || got.Reason != v1.ReasonMACInUse || got.Message != want) {
			t.Errorf("condition %+v, want %q", got, want)
		}
	}
	says(`network "lan" (tenant/lan): VMI "three" and 1 more has the MAC 02:00:00:00:00:01 too: the guests may lose each other's packets. Give one of them another macAddress`)
	var again []string
	for _, request := range r.sharersOfMAC(context.Background(), one) {
		again = append(again, request.String())
	}
	if got := strings.Join(again, " "); got != "tenant/three tenant/two" {
		t.Errorf("looked at again: %s", got)
	}
	for _, o := range all[2:4] {
		if err := objects.Delete(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	says("")
}
