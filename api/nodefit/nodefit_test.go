package nodefit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestDrainTaintHasGuestLeave: only the effect NoSchedule of the key has a guest leave, and only a guest that does not tolerate the taint.
func TestDrainTaintHasGuestLeave(t *testing.T) {
	const key = "kubevirt.io/drain"
	taint := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: "x", Effect: effect}
	}
	for name, c := range map[string]struct {
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		want        bool
	}{
		"no taint":                {},
		"the taint":               {taints: []corev1.Taint{taint("a", corev1.TaintEffectNoExecute), taint(key, corev1.TaintEffectNoSchedule)}, want: true},
		"another key":             {taints: []corev1.Taint{taint("a", corev1.TaintEffectNoSchedule)}},
		"another effect":          {taints: []corev1.Taint{taint(key, corev1.TaintEffectPreferNoSchedule), taint(key, corev1.TaintEffectNoExecute)}},
		"it is tolerated":         {taints: []corev1.Taint{taint(key, corev1.TaintEffectNoSchedule)}, tolerations: []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}},
		"all is tolerated":        {taints: []corev1.Taint{taint(key, corev1.TaintEffectNoSchedule)}, tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		"another is tolerated":    {taints: []corev1.Taint{taint(key, corev1.TaintEffectNoSchedule)}, tolerations: []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}, want: true},
		"its other value is":      {taints: []corev1.Taint{taint(key, corev1.TaintEffectNoSchedule)}, tolerations: []corev1.Toleration{{Key: key, Value: "y"}}, want: true},
		"its effect NoExecute is": {taints: []corev1.Taint{taint(key, corev1.TaintEffectNoSchedule)}, tolerations: []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, want: true},
	} {
		if got := Drained(&corev1.Node{Spec: corev1.NodeSpec{Taints: c.taints}}, key, c.tolerations); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
