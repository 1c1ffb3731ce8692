package check_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/check"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.txt") }

// mistake is a golden of the catalogue in which one text is another.
type mistake struct{ release, golden, right, wrong string }

var mistakes = []mistake{
	// Properties that there are not.
	{"11.1", "minimal", `"num-queues":1`, `"num-queue":1`},
	{"11.1", "minimal", `"free-page-reporting":true`, `"free_page_reporting":true`},
	{"7.2", "volume-claim", `"read-only":false,"discard":"unmap","cache":{"direct":true},"file":"disk-root.file"`, `"readonly":false,"discard":"unmap","cache":{"direct":true},"file":"disk-root.file"`},
	{"11.1", "minimal", `"discard":"unmap","cache":{"direct":true},"file":"disk-root.file"`, `"discard":"unmap","cache":{"directly":true},"file":"disk-root.file"`},
	{"11.1", "interface-bridge", `"type":"tap","id":"net-default","fd":"5"`, `"type":"tap","id":"net-default","df":"5"`},
	{"11.1", "minimal", `"size":134217728`, `"sise":134217728`},
	{"11.1", "minimal", `vmport=off`, `vmprot=off`},
	{"11.1", "minimal", `tb-size=127`, `tbsize=128`},
	{"11.1", "cpu-model-named", `-cpu Haswell-noTSX`, `-cpu Haswell-noTSX,+avx2,hv-tme=on`},
	{"11.1", "minimal", `ICH9-LPC.disable_s3=1`, `ICH9-LPC.disable_s5=1`},
	{"7.2", "minimal", `socket,id=qmp,fd=3`, `socket,id=qmp,fdd=3`},
	{"11.1", "minimal", `threads=1 `, `thread=1 `},
	{"11.1", "minimal", `spawn=deny`, `spwan=deny`},
	{"11.1", "minimal", `family=KubeVirt`, `famly=KubeVirt`},
	// Values of the wrong type.
	{"11.1", "minimal", `"num-queues":1`, `"num-queues":"1"`},
	{"11.1", "minimal", `"num-queues":1`, `"num-queues":65536`},
	{"11.1", "minimal", `"free-page-reporting":true`, `"free-page-reporting":"on"`},
	{"11.1", "minimal", `"write-cache":"on"`, `"write-cache":true`},
	{"7.2", "minimal", `"werror":"stop"`, `"werror":"halt"`},
	{"11.1", "minimal", `"node-name":"disk-root.basefile","filename":"/var/lib/kubeqemu/images/root/disk/root.qcow2","read-only":true`, `"node-name":"disk-root.basefile","filename":"/var/lib/kubeqemu/images/root/disk/root.qcow2","read-only":"true"`},
	{"11.1", "minimal", `"discard":"unmap","cache":{"direct":true},"file":"disk-root.file"`, `"discard":"trim","cache":{"direct":true},"file":"disk-root.file"`},
	{"11.1", "interface-bridge", `"fd":"5"`, `"fd":5`},
	{"11.1", "minimal", `"size":134217728`, `"size":"128M"`},
	{"7.2", "minimal", `usb=off`, `usb=never`},
	{"11.1", "minimal", `size=128M`, `size=128Mi`},
	{"11.1", "minimal", `thread=multi`, `thread=many`},
	{"11.1", "timer-pit-delay", `lost_tick_policy=delay`, `lost_tick_policy=later`},
	{"11.1", "clock-utc", `base=utc`, `base=utc,clock=guest`},
	{"11.1", "watchdog-reset", `watchdog=reset`, `watchdog=reboot`},
	{"7.2", "minimal", `mem-lock=off`, `mem-lock=on-fault`},
	{"11.1", "minimal", `"addr":"0x6"`, `"addr":"0x26"`},
	// What is gone, and what is of a newer QEMU.
	{"11.1", "minimal", `pc-q35-11.1`, `pc-q35-4.2`},
	{"7.2", "minimal", `pc-q35-7.2`, `pc-q35-8.0`},
	{"10.0", "minimal", `pc-q35-11.1`, `pc-q35-10.0`},
	{"11.1", "minimal", `-no-user-config`, `-no-hpet`},
	{"7.2", "minimal", `-no-user-config`, `-run-with chroot=/x`},
	{"11.1", "minimal", `socket,id=agent0,fd=5`, `socket,id=agent0,fd=5,reconnect=5`},
	{"7.2", "minimal", `"free-page-reporting":true`, `"free-page-reporting":true,"x-pcie-ext-tag":false`},
	{"7.2", "minimal", `"driver":"virtio-balloon-pci-non-transitional","id":"balloon0","free-page-reporting":true`, `"driver":"virtio-sound-pci","id":"balloon0"`},
	{"7.2", "cpu-model-named", `Haswell-noTSX`, `SierraForest`},
	{"11.1", "cpu-model-named", `Haswell-noTSX`, `Haswell-v99`},
	{"11.1", "minimal", `-accel tcg`, `-accel hvf`},
	{"11.1", "minimal", `vmport=off`, `vmport=off,accel=kvmm:tcg`},
	{"11.1", "minimal", `"num-queues":1`, `"num-queues":1,"num-queues":2`},
	{"7.2", "minimal", `"driver":"file","node-name":"disk-root.file"`, `"driver":"file","node-name":"disk-root.file","active":true`},
	// Names of things that there are not.
	{"11.1", "minimal", `virtio-blk-pci-non-transitional`, `virtio-blk-pci-nontransitional`},
	{"11.1", "minimal", `"driver":"qcow2","node-name":"disk-root.base"`, `"driver":"qcow3","node-name":"disk-root.base"`},
	{"11.1", "minimal", `memory-backend-ram`, `memory-backend-rom`},
	{"11.1", "minimal", `-accel tcg`, `-accel tgc`},
	{"11.1", "minimal", `-nodefaults`, `-nodefault`},
	{"11.1", "minimal", `-chardev socket,id=agent0`, `-chardev soket,id=agent0`},
	{"11.1", "minimal", `"driver":"isa-serial"`, `"driver":"mc146818rtc-isa"`},
	{"11.1", "minimal", `"driver":"isa-serial"`, `"driver":"ICH9-LPC"`},
	// Ids.
	{"11.1", "minimal", `"drive":"disk-root"`, `"drive":"disk-rot"`},
	{"11.1", "minimal", `"file":"disk-root.basefile"`, `"file":"disk-root.base-file"`},
	{"11.1", "minimal", `"bus":"pci.1"`, `"bus":"pci.9"`},
	{"11.1", "minimal", `"chardev":"agent0"`, `"chardev":"agent1"`},
	{"11.1", "minimal", `memory-backend=pc.ram`, `memory-backend=ram`},
	{"11.1", "rng", `"rng":"objrng0"`, `"rng":"rng0"`},
	{"11.1", "interface-bridge", `"netdev":"net-default"`, `"netdev":"default"`},
	{"11.1", "minimal", `"id":"pci.2"`, `"id":"pci.1"`},
	{"11.1", "minimal", `"node-name":"disk-root.base"`, `"node-name":"disk-root.basefile"`},
	{"11.1", "volume-claim-block", `set=5`, `set=7`},
	// Forms.
	{"11.1", "minimal", `"backing":"disk-root.base"}`, `"backing":"disk-root.base"`},
	{"11.1", "minimal", `,"filename":"/var/lib/kubeqemu/overlays/root.qcow2"`, ``},
	{"11.1", "minimal", `-smp 1,`, `-smp 2,`},
	{"11.1", "minimal", `-msg timestamp=on`, `-msg`},
	// Guests of arm64.
	{"11.1", "arm64", `gic-version=3`, `gic-verson=3`},
	{"11.1", "arm64", `virt-11.1`, `pc-q35-11.1`},
	{"11.1", "arm64", `virt-11.1`, `virt-2.5`},
	{"7.2", "arm64", `virt-7.2`, `virt-8.0`},
	{"10.0", "arm64", `virt-11.1`, `virt-10.0,secur=on`},
	{"11.1", "arm64", `pauth-impdef=on`, `pauth-impdeff=on`},
	{"11.1", "arm64", `pauth-impdef=on`, `+pauth-impdef`},
	{"11.1", "arm64", `pauth-impdef=on`, `pauth_impdef=on`},
	{"11.1", "arm64", `-cpu max`, `-cpu Haswell`},
	{"11.1", "arm64", `"bus":"pci.1"`, `"bus":"pci.0"`},
	{"11.1", "arm64", `"num-queues":1`, `"num-queues":"1"`},
	{"7.2", "arm64-tpm", `tpm-tis-device`, `tpm-crb`},
	{"11.1", "arm64-accelerator-kvm", `-accel kvm`, `-accel xen`},
	{"11.1", "arm64-accelerator-kvm", `-cpu host`, `-cpu hots`},
	{"11.1", "arm64", `memory-backend=mach-virt.ram`, `memory-backend=pc.ram`},
}

