package resolve

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// The CPU features of QEMU 7.2, and those that 10.0 and 11.1 have besides (target/i386/cpu.c, feature_word_info).
const (
	cpuFeatures72 = `3dnow 3dnowext 3dnowprefetch abm ace2 ace2-en acpi adx aes amd-no-ssb amd-ssbd amd-stibp amx-bf16 amx-int8 amx-tile apic arat
arch-capabilities arch-lbr avic avx avx-vnni avx2 avx512-4fmaps avx512-4vnniw avx512-bf16 avx512-fp16 avx512-vp2intersect
avx512-vpopcntdq avx512bitalg avx512bw avx512cd avx512dq avx512er avx512f avx512ifma avx512pf avx512vbmi avx512vbmi2 avx512vl
avx512vnni bmi1 bmi2 bus-lock-detect cid cldemote clflush clflushopt clwb clzero cmov cmp-legacy core-capability cr8legacy cx16
cx8 dca de decodeassists ds ds-cpl dtes64 erms est extapic f16c flushbyasid fma fma4 fpu fsgsbase fsrm full-width-write fxsr
fxsr-opt gfni hle ht hypervisor ia64 ibpb ibrs ibrs-all ibs intel-pt intel-pt-lip invpcid invtsc kvm-asyncpf kvm-asyncpf-int
kvm-hint-dedicated kvm-mmu kvm-msi-ext-dest-id kvm-nopiodelay kvm-poll-control kvm-pv-eoi kvm-pv-ipi kvm-pv-sched-yield
kvm-pv-tlb-flush kvm-pv-unhalt kvm-steal-time kvmclock kvmclock-stable-bit la57 lahf-lm lbrv lm lwp mca mce md-clear mds-no
misalignsse mmx mmxext monitor movbe movdir64b movdiri mpx msr mtrr nodeid-msr npt nrip-save nx osvw pae pat pause-filter pbe pcid
pclmulqdq pcommit pdcm pdpe1gb perfctr-core perfctr-nb pfthreshold pge phe phe-en pks pku pmm pmm-en pn pni popcnt pschange-mc-no
pse pse36 rdctl-no rdpid rdrand rdseed rdtscp rsba rtm sep serialize sgx sgx-debug sgx-exinfo sgx-kss sgx-mode64 sgx-provisionkey
sgx-tokenkey sgx1 sgx2 sgxlc sha-ni skinit skip-l1dfl-vmentry smap smep smx spec-ctrl split-lock-detect ss ssb-no ssbd sse sse2
sse4.1 sse4.2 sse4a ssse3 stibp svm svm-lock svme-addr-chk syscall taa-no tbm tce tm tm2 topoext tsc tsc-adjust tsc-deadline
tsc-scale tsx-ctrl tsx-ldtrk umip v-vmsave-vmload vaes vgif virt-ssbd vmcb-clean vme vmx vmx-activity-hlt vmx-activity-shutdown
vmx-activity-wait-sipi vmx-apicv-register vmx-apicv-vid vmx-apicv-x2apic vmx-apicv-xapic vmx-cr3-load-noexit vmx-cr3-store-noexit
vmx-cr8-load-exit vmx-cr8-store-exit vmx-desc-exit vmx-encls-exit vmx-entry-ia32e-mode vmx-entry-load-bndcfgs vmx-entry-load-efer
vmx-entry-load-pat vmx-entry-load-perf-global-ctrl vmx-entry-load-pkrs vmx-entry-load-rtit-ctl vmx-entry-noload-debugctl vmx-ept
vmx-ept-1gb vmx-ept-2mb vmx-ept-advanced-exitinfo vmx-ept-execonly vmx-eptad vmx-eptp-switching vmx-exit-ack-intr
vmx-exit-clear-bndcfgs vmx-exit-clear-rtit-ctl vmx-exit-load-efer vmx-exit-load-pat vmx-exit-load-perf-global-ctrl
vmx-exit-load-pkrs vmx-exit-nosave-debugctl vmx-exit-save-efer vmx-exit-save-pat vmx-exit-save-preemption-timer vmx-flexpriority
vmx-hlt-exit vmx-ins-outs vmx-intr-exit vmx-invept vmx-invept-all-context vmx-invept-single-context
vmx-invept-single-context-noglobals vmx-invlpg-exit vmx-invpcid-exit vmx-invvpid vmx-invvpid-all-context vmx-invvpid-single-addr
vmx-io-bitmap vmx-io-exit vmx-monitor-exit vmx-movdr-exit vmx-msr-bitmap vmx-mtf vmx-mwait-exit vmx-nmi-exit vmx-page-walk-4
vmx-page-walk-5 vmx-pause-exit vmx-ple vmx-pml vmx-posted-intr vmx-preemption-timer vmx-rdpmc-exit vmx-rdrand-exit vmx-rdseed-exit
vmx-rdtsc-exit vmx-rdtscp-exit vmx-secondary-ctls vmx-shadow-vmcs vmx-store-lma vmx-true-ctls vmx-tsc-offset vmx-tsc-scaling
vmx-unrestricted-guest vmx-vintr-pending vmx-vmfunc vmx-vmwrite-vmexit-fields vmx-vnmi vmx-vnmi-pending vmx-vpid vmx-wbinvd-exit
vmx-xsaves vmx-zero-len-inject vpclmulqdq waitpkg wbnoinvd wdt x2apic xcrypt xcrypt-en xfd xgetbv1 xop xsave xsavec xsaveerptr
xsaveopt xsaves xstore xstore-en xtpr`
	cpuFeatures100 = `amd-psfd amx-complex amx-fp16 auto-ibrs avx-ifma avx-ne-convert avx-vnni-int16 avx-vnni-int8 avx10 avx10-128 avx10-256 avx10-512
bhi-ctrl bhi-no cmpccxadd ddpd-u eraps fb-clear fbsdp-no fdp-excptn-only flush-l1d fred fsrc fsrs fzrm gds-no ibpb-brtype
intel-psfd ipred-ctrl kvm-asyncpf-vmexit lam lfence-always-serializing lkgs mcdt-no no-nested-data-bp null-sel-clr-base
overflow-recov pbrsb-no perfmon-v2 prefetchiti psdp-no rfds-clear rfds-no rrsba-ctrl sbdr-ssdp-no sbpb sgx-aex-notify sgx-edeccssa
sha512 sm3 sm4 srso-no srso-user-kernel-no stibp-always-on succor vmx-any-errcode vmx-enable-user-wait-pause vmx-entry-load-fred
vmx-exit-secondary-ctls vmx-nested-exception vnmi wrmsrns zero-fcs-fds`
	cpuFeatures111 = `amx-avx512 amx-bf16-alias amx-complex-alias amx-fp16-alias amx-fp8 amx-int8-alias amx-movrs amx-tf32 apx-nci-ndd-nf apxf
avx10-vnni-int cet-ibt cet-ss fs-gs-base-ns gmet its-no movrs msr-imm prefetchi tsa-l1-no tsa-sq-no verw-clear vmx-entry-load-cet
vmx-exit-save-cet vmx-mbec`
)

