package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// What a guest's flood may cost others.
const (
	floodLatency  = 1.2     // times the neighbour's round trip beside a guest that is as busy and sends nothing
	floodHandler  = 2.0     // percent of a CPU that virt-handler takes more
	floodKeeps    = 4 << 10 // KiB that virt-handler has more afterwards
	floodEntries  = 16      // MACs that the pod remembers
	smallPackets  = 1_000_000
	floodRounds   = 7
	measuredFor   = 4 // seconds in a round
	maxFloodRuns  = 60
	floodOverhead = 4 // seconds until a measurement begins
	// floodNeighbours has one neighbour more a second of a flood: a guest with two cards may ask for its gateway in the name of the other.
	floodNeighbours = floodEntries + floodRounds*(measuredFor+floodOverhead+1)
)

// busy is what a guest does in a round, and what its neighbour and virt-handler have of it.
type busy struct {
	sent    int
	median  float64 // of the neighbour's round trips, in microseconds
	handler float64 // virt-handler's CPU time, in percent of a CPU
	qemu    float64 // the guest's QEMU's
}

// cpuTicks is the CPU time that a process has taken, in hundredths of a second.
func cpuTicks(t *testing.T, p nodeProcess) float64 {
	t.Helper()
	out, err := onNode(`sed 's/.*) //' "/proc/$1/stat" | cut -d ' ' -f 12,13`, strconv.Itoa(p.PID))
	var user, system float64
	if _, scanErr := fmt.Sscan(out, &user, &system); err != nil || scanErr != nil {
		t.Fatalf("read the CPU time of process %d: %q, %v, %v", p.PID, out, err, scanErr)
	}
	return user + system
}

// flooding is a guest that floods, and its neighbour.
type flooding struct {
	t        *testing.T
	ns       string
	guest    vmi
	shell    *transcript
	qemu     nodeProcess
	handler  nodeProcess
	server   string // the neighbour's address
	receiver string
}

// round has the guest do something for some seconds, and measures meanwhile.
func (f *flooding) round(command string) (b busy) {
	f.t.Helper()
	f.shell.send("/garbage " + command + "\n")
	f.shell.expect(`garbage: begun`)
	began, handler, qemu := time.Now(), cpuTicks(f.t, f.handler), cpuTicks(f.t, f.qemu)
	out, err := output("", "kubectl", "-n", f.ns, "exec", "garbage", "--", "garbage", "latency", strconv.Itoa(measuredFor), f.server, "7")
	if err != nil {
		f.t.Fatalf("measure the neighbour's latency: %v", err)
	}
	took := time.Since(began).Seconds()
	b.handler, b.qemu = (cpuTicks(f.t, f.handler)-handler)/took, (cpuTicks(f.t, f.qemu)-qemu)/took
	var trips struct{ Trips, Quarter, Median, Most int64 }
	if err := json.Unmarshal([]byte(out), &trips); err != nil {
		f.t.Fatalf("read %q: %v", out, err)
	}
	b.median = float64(trips.Median)
	// A new connection has to find room in the node's table of connections.
	if err := nodeEchoes(f.server, 7); err != nil {
		f.t.Errorf("%s: a new connection to the neighbour: %v", command, err)
	}
	sent := f.shell.expect(`garbage: sent (\d+) frames`)
	b.sent, _ = strconv.Atoi(sent[1])
	return b
}

