package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func testPlan(t *testing.T, index, nodes int) Plan {
	t.Helper()
	p, err := NewPlan("demo", filepath.Join(t.TempDir(), "demo"), index, nodes, IPv4)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlansOfDifferentIndexesShareNoAddress(t *testing.T) {
	var all []netip.Prefix
	for i := range indexes {
		p := testPlan(t, i, maxNodes)
		mine := []netip.Prefix{p.Network, p.Pods, p.Services, netip.PrefixFrom(p.Loopback, 32)}
		for _, a := range mine {
			for _, b := range all {
				if a.Overlaps(b) {
					t.Fatalf("index %d: %s overlaps %s", i, a, b)
				}
			}
		}
		all = append(all, mine...)
		for _, n := range p.Nodes {
			if !p.Network.Contains(n.Address) || !p.Pods.Contains(n.Pods.Addr()) || n.Pods.Bits() != 24 {
				t.Errorf("index %d: %+v lies outside its cluster", i, n)
			}
			if len(n.Link) > 15 {
				t.Errorf("link name %q is longer than the kernel takes", n.Link)
			}
		}
	}
}

// TestPlansOfFamilies: a plan has the families that it is asked for, IPv4 first, and those of different
// indexes share no IPv6 address.
func TestPlansOfFamilies(t *testing.T) {
	var all []netip.Prefix
	for i := range indexes {
		for families, want := range map[Families]int{IPv4: 1, DualStack: 2, IPv6: 1} {
			p, err := NewPlan("demo", "/demo", i, maxNodes, families)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.All) != want || p.Network.Addr().Is4() != (families != IPv6) || p.Ranges != p.All[0] {
				t.Errorf("%q: %+v", families, p.All)
			}
			for f, r := range p.All {
				var pods []netip.Prefix
				for _, n := range p.Nodes {
					if !r.Network.Contains(n.Addresses[f]) || !r.Pods.Contains(n.PodNetworks[f].Addr()) || slices.ContainsFunc(pods, n.PodNetworks[f].Overlaps) {
						t.Errorf("%q: node %+v", families, n)
					}
					pods = append(pods, n.PodNetworks[f])
				}
			}
			if families != IPv6 {
				continue
			}
			for _, mine := range []netip.Prefix{p.Network, p.Pods, p.Services} {
				if slices.ContainsFunc(all, mine.Overlaps) {
					t.Errorf("index %d: %s is another's too", i, mine)
				}
				all = append(all, mine)
			}
		}
	}
}

func TestPlanOfTheSameNameInTwoFoldersDiffers(t *testing.T) {
	a, errA := NewPlan("demo", "/a", 0, 1, IPv4)
	b, errB := NewPlan("demo", "/b", 0, 1, IPv4)
	if errA != nil || errB != nil || a.ID == b.ID {
		t.Fatalf("got %q and %q (%v, %v)", a.ID, b.ID, errA, errB)
	}
}

func TestUsualNamesStartAtDifferentIndexes(t *testing.T) {
	seen := map[int]string{}
	for _, name := range []string{"kubeqemu", "demo", "e2e"} {
		if other, ok := seen[FirstIndex(name)]; ok {
			t.Errorf("%s and %s both start at %d", name, other, FirstIndex(name))
		}
		seen[FirstIndex(name)] = name
	}
}

func TestNewPlanRefuses(t *testing.T) {
	for _, c := range []struct {
		name, dir    string
		index, nodes int
	}{
		{"../x", "/d", 0, 1}, {"", "/d", 0, 1}, {"a", "d", 0, 1},
		{"a", "/d", -1, 1}, {"a", "/d", indexes, 1}, {"a", "/d", 0, 0}, {"a", "/d", 0, maxNodes + 1},
	} {
		if p, err := NewPlan(c.name, c.dir, c.index, c.nodes, IPv4); err == nil {
			t.Errorf("%+v was accepted: %+v", c, p)
		}
	}
}