// featureSince returns the first of the releases 7.2, 10.0 and 11.1 that has a feature.
func featureSince(name string) (since version, ok bool) {
	for _, r := range []struct {
		since version
		names string
	}{{version{7, 2}, cpuFeatures72}, {version{10, 0}, cpuFeatures100}, {version{11, 1}, cpuFeatures111}} {
		for known := range strings.FieldsSeq(r.names) {
			if known == name {
				return r.since, true
			}
		}
	}
	return version{}, false
}

// KnownCPUFeature reports whether any QEMU from 7.2 to 11.1 has a CPU feature.
func KnownCPUFeature(name string) bool {
	_, known := featureSince(name)
	return known
}

// cpuFeatures returns the flags of the CPU's features, and the features without which the guest must not run. The
// feature without is left out.
func cpuFeatures(c *v1.CPU, without string, qemu version, path *field.Path) (flags, required []string, errs field.ErrorList) {
	for i, f := range c.Features {
		name := f.QEMUName()
		if name == without {
			continue
		}
		since, known := featureSince(name)
		switch {
		case !known:
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), f.Name, "QEMU has no such CPU feature; qemu-system-x86_64 -cpu help lists the features"))
			continue
		case qemu.before(since):
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), f.Name, fmt.Sprintf("this node's QEMU %d.%d has no such CPU feature; QEMU %d.%d has it", qemu.major, qemu.minor, since.major, since.minor)))
			continue
		}
		state := qemuargs.On
		if f.Policy == v1.FeatureDisable || f.Policy == v1.FeatureForbid {
			state = qemuargs.Off
		}
		flags = append(flags, name+"="+string(state))
		if f.Policy == "" || f.Policy == v1.FeatureRequire {
			required = append(required, name)
		}
	}
	return flags, required, errs
}
