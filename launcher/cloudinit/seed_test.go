package cloudinit

import (
	"maps"
	"slices"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/iso9660"
)

func want(files []iso9660.File) map[string]string {
	m := map[string]string{}
	for _, f := range files {
		m[f.Path] = string(f.Data)
	}
	return m
}

func same(t *testing.T, from string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: got files %q, want %q", from, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

func TestNoCloud(t *testing.T) {
	same(t, "with", want(NoCloud(Instance{ID: "i\"1", Hostname: "h"}, []byte("u"), []byte("n"))),
		map[string]string{"meta-data": `{"instance-id":"i\"1","local-hostname":"h"}` + "\n", "user-data": "u", "network-config": "n"})
	if _, ok := want(NoCloud(Instance{ID: "i", Hostname: "h"}, nil, nil))["network-config"]; ok {
		t.Error("network-config without network data")
	}
	same(t, "with keys", want(NoCloud(Instance{ID: "i", Hostname: "h", Keys: []string{"ssh-ed25519 A a@b", "ssh-rsa B"}}, nil, nil)), map[string]string{
		"meta-data": `{"instance-id":"i","local-hostname":"h","public-keys":{"0":"ssh-ed25519 A a@b","1":"ssh-rsa B"}}` + "\n", "user-data": ""})
}

func TestConfigDrive(t *testing.T) {
	same(t, "with all", want(ConfigDrive(Instance{ID: "vm.team-a", UUID: "u-1", Hostname: "h", Keys: []string{"ssh-rsa B"}}, []byte("u"), []byte("{}"))), map[string]string{
		"openstack/latest/meta_data.json":    `{"instance_id":"vm.team-a","hostname":"h","uuid":"u-1","public_keys":{"0":"ssh-rsa B"}}` + "\n",
		"openstack/latest/user_data":         "u",
		"openstack/latest/network_data.json": "{}"})
	same(t, "with little", want(ConfigDrive(Instance{ID: "i", UUID: "u", Hostname: "h"}, nil, nil)), map[string]string{
		"openstack/latest/meta_data.json": `{"instance_id":"i","hostname":"h","uuid":"u"}` + "\n", "openstack/latest/user_data": ""})
}