// TestEachMistakeIsFound: each mistake is found, and nothing else is. testdata/mistakes.txt has what is said of it.
func TestEachMistakeIsFound(t *testing.T) {
	all := schemas(t)
	var said strings.Builder
	for _, m := range mistakes {
		release := m.release
		if release == "10.0" {
			release = "11.1" // whose machine has no golden of its own
		}
		text := read(t, machines+m.golden+"/"+release+".args")
		if strings.Count(text, m.right) == 0 {
			t.Errorf("%s of %s has no %s", m.golden, release, m.right)
			continue
		}
		lines := problems(t, all, m.release, strings.Replace(text, m.right, m.wrong, 1))
		if lines == "" {
			t.Errorf("%s on %s is not found: %s", m.golden, m.release, m.wrong)
		}
		fmt.Fprintf(&said, "QEMU %s, %s\n  - %s\n  + %s\n", m.release, m.golden, m.right, m.wrong)
		for line := range strings.Lines(lines) {
			said.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
		}
		said.WriteString("\n")
	}
	golden.Compare(t, "testdata/mistakes.txt", said.String())
}

// tried are arguments that QEMU takes, or refuses: all were tried with 7.2 and 11.1, and TestRealQEMUAgreesWithTheCheck tries some again.
var tried = []struct {
	args  string
	taken bool
}{
	{"-device virtio-rng-pci,max-bytes=1024,period=1000", true},
	{"-device virtio-rng-pci,maxbytes=1024", false},
	{`-device '{"driver":"virtio-balloon-pci","free-page-reporting":true}'`, true},
	{`-device '{"driver":"virtio-balloon-pci","free-page-reporting":"on"}'`, false},
	{"-device pcie-root-port,id=a -device virtio-rng-pci,bus=a", true},
	{"-device pcie-root-port,id=a -device virtio-rng-pci,bus=b", false},
	{"-machine pc-q35-7.2,vmport=off,mem_merge=off,kernel_irqchip=off", true},
	{"-machine q35,vmprot=off", false},
	{"-cpu max,hv_time=off,avx2,+aes,level=0x10", true},
	{"-cpu max,hv-tme=off", false},
	{"-blockdev null-co,node-name=a,size=0x100000,cache.direct=yes -device virtio-blk-pci,drive=a", true},
	{"-blockdev null-co,node-name=a,size=1048576 -device virtio-blk-pci,drive=b", false},
	{"-object memory-backend-ram,id=a,size=1M,host-nodes=0-1,host-nodes=3,policy=bind,noshare -object throttle-group,id=t,x-iops-total=10", true},
	{"-object iothread,id=a -object iothread,id=a", false},
	{"-smp 4,sockets=2,cores=2,threads=1 -m 1.5G", true},
	{"-smp 4,sockets=2,cores=1,threads=1", false},
	{"-chardev null,id=a,path=x -device isa-serial,chardev=a", true},
	{"-chardev null,id=a -device isa-serial,chardev=b", false},
}

