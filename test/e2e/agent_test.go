package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// document asks for a document about the VMI.
func document[T any](v vmi, sub string) *T {
	v.t.Helper()
	text, err := output("", "kubectl", "get", "--raw", v.path("virtualmachineinstances", sub))
	out := new(T)
	if err == nil {
		err = json.Unmarshal([]byte(text), out)
	}
	if err != nil {
		v.t.Fatalf("%s of %s: %v", sub, v.name, err)
	}
	return out
}

// awaitAgent waits until the VMI says whether its guest's agent is there.
func (v vmi) awaitAgent(connected bool) {
	v.t.Helper()
	err := poll(func() error {
		if c := v.get().Status.Condition(v1.ConditionAgentConnected); (c != nil && c.Status == "True") != connected {
			return fmt.Errorf("condition AgentConnected of VMI %s is %+v", v.name, c)
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
}

// inLauncher runs virt-launcher in the VMI's pod, as the kubelet's probes do.
func (v vmi) inLauncher(args ...string) (string, int) {
	v.t.Helper()
	out, err := exec.Command("kubectl", append([]string{"-n", v.namespace, "exec", v.pod().Name, "--", "virt-launcher"}, args...)...).CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		v.t.Fatal(err)
	}
	if failed != nil {
		return string(out), failed.ExitCode()
	}
	return string(out), 0
}

// debianAgent asks a Debian guest's agent for all that it knows, and has it do
// what it can. The console is logged in.
func debianAgent(t *testing.T, v vmi, console *transcript) {
	v.awaitAgent(true)
	err := poll(func() error {
		s := v.get().Status
		nic := s.Interfaces[0]
		if s.GuestOSInfo.ID != "debian" || s.GuestOSInfo.VersionID != "12" || nic.InterfaceName != "enp1s0" || nic.InfoSource != "domain, guest-agent" || nic.IP != v.pod().Status.PodIP {
			return fmt.Errorf("OS %+v, interfaces %+v", s.GuestOSInfo, s.Interfaces)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	info := document[v1.VirtualMachineInstanceGuestAgentInfo](v, "guestosinfo")
	if info.Hostname != "debian" || info.OS.ID != "debian" || info.GAVersion == "" || len(info.SupportedCommands) < 20 || len(info.FSInfo.Filesystems) == 0 || info.Timezone == "" {
		t.Errorf("guestosinfo: %+v", info)
	}
	if users := document[v1.VirtualMachineInstanceGuestOSUserList](v, "userlist").Items; len(users) != 1 || users[0].UserName != "demo" || users[0].LoginTime == 0 {
		t.Errorf("userlist: %+v", users)
	}
	if systems := document[v1.VirtualMachineInstanceFileSystemList](v, "filesystemlist").Items; len(systems) == 0 || systems[0].MountPoint != "/" || systems[0].FileSystemType != "ext4" || systems[0].UsedBytes == 0 {
		t.Errorf("filesystemlist: %+v", systems)
	}
	if out, code := v.inLauncher("guest-ping", "--timeout", "20"); code != 0 {
		t.Errorf("guest-ping: %q (%d)", out, code)
	}
	if out, code := v.inLauncher("guest-exec", "--timeout", "20", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 3"); code != 3 || !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") {
		t.Errorf("guest-exec: %q (%d), want 3", out, code)
	}
	if out, code := v.inLauncher("guest-exec", "--timeout", "1", "--", "/bin/sleep", "30"); code != 1 {
		t.Errorf("guest-exec of what does not end: %q (%d), want 1", out, code)
	}
	debianFreezes(t, v, console)

	// An agent that is stopped, and started again.
	console.run("sudo systemctl stop qemu-guest-agent")
	v.awaitAgent(false)
	code, status := ask(t, configOf(t, ""), http.MethodGet, v.path("virtualmachineinstances", "guestosinfo"), nil)
	if code != http.StatusInternalServerError || !strings.Contains(status.Message, "VMI does not have guest agent connected") {
		t.Errorf("guestosinfo without an agent: %d %q", code, status.Message)
	}
	v.asked(http.StatusConflict, "not connected", "", "virtualmachineinstances", "freeze", v1.FreezeUnfreezeTimeout{})
	if out, code := v.inLauncher("guest-ping", "--timeout", "5"); code != 1 || !strings.Contains(out, "not connected") {
		t.Errorf("guest-ping without an agent: %q (%d)", out, code)
	}
	v.awaitEvents("GuestAgentPingFailed")
	v.holdsPings("=true", 0, "annotation")
	v.holdsPings("-", 1, "not connected")
	console.run("sudo systemctl start qemu-guest-agent")
	v.awaitAgent(true)
}

// holdsPings sets or removes the annotation that holds pings, and waits for what a ping then says.
func (v vmi) holdsPings(annotate string, wantCode int, want string) {
	v.t.Helper()
	kubectl(v.t, "-n", v.namespace, "annotate", "vmi", v.name, v1.PauseGuestAgentProbesAnnotation+annotate)
	if err := poll(func() error {
		if out, code := v.inLauncher("guest-ping", "--timeout", "5"); code != wantCode || !strings.Contains(out, want) {
			return fmt.Errorf("guest-ping with the annotation %s: %q (%d), want %q (%d)", annotate, out, code, want, wantCode)
		}
		return nil
	}); err != nil {
		v.t.Error(err)
	}
}

// debianFreezes freezes the guest's file systems below a write load, lets the
// time for it end, and thaws them.
func debianFreezes(t *testing.T, v vmi, console *transcript) {
	console.run(`touch ~/load; (while :; do echo x >>~/load; sync ~/load; sleep 0.1; done) >/dev/null 2>&1 & true`)
	lines := func() int {
		t.Helper()
		out, _ := console.run("wc -l <~/load")
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatalf("count the lines written: %q", out)
		}
		return n
	}
	writes := func(should bool) {
		t.Helper()
		before := lines()
		err := poll(func() error {
			time.Sleep(2 * time.Second)
			if (lines() > before) != should {
				return fmt.Errorf("the guest writes: %t, should be %t", !should, should)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	status := func(want string) {
		t.Helper()
		err := poll(func() error {
			if got := v.get().Status.FSFreezeStatus; got != want {
				return fmt.Errorf("fsFreezeStatus is %q, want %q", got, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	writes(true)
	v.asked(http.StatusOK, "", "", "virtualmachineinstances", "freeze", map[string]string{"unfreezeTimeout": "45s"})
	status(v1.FSFrozen)
	writes(false)
	if out, code := v.inLauncher("guest-exec", "--", "/bin/false"); code != 0 || !strings.Contains(out, "frozen") {
		t.Errorf("guest-exec while the file systems are frozen: %q (%d)", out, code)
	}
	status("") // the time is over
	writes(true)
	v.asked(http.StatusOK, "", "", "virtualmachineinstances", "freeze", map[string]string{"unfreezeTimeout": "5m"})
	writes(false)
	v.asked(http.StatusOK, "", "", "virtualmachineinstances", "unfreeze", nil)
	writes(true)
	status("")
	console.run("kill %1")
}

// hostileAgent answers on the agent's port with the contents of files.
const hostileAgent = `set -- /dev/vport*p1
exec 3<>"$1"
while read -r line <&3; do
	case "$line" in
	*sync-delimited*) id=${line##*:}; printf '\377{"return": %s}\n' "${id%%\}*}" >&3 ;;
	*osinfo*) cat /tmp/os >&3 ;;
	*interfaces*) cat /tmp/interfaces >&3; echo >>/tmp/asked ;;
	*users*) cat /tmp/many >&3 ;;
	*fsinfo*) ;; # never
	*host-name*) printf '{"return": {"host-name": "a\303(\376\001b"}}\n' >&3 ;;
	*) printf '{"return": {}}\n' >&3 ;;
	esac
done
`

// TestHostileAgent: what a guest says as its agent's word, and how much of it,
// harms neither the VMI's object nor its launcher.
func TestHostileAgent(t *testing.T) {
	t.Parallel()
	v := create(t, namespace(t), tiny("hostile"))
	v.await(v1.Running)
	shell := v.shell()
	tell := func(command string) {
		t.Helper()
		if out, status := shell.run(command); status != 0 {
			t.Fatalf("%s: %q (%d)", command, out, status)
		}
	}
	process, before := handlerUse(t)
	harmless := func(what string) {
		t.Helper()
		now, handler := handlerUse(t)
		if now.Start != process.Start || handler > before+floodRSS {
			t.Errorf("%s: virt-handler is process %d with %d KiB RSS, was %d with %d", what, now.PID, handler, process.PID, before)
		}
		object, err := json.Marshal(v.get())
		if err != nil || len(object) > 64<<10 {
			t.Errorf("%s: the VMI has %d bytes (%v)", what, len(object), err)
		}
		rss, err := strconv.Atoi(strings.TrimSuffix(procStatus(t, v.launcher())["VmRSS"], " kB"))
		if err != nil || rss > 16<<10 {
			t.Errorf("%s: the launcher has %d KiB RSS (%v)", what, rss, err)
		}
		t.Logf("%s: VMI of %d bytes, launcher of %d KiB, virt-handler of %d, was %d", what, len(object), rss, handler, before)
		if out, _ := shell.run("echo $((6 * 7))"); out != "42\n" {
			t.Errorf("%s: the console answers %q", what, out)
		}
	}
	tell("echo " + base64.StdEncoding.EncodeToString([]byte(hostileAgent)) + " | base64 -d >/tmp/agent")
	tell(`(printf '{"return": {"id": "evil", "name": "'; head -c 10000000 /dev/zero | tr '\0' x; printf '"}}\n') >/tmp/os`)
	tell(`one='{"name":"evil","hardware-address":"52:54:00:00:00:01","ip-addresses":[{"ip-address":"10.96.0.1"}]},'`)
	tell(`(printf '{"return": ['; yes "$one" | head -n 1000 | tr -d '\n'; printf '{}]}\n') >/tmp/interfaces`)
	tell(`(printf '{"return": ['; yes "$one" | head -n 100000 | tr -d '\n'; printf '{}]}\n') >/tmp/many`)
	tell("sh /tmp/agent & true")
	v.awaitAgent(true)
	err := poll(func() error {
		s := v.get().Status
		if os := s.GuestOSInfo; os.ID != "evil" || len(os.Name) < 100 || len(os.Name) > 256 || len(s.Interfaces) != 10 || s.Interfaces[0].InfoSource != "domain" || s.Interfaces[0].IP != v.pod().Status.PodIP {
			return fmt.Errorf("status is %+v", s)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	harmless("a flood")
	tell("mv /tmp/interfaces /tmp/few; ln -s /tmp/many /tmp/interfaces; : >/tmp/asked")
	shell.send("until [ -s /tmp/asked ]; do sleep 1; done; echo asked-$((6 * 7))\n")
	shell.expect("asked-42")
	harmless("100000 interfaces")
	tell("ln -sf /tmp/few /tmp/interfaces")
	// Of the users it knows too many; of the file systems it never tells.
	code, status := ask(t, configOf(t, ""), http.MethodGet, v.path("virtualmachineinstances", "guestosinfo"), nil)
	if code < 500 && code != http.StatusConflict {
		t.Errorf("guestosinfo of an agent that does not answer: %d %q", code, status.Message)
	}
	harmless("no answer")

	tell("kill %1; true")
	tell(`(tr '\0' '[' </dev/zero >$(ls /dev/vport*p1)) & true`)
	v.awaitAgent(false)
	time.Sleep(5 * time.Second)
	harmless("endless JSON")

	// It has no agent that could, but heeds the power button.
	tell("killall tr")
	log := v.log()
	v.asked(http.StatusOK, "", "", "virtualmachineinstances", "softreboot", nil)
	log.expect(`(?s)tiny: up.*tiny: bye.*tiny: up`)
	if s := v.get().Status; s.Phase != v1.Running {
		t.Errorf("after the reboot the VMI is %s", s.Phase)
	}
	deletesSoon(t, v)
}
