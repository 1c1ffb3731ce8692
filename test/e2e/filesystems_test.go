package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// sharing shares a volume's files with the guest.
func sharing(volume v1.Volume) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Filesystems = append(s.Domain.Devices.Filesystems, v1.Filesystem{Name: volume.Name, Virtiofs: &v1.FilesystemVirtiofs{}})
		s.Volumes = append(s.Volumes, volume)
	}
}

// onFirst keeps the guest on the node that has the claims' folders.
func onFirst(s *v1.VirtualMachineInstanceSpec) {
	s.NodeSelector = map[string]string{corev1.LabelHostname: firstName}
}

func onlyClaim(name string, readOnly bool) v1.Volume {
	return v1.Volume{Name: name, PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly}}
}

// attaching mounts the file systems of these names at /tmp/NAME.
func attaching(names ...string) string {
	return "modprobe -qa virtiofs; for n in " + strings.Join(names, " ") + `; do mkdir -p /tmp/$n && mount -t virtiofs $n /tmp/$n || echo "no file system $n"; done`
}

// says checks what commands print in the guest.
func (v vmi) prints(shell *transcript, wants [][2]string) {
	v.t.Helper()
	for _, w := range wants {
		if got := v.in(shell, w[0]); got != w[1] {
			v.t.Errorf("%s: %q, want %q", w[0], got, w[1])
		}
	}
}

