package node

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
)

func TestCPUWeightOfAPodsCgroup(t *testing.T) {
	const (
		uid     = "0e3c1c55-8b6f-4f0e-9d53-2a4b1c1f7a10"
		other   = "11111111-8b6f-4f0e-9d53-2a4b1c1f7a10"
		tenants = "22222222-8b6f-4f0e-9d53-2a4b1c1f7a10"
	)
	slice := func(uid string) string {
		return "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored(uid) + ".slice"
	}
	plain := func(uid string) string { return "kubepods/burstable/pod" + uid }
	v1 := func(tree, uid string) string { return tree + "/kubepods/burstable/pod" + uid }
	tests := []struct {
		name  string
		self  string
		files map[string]string
		want  map[string]string // files that are different after
		err   error
	}{
		{"cgroup v2 of systemd", "0::/" + slice(uid) + "/cri-containerd-1.scope\n",
			map[string]string{slice(uid) + "/cpu.weight": "1\n", slice(other) + "/cpu.weight": "1\n", slice(tenants) + "/cpu.weight": "4\n"},
			map[string]string{slice(uid) + "/cpu.weight": "1000"}, nil},
		{"cgroup v2", "0::/" + plain(uid) + "/1\n",
			map[string]string{plain(uid) + "/cpu.weight": "4\n", "kubepods/burstable/cpu.weight": "4\n", plain(other) + "/cpu.weight": "4\n", plain(tenants) + "/cpu.weight": "4\n"},
			map[string]string{plain(uid) + "/cpu.weight": "1000"}, nil},
		{"alone", "0::/" + plain(uid) + "/1\n", map[string]string{plain(uid) + "/cpu.weight": "4\n"}, map[string]string{plain(uid) + "/cpu.weight": "1000"}, nil},
		{"more already", "0::/" + plain(uid) + "/1\n", map[string]string{plain(uid) + "/cpu.weight": "5000\n", plain(other) + "/cpu.weight": "300\n"}, nil, nil},
		{"cgroup v1", "4:memory:/" + plain(uid) + "/1\n3:cpuset:/\n2:cpu,cpuacct:/" + plain(uid) + "/1\n0::/\n",
			map[string]string{v1("cpu,cpuacct", uid) + "/cpu.shares": "10\n", v1("memory", uid) + "/cpu.shares": "10\n", v1("cpu,cpuacct", other) + "/cpu.shares": "40\n"},
			map[string]string{v1("cpu,cpuacct", uid) + "/cpu.shares": "10240"}, nil},
		{"a cgroup namespace", "0::/\n", map[string]string{"cpu.weight": "100\n"}, nil, errNoPodCgroup},
		{"another pod", "0::/" + plain(tenants) + "/1\n", map[string]string{plain(tenants) + "/cpu.weight": "1\n"}, nil, errNoPodCgroup},
		{"not mounted", "0::/" + plain(uid) + "/1\n", nil, nil, errNoPodCgroup},
		{"no cgroup", "", nil, nil, errNoPodCgroup},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			w := &Weight{Cgroups: filepath.Join(dir, "cgroup"), Self: filepath.Join(dir, "self"), PodUID: uid, Log: logr.Discard()}
			files := map[string]string{"../self": tt.self}
			maps.Copy(files, tt.files)
			for name, text := range files {
				path := filepath.Join(w.Cgroups, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			for again := range 2 { // the second finds it as it shall be
				if said, err := w.raise(); !errors.Is(err, tt.err) || (said != "") != (again == 0 && len(tt.want) > 0) {
					t.Errorf("said %q, %v, want %v", said, err, tt.err)
				}
			}
			for name, text := range tt.files {
				if changed, ok := tt.want[name]; ok {
					text = changed
				}
				if got, err := os.ReadFile(filepath.Join(w.Cgroups, name)); string(got) != text {
					t.Errorf("%s is %q, want %q; %v", name, got, text, err)
				}
			}
		})
	}
}
