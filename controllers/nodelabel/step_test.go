package nodelabel

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
)

func at(seconds int64) time.Time { return time.Unix(seconds, 0) }

// lease as a virt-handler wrote it at a time, with an accelerator.
func lease(renewed time.Time, accelerator string) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: handlerlease.Name("node-1"), Namespace: v1.KubeVirtNamespace, Annotations: map[string]string{}}}
	if accelerator != "" {
		l.Annotations[AcceleratorKey] = accelerator
	}
	if !renewed.IsZero() {
		t := metav1.NewMicroTime(renewed)
		l.Spec.RenewTime = &t
	}
	return l
}

func TestHowLongALeaseIsAlive(t *testing.T) {
	const day = 24 * 3600
	tests := []struct {
		name    string
		last    heard
		renewed time.Time
		now     time.Time
		left    time.Duration
	}{
		{"first, just renewed", heard{}, at(1000), at(1000), 300 * time.Second},
		{"first, renewed before", heard{}, at(1000), at(1060), 240 * time.Second},
		{"first, long ago", heard{}, at(1000), at(1300), 0},
		{"first, a clock in the future", heard{}, at(1000 + day), at(1000), 300 * time.Second},
		{"first, never renewed", heard{}, time.Time{}, at(1000), 0},
		{"renewed", heard{at(1000), at(1000)}, at(1060), at(1060), 300 * time.Second},
		{"not renewed", heard{at(1000), at(1000)}, at(1000), at(1299), time.Second},
		{"not renewed for too long", heard{at(1000), at(1000)}, at(1000), at(1300), 0},
		{"renewed, a clock a day behind", heard{at(1000 - day), at(1000)}, at(1060 - day), at(1060), 300 * time.Second},
		{"not renewed, a clock a day ahead", heard{at(1000 + day), at(1000)}, at(1000 + day), at(1300), 0},
		{"renewed, its clock was set back", heard{at(1000), at(1000)}, at(1000 - day), at(1060), 300 * time.Second},
		{"not renewed, our clock was set back a day", heard{at(1000 + day), at(1000 + day)}, at(1000 + day), at(1000), 300 * time.Second},
		{"not renewed, our clock was set forward a day", heard{at(1000), at(1000)}, at(1000), at(1000 + day), 300*time.Second - day*time.Second},
		{"renewed, our clock was set forward a day", heard{at(1000), at(1000)}, at(1060), at(1060 + day), 300 * time.Second},
		{"back after a while", heard{at(1000), at(1000)}, at(5000), at(5000), 300 * time.Second},
	}
	for _, tt := range tests {
		got := listen(tt.last, lease(tt.renewed, ""), tt.now)
		if left := got.left(tt.now); left != tt.left {
			t.Errorf("%s: %v left, want %v", tt.name, left, tt.left)
		}
		if again := listen(got, lease(tt.renewed, ""), tt.now.Add(time.Second)); again != got && !got.at.IsZero() {
			t.Errorf("%s: the same Lease is taken for a new sign of life", tt.name)
		}
	}
	if got := listen(heard{}, nil, at(1000)); got.left(at(1000)) > 0 {
		t.Error("heard where nothing is")
	}
}

func withCPUs(l *coordinationv1.Lease, own string) *coordinationv1.Lease {
	l.Annotations[CPUManagerKey] = own
	return l
}

func withPasst(l *coordinationv1.Lease, yes string) *coordinationv1.Lease {
	l.Annotations[PasstKey] = yes
	return l
}

func withRealtime(l *coordinationv1.Lease, yes string) *coordinationv1.Lease {
	l.Annotations[RealtimeKey] = yes
	return l
}

func TestLabelsOfALease(t *testing.T) {
	const accelerator, schedulable = AcceleratorKey, v1.SchedulableLabel
	tests := []struct {
		name  string
		lease *coordinationv1.Lease
		alive bool
		want  map[string]string
	}{
		{"emulates", lease(at(1), "tcg"), true, map[string]string{schedulable: "true", accelerator: "tcg"}},
		{"KVM", lease(at(1), "kvm"), true, map[string]string{schedulable: "true", accelerator: "kvm"}},
		{"offers nothing", lease(at(1), "none"), true, map[string]string{schedulable: "true", accelerator: "none"}},
		{"CPUs of their own", withCPUs(lease(at(1), "kvm"), "true"), true, map[string]string{schedulable: "true", accelerator: "kvm", v1.CPUManagerLabel: "true", v1.OldCPUManagerLabel: "true"}},
		{"shared CPUs, gone", withCPUs(lease(at(1), "kvm"), "false"), false, map[string]string{schedulable: "false", accelerator: "kvm", v1.CPUManagerLabel: "false", v1.OldCPUManagerLabel: "false"}},
		{"CPUs of a liar", withCPUs(lease(at(1), "kvm"), "x"), true, map[string]string{schedulable: "true", accelerator: "kvm"}},
		{"real-time threads", withRealtime(lease(at(1), "kvm"), "true"), true, map[string]string{schedulable: "true", accelerator: "kvm", v1.RealtimeLabel: "true"}},
		{"limited real-time threads, gone", withRealtime(lease(at(1), "kvm"), "false"), false, map[string]string{schedulable: "false", accelerator: "kvm", v1.RealtimeLabel: "false"}},
		{"passt's profile", withPasst(lease(at(1), "kvm"), "true"), true, map[string]string{schedulable: "true", accelerator: "kvm", v1.PasstLabel: "true"}},
		{"no profile, gone", withPasst(lease(at(1), "kvm"), "false"), false, map[string]string{schedulable: "false", accelerator: "kvm", v1.PasstLabel: "false"}},
		{"passt's profile of a liar", withPasst(lease(at(1), "kvm"), "yes"), true, map[string]string{schedulable: "true", accelerator: "kvm"}},
		{"real-time threads of a liar", withRealtime(lease(at(1), "kvm"), "1"), true, map[string]string{schedulable: "true", accelerator: "kvm"}},
		{"gone", lease(at(1), "kvm"), false, map[string]string{schedulable: "false", accelerator: "kvm"}},
		{"Lease deleted", nil, false, map[string]string{schedulable: "false"}},
		{"lies", lease(at(1), "kvm\n"), true, map[string]string{schedulable: "true"}},
		{"says nothing", lease(at(1), ""), true, map[string]string{schedulable: "true"}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, labels(tt.lease, tt.alive)); diff != "" {
			t.Errorf("%s, -want +got:\n%s", tt.name, diff)
		}
	}
}
