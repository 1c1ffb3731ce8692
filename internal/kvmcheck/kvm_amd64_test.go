package kvmcheck

import (
	"testing"
	"unsafe"
)

func TestLayoutOfKVMStructures(t *testing.T) {
	for name, sizes := range map[string][2]uintptr{
		"kvm_userspace_memory_region": {unsafe.Sizeof(memoryRegion{}), 32},
		"kvm_regs":                    {unsafe.Sizeof(registers{}), 144},
		"kvm_segment":                 {unsafe.Sizeof(segment{}), 24},
		"kvm_sregs":                   {unsafe.Sizeof(specialRegisters{}), 312},
		"kvm_cpuid2":                  {unsafe.Offsetof(supportedCPUID{}.entry), 8},
	} {
		if sizes[0] != sizes[1] {
			t.Errorf("struct %s has %d bytes, want %d", name, sizes[0], sizes[1])
		}
	}
}
