package kit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func pod(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version}}
}

func TestCacheIsBehindOwnWrites(t *testing.T) {
	var w Writes
	if w.Behind(pod("a", "1")) || w.Behind(pod("a", "")) {
		t.Error("behind a write that never was")
	}
	w.Note(pod("a", "1"), pod("a", "2"))
	w.Note(pod("c", "5"), pod("c", "5")) // nothing changed
	for _, c := range []struct {
		read *corev1.Pod
		want bool
	}{
		{pod("a", "1"), true}, {pod("a", "2"), false}, {pod("a", "7"), false}, {pod("b", "1"), false}, {pod("c", "5"), false},
	} {
		if got := w.Behind(c.read); got != c.want {
			t.Errorf("%s at %s: behind %v", c.read.Name, c.read.ResourceVersion, got)
		}
	}
	w.Note(pod("a", "2"), pod("a", "3"))
	if w.Behind(pod("a", "1")) || !w.Behind(pod("a", "2")) {
		t.Error("goes by an older write")
	}
	for range patience {
		w.Behind(pod("a", "2"))
	}
	if w.Behind(pod("a", "2")) {
		t.Error("waits for ever for a write that is never seen")
	}
	w.Forget(client.ObjectKeyFromObject(pod("a", "")))
	if w.Behind(pod("a", "2")) || len(w.last) != 0 {
		t.Error("keeps what is gone")
	}
}