// TestGuestSharesFilesOfAClaim: a guest shares the files of a claim, read and written under load, and of one that is only read. Files have owners and modes as on
// the claim, and what the guest makes is the pod's user's. Links, devices and other users' files in the claim lead nowhere. The guest's stop ends
// the pod.
func TestGuestSharesFilesOfAClaim(t *testing.T) {
	t.Parallel()
	c := claims{t, namespace(t)}
	path := c.folder("data", "1Gi", `chmod 2775 . && chgrp 107 . && head -c 67108864 /dev/urandom >big && printf secret >/root/e2e-outside && `+
		`printf group >group && chgrp 107 group && chmod 664 group && `+
		`ln -s /root/e2e-outside absolute && ln -s ../../../../../../../../root/e2e-outside relative && ln -s /proc/1/root root && `+
		`mkfifo fifo && chmod 666 fifo && mknod disk b 7 0 && mknod null c 1 3 && chmod 666 disk null && mkdir deep && printf x >deep/file && ln big deep/hard`)
	t.Cleanup(func() { onNode("rm -f /root/e2e-outside") })
	c.folder("library", "64Mi", "printf book >book; chmod 644 book")
	m := createVM(t, c.namespace, "shares", v1.RunStrategyAlways, offline, onFirst, sharing(onlyClaim("data", false)), sharing(onlyClaim("library", true)))
	m.runs("")
	shell := m.shell()
	if out := m.in(shell, attaching("data", "library")); out != "" {
		t.Fatal(out)
	}
	// The kubelet gave the claim's files to the pod's group when the pod began.
	if out, err := onNode(`cd "$1" && printf private >private && chmod 600 private`, path); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sum, err := onNode(`md5sum <"$1"/big`, path)
	if err != nil {
		t.Fatal(err)
	}
	m.prints(shell, [][2]string{
		{"cat /tmp/library/book", "book"},
		{"touch /tmp/library/x 2>&1 | grep -c Read-only", "1"},
		{"md5sum </tmp/data/big", strings.TrimSpace(sum)},
		// The guest's root is the pod's user.
		{"cat /tmp/data/private 2>&1 | grep -c denied", "1"},
		{"stat -c %u:%g:%a /tmp/data/private", "0:107:600"},
		{"echo more >>/tmp/data/group && cat /tmp/data/group", "groupmore"},
		{"echo x >/tmp/data/made && stat -c %u:%g /tmp/data/made", "107:107"},
		{"chown 0 /tmp/data/made 2>&1 | grep -c permitted", "1"},
		// Links lead to the guest's own files.
		{"cat /tmp/data/absolute /tmp/data/relative 2>&1 | grep -c 'No such'", "2"},
		{"ls /tmp/data/root/root 2>&1 | grep -c e2e-outside; true", "0"},
		{"mknod /tmp/data/mine c 1 3 2>&1 | grep -c permitted", "1"},
		// A FIFO is one of the guest's own, and a device one of the guest's.
		{"(echo through >/tmp/data/fifo &) ; cat /tmp/data/fifo", "through"},
		{"mkfifo /tmp/data/myfifo && stat -c %F /tmp/data/myfifo", "fifo"},
		{"cat /tmp/data/null | wc -c", "0"},
		{"ln -s /etc/passwd /tmp/data/link && readlink /tmp/data/link", "/etc/passwd"},
	})
	if out, err := onNode(`stat -c %u:%g "$1"/made`, path); err != nil || strings.TrimSpace(out) != "107:107" {
		t.Errorf("the guest's file is of %q (%v)", out, err)
	}
	m.hostileTree(shell, path)
	// Four write and four read at a time, more than the guest has memory for, while the node changes other files.
	m.node(`mkdir -m 755 "$1/churn"`, path)
	stop := m.goesOn(path+"/churn", `head -c 100000 /dev/zero >new && mv new file$((i % 50)) && rm -f file$(((i+25) % 50))`)
	load := `cd /tmp/data; for i in 1 2 3 4; do (dd if=big of=copy$i bs=1M 2>/dev/null; sync) & (md5sum <big >sum$i) & done; wait; cat sum?; md5sum copy? big`
	out, code := shell.run(load)
	if want := strings.Fields(sum)[0]; code != 0 || strings.Count(out, want) != 9 {
		t.Errorf("under load: %d: %s, want %s nine times", code, out, want)
	}
	if changes := stop(); changes < 50 {
		t.Errorf("the node has changed other files %d times meanwhile", changes)
	}
	if out, err := onNode(`cd "$1" && md5sum copy? | sort -u -k1,1 | wc -l && md5sum <copy1`, path); err != nil || strings.Join(strings.Fields(out), " ") != "1 "+strings.Join(strings.Fields(sum), " ") {
		t.Errorf("on the node: %q (%v), want %s", out, err, sum)
	}
	// What the guest does not look up anew it sees too.
	if _, err := onNode(`printf fresh >"$1"/deep/fresh`, path); err != nil {
		t.Fatal(err)
	}
	m.prints(shell, [][2]string{{"for i in $(seq 30); do cat /tmp/data/deep/fresh 2>/dev/null && break; usleep 200000; done", "fresh"}})
	pod := m.pod()
	for _, s := range pod.Status.InitContainerStatuses {
		if s.RestartCount != 0 || s.State.Running == nil {
			t.Errorf("container %s: %+v", s.Name, s)
		}
	}
	began := time.Now()
	m.in(shell, "sync")
	m.powerOff()
	if err := poll(func() error {
		if now, err := getObject[corev1.Pod]("-n", c.namespace, "pod", pod.Name); err == nil && now.Status.Phase == corev1.PodRunning {
			return fmt.Errorf("the pod is %s still", now.Status.Phase)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("the pod ended %v after the guest was told to power off", time.Since(began).Round(time.Second/10))
}

// hostileTree has the guest go through a tree with sockets, odd names, and folders that become links or leave the volume while the guest is in them.
func (v vmi) hostileTree(shell *transcript, path string) {
	v.t.Helper()
	v.node(`cd "$1" && perl -e 'use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0) && bind(S, sockaddr_un("socket")) or die "$!"' && chmod 666 socket && `+
		`printf odd >"$(printf 'two\nlines')" && printf colour >"$(printf '\033[31mred')" && mkdir swap leaves && chmod 777 swap leaves && printf in >swap/in && printf in >leaves/in`, path)
	v.prints(shell, [][2]string{
		{"stat -c %F /tmp/data/socket", "socket"},
		{"cat /tmp/data/socket 2>&1 | grep -c 'No such device'", "1"},
		{`cat "$(printf '/tmp/data/two\nlines')"`, "odd"},
		{`cat "$(printf '/tmp/data/\033[31mred')"`, "colour"},
		{`printf new >"$(printf '/tmp/data/mine\nalso')"; ls /tmp/data | grep -c also`, "1"},
		{"cd /tmp/data/swap && cat in; echo", "in"},
		{"(cd /tmp/data/leaves && exec tail -f /dev/null) & sleep 1; cat /proc/$!/cwd/in; echo $! >/tmp/stays", "in"},
	})
	outside := v.node(`d=$(mktemp -d "$1/../outside.XXXXXX") && chmod 755 "$d" && printf secret >"$d/e2e-outside" && chmod 644 "$d/e2e-outside" && cd "$1" && `+
		`mv swap swapped && ln -s "$d" swap && mv leaves "$d/leaves" && ln -s "$d/leaves" leaves && echo "$d"`, path)
	v.t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, outside) })
	v.prints(shell, [][2]string{
		{"cat e2e-outside ../outside*/e2e-outside /tmp/data/swap/e2e-outside /tmp/data/leaves/e2e-outside /proc/$(cat /tmp/stays)/cwd/../e2e-outside 2>/dev/null; echo nothing", "nothing"},
		{"cat /tmp/data/swapped/in; echo", "in"},
		{"cd /; kill $(cat /tmp/stays); echo out", "out"},
	})
}