func medianOf(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// inPod runs a script in the network namespace of the flooding guest's pod.
func (f *flooding) inPod(script string) int {
	f.t.Helper()
	out, err := onNode(`nsenter -t "$1" -n sh -c "$2"`, strconv.Itoa(f.qemu.PID), script)
	n, numberErr := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || numberErr != nil {
		f.t.Fatalf("%s: %q, %v", script, out, err)
	}
	return n
}

// TestGuestFloods: what a guest floods costs virt-handler nothing, fills no table of the node, and slows its neighbour no more than a
// guest that is as busy without sending.
func TestGuestFloods(t *testing.T) {
	for name, binding := range map[string]func(*v1.VirtualMachineInstanceSpec){"masquerade": func(*v1.VirtualMachineInstanceSpec) {}, "bridge": bridged} {
		t.Run(name, func(t *testing.T) { floodsHarmNobody(t, binding) })
	}
}

func floodsHarmNobody(t *testing.T, binding func(*v1.VirtualMachineInstanceSpec)) {
	ns := namespace(t)
	program := makeGarbage(t, ns)
	// QEMU takes a second CPU to send what the guest's CPU makes. Two CPUs that only count take as much.
	twoCPUs := func(s *v1.VirtualMachineInstanceSpec) { s.Domain.CPU = &v1.CPU{Cores: 2} }
	guest, neighbour := create(t, ns, tiny("floods", binding, twoCPUs)), create(t, ns, tiny("neighbour"))
	guest.await(v1.Running)
	server := neighbour.await(v1.Running).Status.Interfaces[0].IP
	neighbour.log().shows(`tiny: eth0 `)
	f := &flooding{t: t, ns: ns, guest: guest, shell: guest.takes(program), qemu: guest.qemu(), server: server, receiver: program.pod}
	var rss int
	f.handler, rss = handlerUse(t)
	w := watchOver(t, guest, neighbour)
	const neighbours = `ip neigh show nud all | grep -vc NOARP; true`
	const macs = `bridge fdb show | wc -l`
	hadNeighbours, hadMACs := f.inPod(neighbours), f.inPod(macs)
	spin := fmt.Sprintf("spin %d", measuredFor+floodOverhead)
	ratios := map[string][]float64{}
	var handler []float64 // how much more of a CPU virt-handler took
	small, connections := 0, 0
	compare := func(way string, loudFirst bool) {
		t.Helper()
		var quiet, loud busy
		flood := fmt.Sprintf("flood %d eth0 %s %s", measuredFor+floodOverhead, f.receiver, way)
		if loudFirst { // the machine may become slower or faster between the two
			loud, quiet = f.round(flood), f.round(spin)
		} else {
			quiet, loud = f.round(spin), f.round(flood)
		}
		ratios[way] = append(ratios[way], loud.median/quiet.median)
		handler = append(handler, loud.handler-quiet.handler)
		if loud.sent < 1000 {
			t.Errorf("%s: the guest has sent %d frames only", way, loud.sent)
		}
		if way == "udp" {
			small += loud.sent
		}
		t.Logf("%-4s %7d frames; round trip %.0f µs, quiet %.0f; virt-handler %.1f %%, quiet %.1f; the guest's QEMU %.0f %%, quiet %.0f",
			way, loud.sent, loud.median, quiet.median, loud.handler, quiet.handler, loud.qemu, quiet.qemu)
		if n := f.inPod(neighbours) - hadNeighbours; n > floodNeighbours {
			t.Errorf("%s: the pod remembers %d neighbours more", way, n)
		}
		if n := f.inPod(macs) - hadMACs; n > floodEntries {
			t.Errorf("%s: the pod's bridge remembers %d MACs more", way, n)
		}
		connections = max(connections, f.inPod(`cat /proc/sys/net/netfilter/nf_conntrack_count`))
	}
	ways := []string{"arp", "dhcp", "nd", "macs", "udp"}
	for i := range floodRounds {
		for _, way := range ways {
			compare(way, i%2 == 1)
		}
	}
	for runs := 0; small < smallPackets && runs < maxFloodRuns; runs++ {
		b := f.round(fmt.Sprintf("flood 20 eth0 %s udp", f.receiver))
		small += b.sent
	}
	if small < smallPackets {
		t.Errorf("the guest has sent %d small packets, want %d", small, smallPackets)
	}
	for _, way := range ways {
		ratio := medianOf(ratios[way])
		t.Logf("%s: the neighbour's round trip is %.2f × (%.2f)", way, ratio, ratios[way])
		if ratio > floodLatency {
			t.Errorf("%s: the neighbour's round trip is %.2f × what it is beside a guest that is as busy, want at most %.1f", way, ratio, floodLatency)
		}
	}
	t.Logf("%d small packets, %d connections in the pod at most", small, connections)
	if more := medianOf(handler); more > floodHandler {
		t.Errorf("virt-handler takes %.1f %% of a CPU more while a guest floods", more)
	}
	if most, err := strconv.Atoi(strings.TrimSpace(mustOnNode(t, `cat /proc/sys/net/netfilter/nf_conntrack_max`))); err != nil || connections > most {
		t.Errorf("the pod has %d connections, the kernel's limit is %d (%v)", connections, most, err)
	}
	if now, nowRSS := handlerUse(t); now.Start != f.handler.Start || nowRSS > rss+floodKeeps {
		t.Errorf("virt-handler is process %d with %d KiB RSS, was %d with %d", now.PID, nowRSS, f.handler.PID, rss)
	}
	if rss, err := strconv.Atoi(strings.TrimSuffix(procStatus(t, guest.launcher())["VmRSS"], " kB")); err != nil || rss > 2*maxLauncherRSS {
		t.Errorf("its launcher has %d KiB RSS (%v), want at most %d", rss, err, 2*maxLauncherRSS)
	}
	w.unharmed(false)
	// Its own lease is served still.
	renewed := regexp.MustCompile(`tiny: eth0 `)
	before := len(renewed.FindAllString(kubectl(t, "-n", ns, "logs", guest.pod().Name), -1))
	if _, status := f.shell.run("killall -USR1 udhcpc"); status != 0 {
		t.Error("the guest has no DHCP client")
	}
	guest.log().shows("(?s)" + strings.Repeat("tiny: eth0 .*", before+1))
	deletesSoon(t, guest)
}

func mustOnNode(t *testing.T, script string) string {
	t.Helper()
	out, err := onNode(script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
