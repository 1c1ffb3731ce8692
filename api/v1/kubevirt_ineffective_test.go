package v1

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// effective are the fields of a KubeVirt that have an effect, each with the test that sees it. A field that is neither
// here nor in the list of those without an effect fails TestEachKubeVirtFieldHasAnEffectOrIsNamed. A field that has an
// effect for some values only is in both.
var effective = map[string]string{
	"configuration.cpuModel":                                         "TestApplyClusterDefaults",
	"configuration.autoCPULimitNamespaceLabelSelector":               "controllers/kit TestRefusedPodIsCreatedWithLimits",
	"configuration.cpuRequest":                                       "controllers/vmi TestResourcesByClusterConfiguration",
	"configuration.machineType":                                      "TestApplyClusterDefaults",
	"configuration.emulatedMachines":                                 "api/validation TestValidateForCluster",
	"configuration.architectureConfiguration.amd64.machineType":      "TestApplyClusterDefaults",
	"configuration.architectureConfiguration.amd64.emulatedMachines": "api/validation TestValidateForCluster",
	"configuration.architectureConfiguration.arm64.machineType":      "TestApplyClusterDefaults",
	"configuration.architectureConfiguration.arm64.emulatedMachines": "api/validation TestValidateForCluster",
	"configuration.architectureConfiguration.arm64.useEmulation":     "controllers/vmi TestPodOfAnARM64Guest",
	"configuration.architectureConfiguration.defaultArchitecture":    "TestApplyClusterDefaults",
	"configuration.imagePullPolicy":                                  "controllers/vmi TestPodFollowsTheClusterConfiguration",
	"configuration.defaultRuntimeClass":                              "controllers/vmi TestPodFollowsTheClusterConfiguration",

	"configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.runtimeDefaultProfile": "controllers/vmi TestPodFollowsTheClusterConfiguration",
	"configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile":      "controllers/vmi TestPodFollowsTheClusterConfiguration",

	"configuration.virtualMachineInstancesPerNode":                 "controllers/node/accelerator TestConfigurationIsFollowed",
	"configuration.additionalGuestMemoryOverheadRatio":             "controllers/vmi TestResourcesByClusterConfiguration",
	"configuration.smbios":                                         "controllers/handover TestClusterConfigurationIsAFactOfTheHost",
	"configuration.network.defaultNetworkInterface":                "TestApplyClusterDefaults",
	"configuration.network.binding":                                "api/validation TestValidateForCluster",
	"configuration.network.permitBridgeInterfaceOnPodNetwork":      "api/validation TestValidateForCluster",
	"configuration.virtualMachineOptions.disableFreePageReporting": "controllers/handover TestClusterConfigurationIsAFactOfTheHost",
	"configuration.virtualMachineOptions.disableSerialConsoleLog":  "TestApplyClusterDefaults",
	"configuration.hostDisk":                                       "controllers/vmi TestHostDiskNeedsAPermittedFolder",
	"configuration.evictionStrategy":                               "TestApplyClusterDefaults",
	"configuration.vmStateStorageClass":                            "controllers/vmi TestStateClaimIsMadeOnceBeforeThePod",
	"configuration.obsoleteCPUModels":                              "controllers/nodelabel TestCPULabels",
	developer + "featureGates":                                     "controllers/images TestWhichWay",
	developer + "disabledFeatureGates":                             "controllers/images TestWhichWay",
	"configuration.vmRolloutStrategy":                              "api/v1 TestWhichTemplateChangesNeedARestart",
	"configuration.commonInstancetypesDeployment.enabled":          "controllers/instancetypes TestInstallAndRemove",
	migrations + "parallelMigrationsPerCluster":                    "controllers/migration TestWhichMigrationBeginsNext",
	migrations + "parallelOutboundMigrationsPerNode":               "controllers/migration TestWhichMigrationBeginsNext",
	migrations + "bandwidthPerMigration":                           "controllers/node/migration TestMigrationHasItsConfiguredLimits",
	migrations + "completionTimeoutPerGiB":                         "controllers/node/migration TestMigrationHasItsConfiguredLimits",
	migrations + "progressTimeout":                                 "controllers/node/migration TestMigrationHasItsConfiguredLimits",
	migrations + "maxDowntimeMs":                                   "controllers/node/migration TestMigrationHasItsConfiguredLimits",
	migrations + "allowAutoConverge":                               "controllers/node/migration TestMigrationHasItsConfiguredLimits",
	"workloadUpdateStrategy.workloadUpdateMethods":                 "controllers/migration TestOutdatedLauncherMakesOneMigration",
	"workloadUpdateStrategy.batchEvictionSize":                     "controllers/migration TestEvictionsComeInBatches",
	"workloadUpdateStrategy.batchEvictionInterval":                 "controllers/migration TestEvictionsComeInBatches",
	migrations + "nodeDrainTaintKey":                               "controllers/migration TestGuestLeavesNodeWithDrainTaint",
	migrations + "allowPostCopy":                                   "controllers/node/migration TestMigrationHasItsConfiguredLimits",
	migrations + "allowWorkloadDisruption":                         "TestPostCopyAllowed",
	developer + "useEmulation":                                     "test/e2e",
	developer + "cpuAllocationRatio":                               "controllers/vmi TestResourcesByClusterConfiguration",
	developer + "memoryOvercommit":                                 "controllers/vmi TestResourcesByClusterConfiguration",
	developer + "nodeSelectors":                                    "controllers/vmi TestPodFollowsTheClusterConfiguration",
	developer + "logVerbosity.virtAPI":                             "controllers/kubevirt TestVerbosity",
	developer + "logVerbosity.virtController":                      "controllers/kubevirt TestVerbosity",
	developer + "logVerbosity.virtHandler":                         "controllers/kubevirt TestVerbosity",
	developer + "logVerbosity.virtLauncher":                        "controllers/vmi TestPodFollowsTheClusterConfiguration",
	developer + "logVerbosity.nodeVerbosity":                       "controllers/kubevirt TestVerbosity",
	developer + "minimumClusterTSCFrequency":                       "controllers/vmi TestNoNodeAloneDecidesTheTSCFrequency",
}

