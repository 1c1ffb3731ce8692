package v1

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// cpuModels are the models for amd64 of QEMU 7.2 to 11.1 (target/i386/cpu.c), each with its
// number of versions: the last version of Haswell is Haswell-v4. A model of 0 has no versions.
var cpuModels = map[string]int{
	"486": 1, "athlon": 1, "base": 0, "Broadwell": 4, "Broadwell-IBRS": 0, "Broadwell-noTSX": 0,
	"Broadwell-noTSX-IBRS": 0, "Cascadelake-Server": 7, "Cascadelake-Server-noTSX": 0, "ClearwaterForest": 4,
	"Conroe": 1, "Cooperlake": 2, "core2duo": 1, "coreduo": 1, "Denverton": 3, "Dhyana": 2, "DiamondRapids": 2,
	"EPYC": 5, "EPYC-Genoa": 3, "EPYC-IBPB": 0, "EPYC-Milan": 4, "EPYC-Rome": 5, "EPYC-Turin": 2, "GraniteRapids": 7,
	"Haswell": 4, "Haswell-IBRS": 0, "Haswell-noTSX": 0, "Haswell-noTSX-IBRS": 0, "host": 0, "Icelake-Server": 9,
	"Icelake-Server-noTSX": 0, "IvyBridge": 2, "IvyBridge-IBRS": 0, "KnightsMill": 1, "kvm32": 1, "kvm64": 1, "max": 0,
	"n270": 1, "Nehalem": 2, "Nehalem-IBRS": 0, "Opteron_G1": 1, "Opteron_G2": 1, "Opteron_G3": 1, "Opteron_G4": 1,
	"Opteron_G5": 1, "Penryn": 1, "pentium": 1, "pentium2": 1, "pentium3": 1, "phenom": 1, "qemu32": 1, "qemu64": 1,
	"SandyBridge": 2, "SandyBridge-IBRS": 0, "SapphireRapids": 8, "SierraForest": 6, "Skylake-Client": 4,
	"Skylake-Client-IBRS": 0, "Skylake-Client-noTSX-IBRS": 0, "Skylake-Server": 6, "Skylake-Server-IBRS": 0,
	"Skylake-Server-noTSX-IBRS": 0, "Snowridge": 4, "Westmere": 2, "Westmere-IBRS": 0, "YongFeng": 3,
}

// CPUModels returns the names of all models for amd64 that any QEMU from 7.2 to 11.1 has, in the order of the alphabet.
func CPUModels() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(cpuModels)) {
		out = append(out, name)
		for version := range cpuModels[name] {
			out = append(out, name+"-v"+strconv.Itoa(version+1))
		}
	}
	return out
}

// KnownCPUModel reports whether any QEMU from 7.2 to 11.1 has a CPU model.
func KnownCPUModel(model string) bool {
	if _, ok := cpuModels[model]; ok {
		return true
	}
	i := strings.LastIndex(model, "-v")
	if i < 0 {
		return false
	}
	n, err := strconv.Atoi(model[i+2:])
	return err == nil && n >= 1 && n <= cpuModels[model[:i]] && model[i+2:] == strconv.Itoa(n)
}
