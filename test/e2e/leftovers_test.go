package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// snapshot is what there is on a node, in words, with how often. Random parts
// of names are left out, so that a system pod that was replaced counts for
// nothing, and one thing too many for something.
type snapshot map[string]int

// lookAround prints, one per line, what a VM could leave behind on a node. Probes
// of a guest that stays come and go.
const lookAround = `
grep -sLzxE "guest-(exec|ping)" /proc/[0-9]*/cmdline | sed 's/cmdline$/comm/' | xargs grep -sh "" | sed 's/^/process /'
awk '{print "mount " $5}' /proc/self/mountinfo
ip -o link | sed -E 's/^[0-9]+: ([^:@]*).*/link \1/'
ls /run/netns | sed 's/^/netns /'
nft list tables | sed 's/^/nft /'
ls /run/kubeqemu/slots 2>/dev/null | sed 's/^/slot /'
ls /var/lib/kubelet/pods | sed 's/^/pod folder /'
group=$(sed -nE 's,^[^/]*/(kq[0-9a-f]*).*,\1,p' /proc/1/cgroup | head -n 1)
find /sys/fs/cgroup -type d -path "*/${group:?}/*" 2>/dev/null | sed 's/^/cgroup /'
true
`

// What in names is made anew each time.
var random = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}[-_]([0-9a-f]{4}[-_]){3}[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "ID"},
	{regexp.MustCompile(`[0-9a-f]{32}`), "RANDOM"},
	{regexp.MustCompile(`\bveth[0-9a-f]+`), "vethX"},
	{regexp.MustCompile(`kube-api-access-\w+`), "kube-api-access-X"},
}

// What looking around itself needs, and what comes and goes by itself.
var transient = regexp.MustCompile(`^process (sh|grep|sed|xargs|awk|mawk|ls|ip|nft|find|head|runc.*|exe|ptp|host-local|portmap|multus|bridge|macvlan|static)$`)

func nodeSnapshot() (snapshot, error) { return nodeSnapshotOf(firstName) }

func nodeSnapshotOf(node string) (snapshot, error) {
	out, err := onNodeNamed(node, lookAround)
	if err != nil {
		return nil, err
	}
	s := snapshot{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if transient.MatchString(line) {
			continue
		}
		for _, r := range random {
			line = r.pattern.ReplaceAllString(line, r.word)
		}
		s[line]++
	}
	return s, nil
}

// count is the number of things whose words begin so.
func (s snapshot) count(prefix string) int {
	n := 0
	for what, times := range s {
		if strings.HasPrefix(what, prefix) {
			n += times
		}
	}
	return n
}

// difference says what there is more and less of than in before.
func (s snapshot) difference(before snapshot) []string {
	var lines []string
	for what, n := range s {
		if more := n - before[what]; more > 0 {
			lines = append(lines, fmt.Sprintf("+%d %s", more, what))
		}
	}
	for what, n := range before {
		if fewer := n - s[what]; fewer > 0 {
			lines = append(lines, fmt.Sprintf("-%d %s", fewer, what))
		}
	}
	slices.Sort(lines)
	return lines
}

// settledNode waits until the first node runs what the API server lists, and nothing
// of a pod or a slot that is gone, and returns what there is then.
func settledNode() (s snapshot, err error) {
	err = poll(func() error {
		pods, err := getObject[corev1.PodList]("pods", "-A")
		if err != nil {
			return err
		}
		if s, err = nodeSnapshot(); err != nil {
			return err
		}
		launchers := 0
		pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == secondName })
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil {
				return fmt.Errorf("wait for the node to settle: pod %s is being deleted", pod.Name)
			}
			if pod.Labels["kubevirt.io"] == "virt-launcher" {
				launchers++
			}
		}
		// virt-handler asks a QEMU which CPUs the node can give, for a second or more after its start.
		if n := s.count("process qemu-system"); launchers == 0 && n > 0 {
			return fmt.Errorf("wait for the node to settle: no launcher, but %d QEMUs", n)
		}
		shims, folders, slots := s.count("process containerd-shim"), s.count("pod folder"), s.count("slot")/2 // each with its record
		if n := len(pods.Items); shims != n || folders != n || slots != launchers {
			return fmt.Errorf("wait for the node to settle: %d pods, %d of them launchers, but %d shims, %d pod folders, %d slots", n, launchers, shims, folders, slots)
		}
		return nil
	})
	return s, err
}

// awaitNode waits until the node is as before. Slots are collected up to 20 s
// after their pods.
func awaitNode(before snapshot) error {
	if err := bringHome(); err != nil {
		return err
	}
	return poll(func() error {
		now, err := nodeSnapshot()
		if err != nil {
			return err
		}
		if left := now.difference(before); len(left) > 0 {
			return fmt.Errorf("the node is not as it was:\n  %s", strings.Join(left, "\n  "))
		}
		return nil
	})
}

// bringHome brings virt-api and virt-controller back to the first node, where they began: a drain, or an API server that was away for long,
// brings them to the second.
func bringHome() (err error) {
	if os.Getenv(nodesVariable) != "2" {
		return nil
	}
	pods, err := getObject[corev1.PodList]("-n", "kubevirt", "pods", "-l", "kubevirt.io in (virt-api, virt-controller)")
	if err != nil {
		return err
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != secondName })
	if len(pods.Items) == 0 {
		return nil
	}
	if _, err := output("", "kubectl", "taint", "node", secondName, notYet+"=:NoSchedule"); err != nil {
		return err
	}
	defer func() {
		_, untainted := output("", "kubectl", "taint", "node", secondName, notYet+"-")
		err = errors.Join(err, untainted)
	}()
	for _, pod := range pods.Items {
		if _, err := output("", "kubectl", "-n", "kubevirt", "delete", "pod", pod.Name); err != nil {
			return err
		}
		if _, err := output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/"+pod.Labels["kubevirt.io"]); err != nil {
			return err
		}
	}
	return nil
}

// addsNothing is leavesNothing for tests that start the node anew: what others
// left on it is gone then.
func addsNothing(t *testing.T) (check func()) {
	t.Helper()
	if _, err := settledNode(); err != nil {
		t.Fatal(err)
	}
	return addsNothingOn(t, firstName)
}

// addsNothingOn is addsNothing for a node that has settled.
func addsNothingOn(t *testing.T, node string) (check func()) {
	t.Helper()
	before, err := nodeSnapshotOf(node)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		err := poll(func() error {
			now, err := nodeSnapshotOf(node)
			if err != nil {
				return err
			}
			more := slices.DeleteFunc(now.difference(before), func(line string) bool { return strings.HasPrefix(line, "-") })
			if len(more) > 0 {
				return fmt.Errorf("%s has more than it had:\n  %s", node, strings.Join(more, "\n  "))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// leavesNothing fails the test if the node is not as it was when everything
// that the test does after this call has been done and deleted. Tests that use
// it do not run beside others.
func leavesNothing(t *testing.T) (check func()) {
	t.Helper()
	if err := bringHome(); err != nil {
		t.Fatal(err)
	}
	before, err := settledNode()
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := awaitNode(before); err != nil {
			t.Error(err)
		}
	}
}