// more are tried too, but not again with each run of the tests.
var more = []struct {
	args  string
	taken bool
}{
	{"-device pcie-root-port,port=256", false},
	{"-device virtio-rng-pci,addr=40", false},
	{"-device virtio-rng-pci,max-bytes=1k", false},
	{`-device '{"driver":"virtio-rng-pci","max-bytes":"1"}'`, false},
	{"-device virtio-balloon-pci,nofree-page-reporting -device virtio-balloon-pci,free-page-reporting", true},
	{"-device virtio-balloon-pci,free-page-reporting=yes", true},
	{"-device mch", false},
	{`-blockdev '{"driver":"null-co","node-name":"a","read-only":"on"}'`, false},
	{"-object memory-backend-ram,id=a,size=0x100000 -object iothread,id=i,poll-max-ns=0x10", true},
	{"-netdev user,id=a,hostfwd=tcp::2222-:22,hostfwd=tcp::8090-:80,restrict", true},
	{`-netdev '{"type":"user","id":"a","hostfwd":["tcp::2222-:22"]}'`, false},
	{`-netdev '{"type":"user","id":"a","hostfwd":[{"str":"tcp::2222-:22"}]}'`, true},
	{"-netdev stream,id=a,server=on,addr.type=inet,addr.host=localhost,addr.port=12345", true},
	{"-smbios type=1,manufactur=a", false},
	{"-machine pc,vmport", false},
	{"-machine pc,graphics=yes -cpu max,tsc-freq=1G,x2apic=yes", true},
	{"-accel tcg,tb-size=0x10", true},
	{"-accel tcg,tb-size=1M", false},
	{"-accel tcg,thread=many", false},
	{"-global virtio-rng-pci.max-byte=1 -device virtio-rng-pci", false},
	{"-boot order=c,foo=1", false},
	{"-rtc clock=guest", false},
	{"-rtc base=never", false},
	{"-rtc base=2026-01-02T03:04:05", true},
	{"-m 128Mi", false},
	{"-name a,foo=1", false},
	{"-action panic=foo", false},
	{"-chardev null,id=a,nothing=x", false},
	{"-chardev null,id=a -chardev null,id=a", false},
	{"-display vnc=:77 -msg timestamp -sandbox on,elevateprivileges=children", true},
	{"-display gtk,gl", false},
	{"-sandbox on,spawn=children", false},
	{"-drive if=none,id=a,driver=null-co,size=1M", true},
	{"-drive if=none,id=a,driver=null-co,foo=1", false},
	{"-drive if=nvme,driver=null-co,size=1M", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,media=tape", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,cache=safe", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,cache=off,media=cdrom,discard=on,detect-zeroes=on", true},
	{"-drive if=none,id=a,driver=null-co,size=1M,werror=halt", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,rerror=enospc", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,rerror=ignore,werror=enospc", true},
	{"-drive if=none,id=a,driver=null-co,size=1M,discard=trim", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,detect-zeroes=yes", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,aio=uring", false},
	{"-boot cdn", true},
	{"-boot order=", true},
	{"-boot C", false},
	{"-boot order=cz", false},
	{"-boot once=cc", false},
	{"-boot once=adn", true},
	{"-boot e", false},
	{"-machine q35 -boot abcd", false},
	{"-machine microvm -boot abcdp", true},
	{"-numa node,nodeid=0,cpus=0,cpu=0", false},
	{"-device virtio-scsi-pci,iothread=nosuch", false},
	{"-device isa-serial,index=99999999999", false},
	{"-drive if=none,id=a,driver=null-co,size=1M,bps=100,iops=50,bps_max=200,iops_max=60,iops_size=3,group=x,readonly=on", true},
	{"-drive if=none,id=a,driver=null-co,size=1M,bps_rd=1,iops_rd=1,bps_wr_max=7,bps_wr=3", true},
	{"-drive if=none,id=a,driver=null-co,size=1M,bps=1,bps_max=1,bps_max_length=3", false},
	{"-object memory-backend-ram,id=m,size=256M -device nvdimm,label-size=128K,memdev=m", true},
	{"-object memory-backend-ram,id=m,size=256M -device nvdimm,label-size=128X,memdev=m", false},
	{"-cpu max,,vmx=off,", true},
	{"-audio driver=none,model=hda,id=snd0 -device usb-ehci -device usb-audio,audiodev=snd0", true},
	{"-audio driver=none,model=hda,id=snd0 -device usb-ehci -device usb-audio,audiodev=snd1", false},
	{"-machine q35,accel=tcg:kvm", true},
	{"-machine q35,accel=kvmm", false},
	{"-machine q35,accel=kvmm:tcg", false}, // QEMU warns
	{`-device '{"driver":"virtio-rng-pci","driver":"virtio-rng-pci"}'`, false},
	{`-blockdev '{"driver":"null-co","node-name":"a","cache":{"direct":true,"direct":false}}'`, false},
}

// TestCheckDecidesAsQEMUDoes: the check takes and refuses what QEMU does.
func TestCheckDecidesAsQEMUDoes(t *testing.T) {
	all := schemas(t)
	for _, r := range append(tried, more...) {
		for _, release := range []string{"7.2", "10.0", "11.1"} {
			lines := problems(t, all, release, "qemu-system-x86_64 "+r.args)
			lines = strings.ReplaceAll(lines, "-machine: warning: machine type pc-q35-7.2 is deprecated", "") // in 11.1
			if (lines == "") != r.taken {
				t.Errorf("%s on QEMU %s, want it taken: %v: %q", r.args, release, r.taken, lines)
			}
		}
	}
}

// TestRealQEMUAgreesWithTheCheck: a real QEMU takes and refuses what TestCheckDecidesAsQEMUDoes holds the check to.
func TestRealQEMUAgreesWithTheCheck(t *testing.T) {
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		testkit.Lacks(t, "Debian's qemu-system-x86", "make packages", err)
	}
	for _, r := range tried {
		sections, err := check.Parse("qemu-system-x86_64 " + r.args)
		if err != nil {
			t.Fatal(err)
		}
		if said, took := starts(t, path, sections[0].Args); took != r.taken {
			t.Errorf("QEMU takes %s: %v, want %v: %s", r.args, took, r.taken, said)
		}
	}
}

// starts starts a QEMU whose guest does not run, and tells it to quit. It returns what QEMU said on standard error.
func starts(t *testing.T, path string, args []string) (string, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	all := append([]string{"-nodefaults", "-display", "none", "-S", "-monitor", "stdio"}, args...)
	if !strings.Contains(strings.Join(args, " "), "-machine") {
		all = append([]string{"-machine", "q35"}, all...)
	}
	cmd := exec.CommandContext(ctx, path, all...)
	cmd.WaitDelay = testkit.Patience
	cmd.Stdin = strings.NewReader("quit\n")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("QEMU did not end: %s %q: %s", path, all, stderr.String())
	}
	return stderr.String(), err == nil
}