func TestClashOfNetworks(t *testing.T) {
	p := testPlan(t, 3, 1)
	if !p.clashes([]netip.Prefix{netip.MustParsePrefix("10.0.0.5/8")}) {
		t.Error("a network around all of it was not seen")
	}
	if p.clashes([]netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("::1/128")}) {
		t.Error("a foreign network was taken for a clash")
	}
}

func TestNodeConfigs(t *testing.T) {
	p := testPlan(t, 2, 2)
	files, err := p.nodeConfigs(p.Nodes[1], true)
	if err != nil {
		t.Fatal(err)
	}
	var kubelet map[string]any
	if err := yaml.UnmarshalStrict(files["kubelet.yaml"], &kubelet); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"address": "10.199.2.12", "cgroupRoot": p.Nodes[1].Cgroup, "failCgroupV1": false,
		"containerRuntimeEndpoint": "unix://" + criSocket, "clusterDNS": []any{"10.201.2.1"},
	} {
		if !reflect.DeepEqual(kubelet[key], want) {
			t.Errorf("kubelet.yaml: %s is %v, want %v", key, kubelet[key], want)
		}
	}
	var cni struct {
		Plugins []struct {
			IPAM struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal(files["cni/10-pods.conflist"], &cni); err != nil {
		t.Fatal(err)
	}
	if got := cni.Plugins[0].IPAM.Ranges[0][0].Subnet; got != "10.200.9.0/24" {
		t.Errorf("pod network is %s", got)
	}
	toml := string(files["containerd.toml"])
	for _, want := range []string{`sandbox = "` + pauseImage + `"`, "restrict_oom_score_adj = true", `address = "` + criSocket + `"`} {
		if !strings.Contains(toml, want) {
			t.Errorf("containerd.toml lacks %s", want)
		}
	}
}

func TestCertificates(t *testing.T) {
	p := testPlan(t, 1, 1)
	for _, dir := range []string{p.pki(""), p.nodeDir(p.Nodes[0])} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.writeCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(readCertificate(t, p.pki("ca.crt")))
	for file, name := range map[string]string{
		p.pki("apiserver.crt"):                 p.ServiceAPI().String(),
		p.nodeDir(p.Nodes[0]) + "/kubelet.crt": p.Nodes[0].Address.String(),
		p.pki("apiserver-kubelet-client.crt"):  "",
	} {
		options := x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
		if _, err := readCertificate(t, file).Verify(options); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	if _, err := readCertificate(t, p.pki("front-proxy-client.crt")).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the front proxy's certificate is valid for ordinary users' CA")
	}
	if _, err := p.apiClient(); err != nil {
		t.Error(err)
	}
	var config struct{ Users []struct{ Name string } }
	text, err := os.ReadFile(p.nodeDir(p.Nodes[0]) + "/kubelet.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &config); err != nil || config.Users[0].Name != "system:node:node-1" {
		t.Errorf("kubelet's kubeconfig: %+v, %v", config, err)
	}
}

func readCertificate(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestStateSurvivesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	if s, err := loadState(file); s != nil || err != nil {
		t.Fatalf("missing file: %v, %v", s, err)
	}
	want := &State{Name: "demo", Index: 4, NodeCount: 1, Bin: "/b", Created: time.Unix(1, 0).UTC(), Ready: true,
		Processes: []Process{{Name: "etcd", PID: 7, Start: 99, Log: "/l"}}}
	if err := want.save(file); err != nil {
		t.Fatal(err)
	}
	if got, err := loadState(file); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadState(file); err == nil {
		t.Error("half a file was accepted")
	}
}

func TestParseStatWithBracketsInTheName(t *testing.T) {
	line := "12 (a) Z (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 424242 20"
	got, err := parseStat(line)
	if err != nil || got != (stat{state: 'S', threads: 17, start: 424242}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := parseStat("12 (a) S 1"); err == nil {
		t.Error("a short line was accepted")
	}
}

// startSleep starts a process with the folder's mark that ends by itself only
// after a minute.
func startSleep(t *testing.T, dir string) (*exec.Cmd, Process) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(os.Environ(), markName+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	p, err := observe("sleep", cmd.Process.Pid, "")
	if err != nil {
		t.Fatal(err)
	}
	return cmd, p
}

func TestTerminateSparesWhoGotThePid(t *testing.T) {
	_, p := startSleep(t, t.TempDir())
	earlier := p
	earlier.Start--
	if earlier.Alive() {
		t.Error("another process with the same pid counts as alive")
	}
	if err := terminate(t.Context(), []Process{earlier}, time.Second); err != nil {
		t.Error(err)
	}
	if !p.Alive() {
		t.Fatal("a process that only has the same pid was killed")
	}
	if err := terminate(t.Context(), []Process{p}, 5*time.Second); err != nil || p.Alive() {
		t.Errorf("the process itself was not ended: %v", err)
	}
}

func TestTerminateKillsWhoIgnoresSIGTERM(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	p, err := observe("sh", cmd.Process.Pid, "")
	if err != nil {
		t.Fatal(err)
	}
	err = terminate(t.Context(), []Process{p}, 200*time.Millisecond)
	cmd.Process.Kill()
	var status *exec.ExitError
	if waitErr := cmd.Wait(); err != nil || !errors.As(waitErr, &status) || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("terminate: %v, wait: %v", err, waitErr)
	}
}

func TestMarkedFindsOnlyThisFoldersProcesses(t *testing.T) {
	dir := t.TempDir()
	_, mine := startSleep(t, dir)
	startSleep(t, dir+"2")
	found, err := marked(dir)
	if err != nil || len(found) != 1 || found[0].PID != mine.PID || found[0].Start != mine.Start {
		t.Errorf("got %+v, %v; want %+v", found, err, mine)
	}
}

func TestRemoveFilesSparesOthers(t *testing.T) {
	p := testPlan(t, 0, 1)
	for _, file := range []string{"etcd/member", "node-1/var-lib/x", "logs/etcd.log", "state.json", "thesis.txt"} {
		if err := os.MkdirAll(filepath.Dir(p.file(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.file(file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (list []string) {
		entries, err := os.ReadDir(p.Dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	if err := p.removeFiles(true); err != nil || !reflect.DeepEqual(names(), []string{"logs", "thesis.txt"}) {
		t.Errorf("keeping logs: %v, %v", names(), err)
	}
	if err := p.removeFiles(false); err != nil || !reflect.DeepEqual(names(), []string{"thesis.txt"}) {
		t.Errorf("keeping nothing: %v, %v", names(), err)
	}
	if err := os.Remove(p.file("thesis.txt")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds no folder
		if err := p.removeFiles(false); err != nil || names() != nil {
			t.Errorf("empty folder: %v, %v", names(), err)
		}
	}
}

func TestImageArchive(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(source, []byte("code"), 0o755); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	image := Image{Reference: "example.test/x:1", Entrypoint: []string{"/a/b/x"}, Files: []ImageFile{{source, "/a/b/x"}, {source, "/a/y"}}}
	if err := image.WriteArchive(&archive); err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive.Bytes())
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	m := manifest[0]
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(files[m.Config], &config); err != nil {
		t.Fatal(err)
	}
	layer := files[m.Layers[0]]
	if m.RepoTags[0] != image.Reference || config.RootFS.DiffIDs[0] != "sha256:"+digest(layer) || config.Config.Entrypoint[0] != "/a/b/x" {
		t.Errorf("manifest %+v, config %+v", m, config)
	}
	inLayer := untar(t, layer)
	if string(inLayer["a/b/x"]) != "code" || string(inLayer["a/y"]) != "code" || len(inLayer) != 4 {
		t.Errorf("layer holds %v", inLayer)
	}
	if err := (Image{Files: []ImageFile{{source, "relative"}}}).WriteArchive(io.Discard); err == nil {
		t.Error("a relative path was accepted")
	}
}

func untar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestParseMounts(t *testing.T) {
	got := parseMounts("36 35 98:0 / /mnt/with\\040blank rw master:1 - ext4 /dev/root rw\nrubbish\n37 35 0:3 / /sys/fs/cgroup rw - cgroup2 none rw\n")
	want := []mount{{"/mnt/with blank", "ext4"}, {"/sys/fs/cgroup", "cgroup2"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestPollEndsByTimeOrCause(t *testing.T) {
	never := func() (bool, error) { return false, nil }
	if err := poll(t.Context(), time.Millisecond, never); !errors.Is(err, errTimeout) {
		t.Errorf("time up: %v", err)
	}
	cause := deadProcess{name: "etcd", how: "exit status 1"}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := poll(ctx, time.Minute, never); !errors.Is(err, cause) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDeadProcessShowsItsLastLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(strings.Repeat("old line\n", 5000)+"the reason\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := deadProcess{name: "etcd", log: file, how: "exit status 1"}.Error()
	if !strings.HasSuffix(text, "\nthe reason") || strings.Count(text, "\n") != 15 {
		t.Errorf("got %q", text)
	}
}

func TestAlreadyUpTellsHalfDead(t *testing.T) {
	_, alive := startSleep(t, t.TempDir())
	gone := alive
	gone.Name, gone.Start = "kubelet", alive.Start-1
	err := alreadyUp(t.Context(), t.TempDir(), 1, IPv4, &State{Name: "demo", NodeCount: 1, Ready: true, Processes: []Process{alive}, Services: []Process{gone}}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "kubelet") || !strings.Contains(err.Error(), "cluster down --name demo") {
		t.Errorf("got %v", err)
	}
}

func TestAlreadyUpWithOtherNodes(t *testing.T) {
	err := alreadyUp(t.Context(), t.TempDir(), 2, IPv4, &State{Name: "demo", NodeCount: 1, Ready: true}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "up with 1 nodes, not 2") || !strings.Contains(err.Error(), "cluster down --name demo") {
		t.Errorf("got %v", err)
	}
}

func TestStopKillsAPartOfTheControlPlane(t *testing.T) {
	dir := t.TempDir()
	if err := Stop(t.Context(), dir, "kube-apiserver"); err == nil {
		t.Error("stopped a program of a cluster that is not up")
	}
	_, process := startSleep(t, dir)
	process.Name = "kube-apiserver"
	state := State{Name: "demo", NodeCount: 1, Ready: true, Processes: []Process{process}}
	if err := state.save(filepath.Join(dir, "state.json")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etcd", "node-1", "sleep"} {
		if err := Stop(t.Context(), dir, name); err == nil {
			t.Errorf("stopped %s", name)
		}
	}
	if err := Start(t.Context(), dir, "kube-apiserver", io.Discard); err == nil || !process.Alive() {
		t.Errorf("started a program that runs: %v", err)
	}
	if err := Stop(t.Context(), dir, "kube-apiserver"); err != nil || process.Alive() {
		t.Errorf("not stopped: %v", err)
	}
	if err := Stop(t.Context(), dir, "kube-apiserver"); err == nil {
		t.Error("stopped a program that does not run")
	}
}

func TestStopKillsAServiceOfTheOnlyNode(t *testing.T) {
	for _, name := range []string{"kubelet", "containerd"} {
		dir := t.TempDir()
		_, process := startSleep(t, dir)
		process.Name = "node-1-" + name
		for _, nodes := range []int{2, 1} {
			state := State{Name: "demo", NodeCount: nodes, Ready: true, Services: []Process{process}}
			if err := state.save(filepath.Join(dir, "state.json")); err != nil {
				t.Fatal(err)
			}
			if err := Start(t.Context(), dir, name, io.Discard); err == nil {
				t.Errorf("started a %s that runs", name)
			}
			if err := Stop(t.Context(), dir, name); (err == nil) != (nodes == 1) || process.Alive() != (nodes == 2) {
				t.Errorf("%s with %d nodes: alive %v (%v)", name, nodes, process.Alive(), err)
			}
		}
	}
}