// node runs a script on the node, and returns what it prints.
func (v vmi) node(script string, args ...string) string {
	v.t.Helper()
	out, err := onNode(script, args...)
	if err != nil {
		v.t.Fatalf("on the node: %v: %s", err, out)
	}
	return strings.TrimSpace(out)
}

// goesOn has the node repeat a step in a folder, until the function is called, but not for longer than 15 minutes. The step knows the number of its round as $i.
// The function returns how many rounds there were.
func (v vmi) goesOn(folder, step string) (stop func() int) {
	v.t.Helper()
	v.node(`cd "$1" && timeout 900 sh -c "i=0; while [ ! -e stop ]; do i=\$((i+1)); $2 || exit; done; echo \$i >rounds.new; mv rounds.new rounds" >/dev/null 2>&1 &`, folder, step)
	return func() (rounds int) {
		v.t.Helper()
		said := v.node(`cd "$1" && touch stop && for i in $(seq 100); do [ -e rounds ] && break; sleep 0.1; done; cat rounds`, folder)
		if _, err := fmt.Sscan(said, &rounds); err != nil {
			v.t.Errorf("the node has made %q rounds", said)
		}
		return rounds
	}
}

// TestFilesystemHangs: the program behind a file system hangs. When the guest powers off, QEMU waits for the program, and the VMI says that QEMU does
// not answer. A stop ends the VM when its grace period is over, and nothing of it stays.
func TestFilesystemHangs(t *testing.T) {
	t.Parallel()
	c := claims{t, namespace(t)}
	c.folder("data", "64Mi", "chmod 2775 . && chgrp 107 . && echo there >file")
	m := createVM(t, c.namespace, "hangs", v1.RunStrategyManual, offline, onFirst, grace(10), sharing(onlyClaim("data", false)))
	m.asks(startIt)
	first := m.runs("")
	m.prints(m.shell(), [][2]string{{attaching("data"), ""}, {"cat /tmp/data/file", "there"}})
	program, pod := m.virtiofsd(), m.pod()
	m.node(`kill -STOP "$1"`, program)
	// A guest that unmounts its file systems would wait for virtiofsd, too.
	m.shell().send("echo o >/proc/sysrq-trigger\n")
	m.says(v1.ConditionReady, "QEMU does not answer")
	began := time.Now()
	m.asks(stopIt(first))
	m.is(v1.VirtualMachineStatusStopped)
	if err := poll(func() error {
		if now, err := getObject[corev1.Pod]("-n", c.namespace, "pod", pod.Name); err == nil && now.Status.Phase == corev1.PodRunning {
			return fmt.Errorf("the pod is %s still", now.Status.Phase)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	t.Logf("the VM ended %v after it was told to stop", took.Round(time.Second/10))
	if took > 3*time.Minute {
		t.Errorf("it took %v", took)
	}
	if out, err := onNode(`[ ! -e /proc/"$1" ] || cat /proc/"$1"/comm`, program); err != nil || strings.TrimSpace(out) == "virtiofsd" {
		t.Errorf("virtiofsd runs still: %q (%v)", out, err)
	}
}

// TestFilesystemFollowsConfigMapChanges: a guest has the files of a ConfigMap, a Secret, the downward API and a service account, and sees a change of the ConfigMap
// and of its own labels without a restart.
func TestFilesystemFollowsConfigMapChanges(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	hold(t, ns, object(t, "ConfigMap", "settings", map[string]string{"greeting": "hello"}))
	hold(t, ns, object(t, "Secret", "keys", map[string]string{"token": "secret"}))
	kubectl(t, "-n", ns, "create", "serviceaccount", "robot")
	m := createVM(t, ns, "files", v1.RunStrategyAlways, offline, sharing(settings()), sharing(keys()), sharing(facts()),
		sharing(v1.Volume{Name: "robot", ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "robot"}}))
	m.runs("")
	shell := m.shell()
	if out := m.in(shell, attaching("settings", "keys", "facts", "robot")); out != "" {
		t.Fatal(out)
	}
	m.prints(shell, [][2]string{
		{"cat /tmp/settings/greeting", "hello"},
		{"cat /tmp/keys/token", "secret"},
		{"grep -c kubevirt.io= /tmp/facts/labels", "1"},
		{"cat /tmp/robot/namespace", ns},
		// Linux follows no link of another user's in a folder that all may write to, and the link token is the pod's user's.
		{"cut -d. -f1 /tmp/robot/..data/token | base64 -d 2>/dev/null | grep -c alg", "1"},
		{"touch /tmp/settings/x 2>&1 | grep -c Read-only", "1"},
	})
	if c := m.condition(v1.ConditionLiveMigratable); c.Status != "True" {
		t.Errorf("LiveMigratable is %+v", c)
	}
	hold(t, ns, object(t, "ConfigMap", "settings", map[string]string{"greeting": "good evening", "more": "yes"}))
	kubectl(t, "-n", ns, "label", "vmi", m.name, "e2e.example.com/mood=glad")
	// The kubelet looks at the ConfigMaps of a pod about once a minute.
	if out, code := shell.run("until grep -q evening /tmp/settings/greeting; do sleep 1; done; cat /tmp/settings/more"); code != 0 || !strings.Contains(out, "yes") {
		t.Errorf("the changed ConfigMap: %d: %s", code, out)
	}
}

// TestFilesystemDies: the program behind a file system is killed. The VMI says so, what the guest does there hangs, the rest of the guest goes on,
// the stop ends, and after the next start the file system is there.
func TestFilesystemDies(t *testing.T) {
	t.Parallel()
	c := claims{t, namespace(t)}
	c.folder("data", "64Mi", "chmod 2775 . && chgrp 107 . && echo there >file")
	m := createVM(t, c.namespace, "orphan", v1.RunStrategyAlways, offline, onFirst, grace(5), sharing(onlyClaim("data", false)))
	first := m.runs("")
	shell := m.shell()
	m.prints(shell, [][2]string{{attaching("data"), ""}, {"cat /tmp/data/file", "there"}})
	if _, err := onNode(`kill -KILL "$1"`, m.virtiofsd()); err != nil {
		t.Fatal(err)
	}
	m.awaitCondition(v1.ConditionFilesystemFailed, v1.ReasonVirtioFSDEnded, "data (the log of its container virtiofs-data says more)")
	m.awaitEvents(string(v1.ConditionFilesystemFailed))
	m.awaitCondition(v1.ConditionLiveMigratable, v1.ReasonVirtioFSNotMigratable)
	m.prints(shell, [][2]string{{"cat /tmp/data/other >/dev/null 2>&1 & usleep 500000; echo on", "on"}})
	began := time.Now()
	m.asks(stopIt(first), startIt)
	m.runs(first)
	t.Logf("stopped and started in %v", time.Since(began).Round(time.Second))
	m.prints(m.shell(), [][2]string{{attaching("data"), ""}, {"cat /tmp/data/file", "there"}})
	if now := m.get().Status.Condition(v1.ConditionFilesystemFailed); now != nil {
		t.Errorf("the next VMI says %+v", now)
	}
}

// virtiofsd is the process on the node that serves the VMI's only file system.
func (v vmi) virtiofsd() string {
	v.t.Helper()
	uid := strings.ReplaceAll(string(v.pod().UID), "-", "[-_]")
	out, err := onNode(`for p in /proc/[0-9]*; do grep -qs "` + uid + `" $p/cgroup && [ "$(cat $p/comm)" = virtiofsd ] && echo ${p#/proc/}; done; true`)
	if err != nil || len(strings.Fields(out)) != 1 {
		v.t.Fatalf("find virtiofsd: %q (%v)", out, err)
	}
	return strings.TrimSpace(out)
}

// TestFilesystemCrowd: a claim has more files than virtiofsd may keep open. The guest is told so, virtiofsd and the guest go on, and the guest's stop
// ends as ever.
func TestFilesystemCrowd(t *testing.T) {
	t.Parallel()
	files := 100_000
	if os.Getenv("KUBEQEMU_E2E_LONG") == "1" {
		files = 1_000_000
	}
	c := claims{t, namespace(t)}
	path := c.folder("data", "1Gi", "chmod 2775 . && chgrp 107 . && echo there >file")
	m := createVM(t, c.namespace, "crowded", v1.RunStrategyAlways, offline, onFirst, grace(5), sharing(onlyClaim("data", false)))
	first := m.runs("")
	if out, err := onNode(`mkdir "$1"/crowd && cd "$1"/crowd && seq -f f%.0f `+fmt.Sprint(files)+` | xargs touch`, path); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shell := m.shell()
	m.prints(shell, [][2]string{{attaching("data"), ""}})
	// BusyBox's find asks for each file's kind while it reads the folder. Where the guest may know no more files, find ends its list without an
	// error. The stats that follow show the error.
	out, code := shell.runFor(20*time.Minute, fmt.Sprintf("find /tmp/data/crowd -type f 2>/dev/null | wc -l; "+
		"for i in $(seq 1 %d %d); do stat /tmp/data/crowd/f$i; done 2>&1 | grep -c 'Too many open files'", files/200, files))
	var seen, refused int
	if _, err := fmt.Sscan(out, &seen, &refused); err != nil || seen < 1000 || seen > files || seen < files && refused == 0 {
		t.Errorf("the guest sees %d files of %d, and %d of 200 are too many (%v): %d: %q", seen, files, refused, err, code, out)
	}
	t.Logf("the guest sees %d files of %d, and %d of 200 are too many", seen, files, refused)
	m.prints(shell, [][2]string{
		{"echo 3 >/proc/sys/vm/drop_caches; cat /tmp/data/file", "there"},
		{"stat -c %F /tmp/data/crowd/f77", "regular empty file"},
	})
	for _, s := range m.pod().Status.InitContainerStatuses {
		if s.RestartCount != 0 {
			t.Errorf("container %s: %+v", s.Name, s)
		}
	}
	// The kernel's memory for the files is the container's too.
	used := m.node(`p=$1; g=$(sed -n 's/^[0-9]*:memory://p; s/^0:://p' /proc/$p/cgroup | head -n 1); grep VmHWM /proc/$p/status; `+
		`cat /sys/fs/cgroup/memory"$g"/memory.max_usage_in_bytes /sys/fs/cgroup/memory"$g"/memory.limit_in_bytes /sys/fs/cgroup"$g"/memory.peak /sys/fs/cgroup"$g"/memory.max 2>/dev/null; true`, m.virtiofsd())
	t.Logf("virtiofsd with %d files: %s", files, strings.Join(strings.Fields(used), " "))
	var peak, most int64
	if lines := strings.Split(used, "\n"); len(lines) != 3 {
		t.Errorf("the memory of virtiofsd's container: %q", used)
	} else if _, err := fmt.Sscan(lines[1]+" "+lines[2], &peak, &most); err != nil || peak >= most || most > (128+256)<<20 {
		t.Errorf("virtiofsd's container has used %d of %d bytes (%v)", peak, most, err)
	}
	began := time.Now()
	m.asks(stopIt(first))
	m.is(v1.VirtualMachineStatusStopped)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the stop took %v", took)
	}
}

// TestMigrationFilesystems: a guest moves while it writes to a claim of both nodes, with a file that stays open, and has a ConfigMap's files.
func TestMigrationFilesystems(t *testing.T) {
	newSecondNode(t)
	c := claims{t, namespace(t)}
	folder := fmt.Sprintf("/tmp/e2e-shared-%d", time.Now().UnixNano()) // the machine's, and so every node's
	if out, err := onNode(`mkdir -m 2777 "$1" && chgrp 107 "$1"`, folder); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, folder) })
	c.sharedVolume("data", "Filesystem", "64Mi", folder, corev1.ReadWriteMany)
	c.sharedClaim("data", "Filesystem", "64Mi", corev1.ReadWriteMany)
	hold(t, c.namespace, object(t, "ConfigMap", "settings", map[string]string{"greeting": "hello"}))
	m := createVM(t, c.namespace, "shares", v1.RunStrategyAlways, offline, sharing(onlyClaim("data", false)), sharing(settings()))
	m.runs("")
	shell := m.shell()
	m.prints(shell, [][2]string{
		{attaching("data", "settings"), ""},
		{"cat /tmp/settings/greeting", "hello"},
		{"(exec 9>/tmp/data/open; i=0; while :; do i=$((i+1)); echo $i >&9; echo $i >/tmp/data/now; usleep 20000; done) >/dev/null 2>&1 & echo begun", "begun"},
	})
	m.canMove()
	// The guest reads a file that others exchange for another all the time. It must never get the other.
	m.node(`cd "$1" && head -c 4000000 /dev/zero | tr '\0' m >victim && tr m o <victim >decoy && chmod 644 victim decoy`, folder)
	// The guest's cache has the beginning of the file, and not the end. For a moment of each exchange there is no file.
	var stop func() int
	const open, end = "until command exec 8</tmp/data/victim; do usleep 10000; done 2>/dev/null; dd bs=1 count=1 <&8 2>/dev/null; echo", "cat <&8 2>/dev/null | tail -c 1; echo"
	has := m.in(shell, open)
	if has != "m" {
		t.Fatalf("the file begins with %q", has)
	}
	m.node(`cd "$1" && mv victim was && mv decoy victim && mv was decoy`, folder)
	for i := range 2 {
		source := m.get().Status.NodeName
		m.migrate(fmt.Sprintf("move-%d", i), nil).ends(v1.MigrationSucceeded)
		if target := m.get().Status.NodeName; target == source {
			t.Fatalf("the guest is on %s still", target)
		}
		shell = m.shell()
		got := m.in(shell, end)
		t.Logf("the file that began with %q ends with %q after move %d", has, got, i)
		if got != has && (i == 0 || got != "") {
			t.Errorf("the file that began with %q ends with %q after move %d", has, got, i)
		}
		if i == 0 {
			stop = m.goesOn(folder, "mv victim was && mv decoy victim && mv was decoy")
			has = m.in(shell, open)
		}
		before := m.in(shell, "tail -n 1 /tmp/data/open")
		m.prints(shell, [][2]string{{"for i in $(seq 60); do [ $(tail -n 1 /tmp/data/open) -gt " + before + " ] && echo goes on && break; usleep 500000; done", "goes on"}})
	}
	t.Logf("the files were exchanged %d times", stop())
	m.prints(shell, [][2]string{{"cat /tmp/settings/greeting", "hello"}})
	// Each number is there once, in order: no write was lost, and none came twice.
	if out, err := onNode(`n=$(wc -l <"$1/open"); head -n $n "$1/open" | head -n 1000000 | awk '$1 != NR {print "line", NR, "is", $1; exit}'`, folder); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("the file that was open: %q (%v)", out, err)
	}
}
