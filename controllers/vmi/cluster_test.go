package vmi

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// configured is a cluster with a configuration, and a VMI that is new in it.
func configured(t *testing.T, config string) *cluster {
	t.Helper()
	c := newCluster(t, "", interceptor.Funcs{})
	parsed := &v1.KubeVirtConfiguration{}
	if err := json.Unmarshal([]byte(config), parsed); err != nil {
		t.Fatal(err)
	}
	c.Config.Emulation = false
	c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) { return parsed, nil }
	return c
}

func (c *cluster) get() *v1.VirtualMachineInstance {
	c.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(context.Background(), client.ObjectKeyFromObject(c.vmi), vmi); err != nil {
		c.t.Fatal(err)
	}
	return vmi
}

func TestClusterDefaultsArePersisted(t *testing.T) {
	c := configured(t, `{"cpuModel":"Nehalem","machineType":"pc-q35-7.2"}`)
	vmi := c.get()
	vmi.Finalizers, vmi.Spec.Domain.CPU, vmi.Spec.Domain.Machine = nil, nil, nil
	if err := c.client.Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	domain := c.get().Spec.Domain
	if domain.CPU.Model != "Nehalem" || domain.CPU.Sockets != 1 || domain.Machine.Type != "pc-q35-7.2" {
		t.Errorf("CPU %+v, machine %+v", domain.CPU, domain.Machine)
	}
	if c.pods() != 1 {
		t.Errorf("%d pods", c.pods())
	}
}

// TestClusterChangesLater: a VMI that is past its start keeps what it got, and
// is not refused any more.
func TestClusterChangesLater(t *testing.T) {
	c := configured(t, `{"cpuModel":"Nehalem"}`)
	c.vmi = c.get()
	c.vmi.Status.Phase = v1.Pending
	if err := c.client.Status().Update(context.Background(), c.vmi); err != nil {
		t.Fatal(err)
	}
	before := c.get().Spec
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	if after := c.get().Spec; after.Domain.CPU.Model != before.Domain.CPU.Model {
		t.Errorf("CPU model %q became %q", before.Domain.CPU.Model, after.Domain.CPU.Model)
	}
}

func TestEmulationIsBooked(t *testing.T) {
	booked := func(config string) int64 {
		t.Helper()
		c := configured(t, config)
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		var pods corev1.PodList
		if err := c.client.List(context.Background(), &pods); err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d pods (%v)", len(pods.Items), err)
		}
		return pods.Items[0].Spec.Containers[0].Resources.Requests.Memory().Value()
	}
	without, with := booked(`{}`), booked(`{"developerConfiguration":{"useEmulation":true}}`)
	if with-without != overheadEmulation {
		t.Errorf("%d with emulation, %d without", with, without)
	}
}

func TestConfigurationIsUnreadable(t *testing.T) {
	c := newCluster(t, "", interceptor.Funcs{})
	down := errors.New("down")
	c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) { return nil, down }
	if err := c.reconcile(); !errors.Is(err, down) || c.pods() != 0 {
		t.Errorf("%v, %d pods: nothing may be decided", err, c.pods())
	}
}
