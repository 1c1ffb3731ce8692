package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

func TestGather(t *testing.T) {
	now := time.Unix(100_000, 0)
	made := func(name string, age time.Duration, phase v1.VirtualMachineInstancePhase, edits ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
		o := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: phase, ActivePods: map[types.UID]string{"p": "n1"}}}
		for _, edit := range edits {
			edit(o)
		}
		return o
	}
	tests := []struct {
		name   string
		other  *v1.VirtualMachineInstance
		waited time.Duration
		want   time.Duration
	}{
		{"alone", nil, 0, 0},
		{"another is bound", made("other", time.Second, v1.Scheduling), 0, gatherLook},
		{"another has its containers", made("other", time.Second, v1.Scheduled), time.Second, gatherLook},
		{"for long enough", made("other", time.Second, v1.Scheduling), gatherMost, 0},
		{"another has its launcher on the line", made("ready", time.Second, v1.Scheduled), 0, 0},
		{"another runs", made("other", time.Second, v1.Running), 0, 0},
		{"another has ended", made("other", time.Second, v1.Failed), 0, 0},
		{"another has not come for long", made("other", gatherYoung+time.Second, v1.Scheduling), 0, 0},
		{"on another node", made("other", time.Second, v1.Scheduling, func(o *v1.VirtualMachineInstance) { o.Status.NodeName = "n2" }), 0, 0},
		{"in another namespace", made("other", time.Second, v1.Scheduling, func(o *v1.VirtualMachineInstance) { o.Namespace = "foreign" }), 0, 0},
		{"another is deleted", made("other", time.Second, v1.Scheduling, func(o *v1.VirtualMachineInstance) {
			o.DeletionTimestamp, o.Finalizers = &metav1.Time{Time: now}, []string{"x"}
		}), 0, 0},
	}
	for _, tt := range tests {
		builder := fake.NewClientBuilder().WithScheme(newTestScheme(t)).WithObjects(made("own", time.Second, v1.Scheduled))
		if tt.other != nil {
			builder = builder.WithObjects(tt.other)
		}
		sessions := NewSessions(testr.New(t), func(types.NamespacedName) {})
		own := &session{pod: types.NamespacedName{Namespace: "ns"}, since: now.Add(-tt.waited)}
		for _, name := range []string{"own", "ready"} {
			sessions.byPod[types.NamespacedName{Namespace: "ns", Name: vmi.PodName(name, types.UID(name), vmi.First)}] = own
		}
		r := &Reconciler{Client: builder.Build(), Clock: clocktesting.NewFakePassiveClock(now), NodeName: "n1", Sessions: sessions}
		if got, err := r.gather(context.Background(), own); got != tt.want || err != nil {
			t.Errorf("%s: waits %v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
}

func TestGatherFails(t *testing.T) {
	down := errors.New("down")
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newTestScheme(t)).Build(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return down }})
	now := time.Now()
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now), NodeName: "n1", Sessions: NewSessions(testr.New(t), func(types.NamespacedName) {})}
	if _, err := r.gather(context.Background(), &session{since: now}); !errors.Is(err, down) {
		t.Error(err)
	}
	if wait, err := r.gather(context.Background(), &session{since: now.Add(-gatherMost)}); wait != 0 || err != nil {
		t.Errorf("who has waited is held up: %v, %v", wait, err)
	}
}
