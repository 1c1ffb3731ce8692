package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestReportsTakeBackInOrder: of what is said of one guest, that counts which the later report says.
func TestReportsTakeBackInOrder(t *testing.T) {
	began := time.Unix(1000, 0)
	machine := &qemuargs.Machine{Type: "pc-q35-11.1"}
	runs := control.StateReport{State: control.StateRunning, Machine: machine, StartedAt: &began}
	withAgent, waits := runs, control.StateReport{State: control.StateWaiting}
	withAgent.Machine = &qemuargs.Machine{Type: "pc-q35-11.1", Agent: &qemuargs.Agent{}}
	names := &control.AgentReport{Connected: true,
		Interfaces: []control.GuestInterface{{Name: "enp1s0", MAC: "52:54:00:00:00:01"}}}
	full := errors.New("no room")
	for name, c := range map[string]struct {
		heard   said
		failure error
		ready   string // the reason of Ready
		nic     string // the name that the guest's agent says of its interface
		says    string // why the guest does not start
	}{
		"it runs":                {heard: said{state: runs}, ready: v1.ReasonGuestRunning},
		"its launcher is silent": {heard: said{state: runs, silent: true}, ready: v1.ReasonLauncherNotResponding},
		"its agent says a name":  {heard: said{state: runs, agent: names}, ready: v1.ReasonGuestRunning, nic: "enp1s0"},
		"its agent is not heard": {heard: said{state: withAgent}, ready: v1.ReasonGuestRunning, nic: "before"},
		"it does not start":      {heard: said{state: waits}, failure: full, says: "no room"},
		"it runs, and fails":     {heard: said{state: runs}, failure: full, ready: v1.ReasonGuestRunning, says: "no room"},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default"}}
		vmi.Status.Interfaces = []v1.NetworkInterfaceStatus{
			{Name: "default", MAC: "52:54:00:00:00:01", InterfaceName: "before"}}
		reportGuest(vmi, c.heard, c.failure, metav1.Unix(2000, 0))
		ready, nic, says := "", "", ""
		if r := vmi.Status.Condition(v1.ConditionReady); r != nil {
			ready = r.Reason
		}
		if vmi.Status.Phase == v1.Running {
			nic = vmi.Status.Interfaces[0].InterfaceName
		}
		if s := vmi.Status.Condition(v1.ConditionSynchronized); s != nil {
			says = s.Message
		}
		if ready != c.ready || nic != c.nic || !strings.Contains(says, c.says) || c.says == "" && says != "" {
			t.Errorf("%s: Ready %q, interface %q, complaint %q", name, ready, nic, says)
		}
	}
}

// TestGuestIsToldOnce: what is told of a guest is written once, and noted for the time in which the cache has not seen
// it. A guest that lacks the scheduler is looked at soon, and a failed ping makes an event.
func TestGuestIsToldOnce(t *testing.T) {
	g, s := pinged(t)
	state := s.State()
	state.Machine.Type = "pc-q35-11.1"
	s.SetState(state)
	s.SetAgent(&control.AgentReport{PingFailed: g.now})
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 1, Threads: 1, Realtime: &v1.Realtime{}}
	vmi.Spec.ReadinessProbe = &v1.Probe{Handler: v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}}
	patches := 0
	g.Client = fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(vmi).WithStatusSubresource(vmi).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, of string,
			o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			patches++
			return c.SubResource(of).Patch(ctx, o, patch, options...)
		}}).Build()
	recorder := events.NewFakeRecorder(10)
	g.Events, g.Kernel = recorder, &kernel{err: errors.New("not yet")}
	read := &v1.VirtualMachineInstance{}
	if err := g.Client.Get(t.Context(), client.ObjectKeyFromObject(vmi), read); err != nil {
		t.Fatal(err)
	}
	next := &step{tell: tellGuest}
	if err := g.write(t.Context(), world{vmi: read, launcher: s}, next); err != nil || next.after != speedRetry {
		t.Errorf("looked at again after %s: %v", next.after, err)
	}
	if patches != 1 || !g.writes.Behind(read) || read.Status.Phase != "" {
		t.Errorf("written %d times; what was read is %q", patches, read.Status.Phase)
	}
	var said []string
	for len(recorder.Events) > 0 {
		said = append(said, <-recorder.Events)
	}
	if !strings.Contains(strings.Join(said, ";"), "GuestAgentPingFailed") {
		t.Errorf("events %q", said)
	}
}
