package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// burstSize guests are many times what the node's CPUs can run at once.
const burstSize = 18

// TestManyBusyGuestsStartAtOnce: guests that burn CPU from their first instruction on, started all at
// once, all come to run, and no component is started again for answering late,
// while they are started or after. make bench has the times.
func TestManyBusyGuestsStartAtOnce(t *testing.T) {
	ns := namespace(t)
	restarts := componentRestarts(t)
	list := map[string]any{"apiVersion": "v1", "kind": "List"}
	var items []any
	var vmis []vmi
	for i := range burstSize {
		object := tiny(fmt.Sprintf("burst-%d", i))
		object.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
			KernelArgs: `quiet rdinit=/bin/sh -- -c "while :; do :; done"`,
			Container:  &v1.KernelBootContainer{Image: tinyImage, KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"},
		}}
		items, vmis = append(items, object), append(vmis, vmi{t, ns, object.Name})
	}
	list["items"] = items
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	apply(t, ns, string(text))
	for _, v := range vmis {
		v.await(v1.Running)
	}
	t.Logf("%d VMIs run after %s", burstSize, time.Since(begin).Round(time.Second))
	// Longer than three probes of anybody's defaults.
	for deadline := time.Now().Add(45 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Second) {
		if now := componentRestarts(t); !maps.Equal(now, restarts) {
			t.Fatalf("restarts were %v, are %v", restarts, now)
		}
	}
	for _, v := range vmis {
		if status := v.get().Status; status.Phase != v1.Running {
			t.Errorf("VMI %s is %s: %+v", v.name, status.Phase, status.Conditions)
		}
	}
}