// fieldsOf returns the paths of a struct's fields: of those that are structs themselves, the fields
// inside.
func fieldsOf(t reflect.Type, prefix string) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, inline, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case inline == "inline":
			out = append(out, fieldsOf(inner, prefix)...)
		case listed(prefix+name) || inner.Kind() != reflect.Struct ||
			!strings.HasPrefix(inner.PkgPath(), "github.com/kubeqemu/"):
			out = append(out, prefix+name)
		default:
			out = append(out, fieldsOf(inner, prefix+name+".")...)
		}
	}
	return out
}

func listed(path string) bool {
	return effective[path] != "" ||
		slices.ContainsFunc(ineffectiveFields, func(f ineffectiveField) bool { return f.path == path })
}

// TestEachKubeVirtFieldHasAnEffectOrIsNamed: each field of a KubeVirt has an effect, or the status names it.
func TestEachKubeVirtFieldHasAnEffectOrIsNamed(t *testing.T) {
	fields := fieldsOf(reflect.TypeFor[KubeVirtSpec](), "")
	if len(fields) < 80 {
		t.Fatalf("only %d fields were found: %v", len(fields), fields)
	}
	for _, path := range fields {
		if !listed(path) {
			t.Errorf("%s is neither said to have an effect nor listed without one", path)
		}
	}
	for path := range effective {
		if !slices.Contains(fields, path) {
			t.Errorf("%s is no field", path)
		}
	}
	for _, f := range ineffectiveFields {
		if !slices.Contains(fields, f.path) {
			t.Errorf("%s is no field", f.path)
		}
	}
}

// TestNamedTestsExist: each test that the list of effects names is there.
func TestNamedTestsExist(t *testing.T) {
	for path, named := range effective {
		folder, name, found := strings.Cut(named, " ")
		if !found && strings.HasPrefix(named, "Test") {
			folder, name = "api/v1", named
		}
		if !declares(t, filepath.Join("../..", folder), "func "+name) {
			t.Errorf("%s: there is no %s in %s", path, name, folder)
		}
	}
}

// declares reports whether a text begins a line of a folder's tests, as in "func TestX".
func declares(t *testing.T, folder, text string) bool {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(source), "\n"+text)
	})
}

func TestIneffectiveFields(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"empty": {`{}`, nil},
		"what KubeVirt's own example has": {
			`{certificateRotateStrategy: {}, configuration: {developerConfiguration: {featureGates: []}}, customizeComponents: {}, imagePullPolicy: IfNotPresent, workloadUpdateStrategy: {}}`,
			[]string{"spec.imagePullPolicy"}},
		"values that are as here": {
			`{configuration: {evictionStrategy: None, tlsConfiguration: {minTLSVersion: VersionTLS13}, developerConfiguration: {pvcTolerateLessSpaceUpToPercent: 10},
			instancetype: {referencePolicy: reference}, architectureConfiguration: {defaultArchitecture: amd64}, network: {permitSlirpInterface: false}, roleAggregationStrategy: AggregateToDefault, virtualMachineInstancesPerNode: 5}}`, nil},
		"values that are not": {
			`{configuration: {evictionStrategy: LiveMigrate, tlsConfiguration: {minTLSVersion: VersionTLS12}, developerConfiguration: {pvcTolerateLessSpaceUpToPercent: 5},
			instancetype: {referencePolicy: expand}, architectureConfiguration: {defaultArchitecture: s390x}, network: {permitSlirpInterface: true}, roleAggregationStrategy: Manual, virtualMachineInstancesPerNode: 250}}`,
			[]string{"spec.configuration.virtualMachineInstancesPerNode",
				"spec.configuration.architectureConfiguration.defaultArchitecture",
				"spec.configuration.tlsConfiguration.minTLSVersion",
				"spec.configuration.instancetype.referencePolicy", "spec.configuration.roleAggregationStrategy",
				"spec.configuration.network.permitSlirpInterface",
				"spec.configuration.developerConfiguration.pvcTolerateLessSpaceUpToPercent"}},
		"a field beside what gives it an effect": {
			`{configuration: {migrations: {allowPostCopy: true, allowWorkloadDisruption: true}}}`, nil},
		"objects": {
			`{infra: {nodePlacement: {nodeSelector: {a: b}}}, workloads: {nodePlacement: {}}, configuration: {migrations: {allowWorkloadDisruption: true, bandwidthPerMigration: 64Mi, allowAutoConverge: true}, developerConfiguration: {logVerbosity: {virtOperator: 4, virtAPI: 2}}}}`,
			[]string{"spec.infra", "spec.configuration.migrations.allowWorkloadDisruption",
				"spec.configuration.developerConfiguration.logVerbosity.virtOperator"}},
	} {
		var spec KubeVirtSpec
		if err := yaml.UnmarshalStrict([]byte(c.spec), &spec); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fields, err := IneffectiveFields(&spec)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, f := range fields {
			got = append(got, f.Field)
			if f.Why == "" {
				t.Errorf("%s: %s has no reason", name, f.Field)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
